"""Lowerings of operators that move elements: views, concatenation, padding, gathers and scatters."""
