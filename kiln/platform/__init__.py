"""The only door to private parts of torch and of CPython, on the Python side; see docs/platform.md.

One module per topic. Each name is a private name of torch or CPython, or a function that reads one private attribute.
Names are bound when their module is imported: it does not matter what a program puts in the place of torch's later.
"""
