"""What all stages share: graphs, fake tensors and their shape rules, symbolic sizes, hook slots, operator schemas."""
