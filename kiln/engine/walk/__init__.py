"""What a walk over autograd's graph finds, and when it may be made."""
