"""The lowerings of ATen operators, by family; importing this fills the table of registry.py."""
