"""Convolutions on GPUs: what joint graphs have around them is brought into a form that kernels can take part in."""
