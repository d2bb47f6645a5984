"""The operator table: what is known of every operator of torch, declared or derived once."""
