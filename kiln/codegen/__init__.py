"""Code generation: composes lowering, scheduling and a target, and the compiled programs in the disk cache."""
