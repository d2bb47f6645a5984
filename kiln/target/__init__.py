"""Targets: machine code from kernels, the native program that runs it, and the disk cache."""
