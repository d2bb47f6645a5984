"""The only door to private parts of torch and of CPython, on the Python side."""
