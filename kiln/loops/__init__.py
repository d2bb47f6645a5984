"""The loop IR: what lowering produces, what scheduling makes kernels of, and what a target generates code from."""
