"""Code generation: lowering, scheduling and a target put together, and the compiled programs in the disk cache."""
