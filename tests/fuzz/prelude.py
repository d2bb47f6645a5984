"""What each generated program begins with: imports, globals, classes and functions for its expressions to use."""

PRELUDE = """\
import collections
import contextlib
import functools
import itertools
import math
import operator

import torch

import kiln

GLOBAL_COUNT = 0
GLOBAL_LIST = [1, 2]
GLOBAL_TABLE = {"a": 1}
LOG = []

Point = collections.namedtuple("Point", "x y")


class Problem(Exception):
    def __init__(self, message, code=0):
        super().__init__(message)
        self.code = code


class WorseProblem(Problem):
    pass


class Box:
    kind = "box"

    def __init__(self, value, items=None):
        self.value = value
        self.items = list(items or [])[:6]

    @classmethod
    def make(cls, value):
        return cls(value, [value])

    @property
    def twice(self):
        return self.value * 2 % 997

    def double(self):
        self.value = self.value * 2 % 997
        return self.value

    def label(self):
        return f"{self.kind}:{self.value}"

    def clone(self):
        return type(self)(self.value, self.items)

    def apply(self, n):
        return self.value + n

    def scale(self, tensor):
        return tensor * self.value

    def __len__(self):
        return len(self.items)

    def __bool__(self):
        return True

    def __getitem__(self, index):
        return self.items[index]

    def __add__(self, other):
        return Box((self.value + other.value) % 997, self.items + other.items)

    def __repr__(self):
        return f"{type(self).__name__}({self.value}, {len(self.items)})"


class Child(Box):
    kind = "child"

    def __init__(self, value, items=None):
        super().__init__(value + 1, items)
        self.extra = value

    def label(self):
        return "child of " + super().label()

    def __eq__(self, other):
        return isinstance(other, Box) and self.value == other.value

    __hash__ = None


class Manager:
    def __init__(self, name, swallow=()):
        self.name = name
        self.swallow = swallow

    def __repr__(self):
        return f"Manager({self.name!r})"

    def __enter__(self):
        LOG.append("enter " + self.name)
        return self

    def __exit__(self, kind, error, trace):
        LOG.append(f"exit {self.name} {kind.__name__ if kind else None}")
        return kind is not None and issubclass(kind, self.swallow)


@contextlib.contextmanager
def managed(value):
    LOG.append(value)
    try:
        yield value + 1
    finally:
        LOG.append(-value)


def simple_one(n):
    return n + 1


def simple_two(n, b=2, *rest, key=1, **more):
    return n * 2 + b - key + len(rest) + len(more)


def recursive(n):
    return 1 if n <= 0 else n * recursive(n - 1)


def count_up(n):
    i = 0
    while i < n:
        received = yield i
        i += received or 1


def both(n):
    yield from count_up(n)
    yield -1


def collect(*values):
    return list(values)


def gather(**named):
    return named


def make_adder(amount):
    def adder(n):
        return n + amount

    return adder


def compose(first, second):
    return lambda n: second(first(n))


def min_max(values):
    return (min(values), max(values)) if values else (0, 0)


def enumerate_names(values):
    for index, value in enumerate(values[:4]):
        yield f"n{index}", value


def functional(tensor, power=1):
    if tensor.dim() == 0:
        return tensor
    return torch.nn.functional.relu(tensor) ** power


def print_nothing():
    return None


def len_or_zero(value):
    return len(value) if hasattr(value, "__len__") else 0

"""
