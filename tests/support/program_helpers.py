"""A second module for programs that read and write the globals of another file."""

LEVEL = 1
TABLE = {"k": 5}


def get_level():
    return LEVEL


def set_level(value):
    global LEVEL
    LEVEL = value
    TABLE["k"] = value


def scale(x, factor):
    return x * factor + LEVEL
