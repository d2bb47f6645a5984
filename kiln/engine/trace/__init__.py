"""A walk becomes a graph of operations."""
