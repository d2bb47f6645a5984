"""Targets: machine code for kernels, and where it is kept."""
