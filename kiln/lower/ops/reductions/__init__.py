"""Lowerings of operators that reduce along axes: sums, normalizations, losses, pooling, attention."""
