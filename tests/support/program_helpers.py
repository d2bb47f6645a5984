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


def inherited():
    """Two classes, one of which calls the other by ``super()``, and a program that calls that."""

    class Base:
        def scale(self, x):
            return x + 1

    class Derived(Base):
        def scale(self, x):
            return super().scale(x) * 2

    def program(x):
        return Derived().scale(x)

    return Base, Derived, program
