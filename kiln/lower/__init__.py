"""Lowering: functional graphs of ATen operators to kernels over loops, calls of ATen, and a plan of memory."""
