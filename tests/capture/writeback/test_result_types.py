"""Results have eager's exact types: subclasses of int, float, str, bytes and tuple are not taken for their base."""

import collections
import enum
from typing import NamedTuple

import pytest
import torch

import kiln

X = torch.arange(6.0).reshape(2, 3)


class Color(enum.IntEnum):
    RED = 1
    BLUE = 2


class Access(enum.IntFlag):
    READ = 1
    WRITE = 2


class Name(enum.StrEnum):
    FIRST = "first"


class Count(int):
    def __repr__(self):
        return f"Count({int(self)})"


class Ratio(float):
    """A float with no methods of its own."""


class Word(str):
    def __format__(self, spec):
        return f"<{str(self)}|{spec}>"


class Raw(bytes):
    pass


class Point(NamedTuple):
    x: int
    y: int


class Row(tuple):
    def __repr__(self):
        return "Row" + tuple.__repr__(self)


Pair = collections.namedtuple("Pair", "left right")

VALUES = {
    "enum": Color.BLUE,
    "flag": Access.READ | Access.WRITE,
    "text_enum": Name.FIRST,
    "int": Count(3),
    "float": Ratio(2.5),
    "str": Word("ab"),
    "bytes": Raw(b"ab"),
    "bool": True,
    "named": Point(1, 2),
    "pair": Pair(1, "b"),
    "tuple": Row([1, 2]),
    "size": X.shape,
}


def shape_of(value):
    """Types and contents, all the way down."""
    if isinstance(value, torch.Tensor):
        return "tensor", value.dtype, value.tolist()
    if isinstance(value, dict):
        return type(value), [(shape_of(key), shape_of(item)) for key, item in value.items()]
    if isinstance(value, tuple | list | set | frozenset):
        return type(value), [shape_of(item) for item in value]
    return type(value), str.__str__(value) if isinstance(value, str) else repr(value)


def same_types(program, *args, dynamic=None):
    def outcomes(function):
        return [shape_of(function(*args)) for _ in range(3)]

    compiled = kiln.compile(program, backend="eager", dynamic=dynamic)
    assert outcomes(compiled) == outcomes(program)


def contained(x, v):
    held = [v]
    held.append(v)
    return x + 1, v, held, {"key": v}, (v, v), {v: 1}, [*held][0], (lambda: v)()


def shown(x, v):
    return x + 1, f"{v}", f"{v!r}", "{}".format(v), str(v), repr(v), "%s" % (v,), type(v), type(v) is int  # noqa: UP031,UP032


def across_a_break(x, v):
    y, w = x + 1, v
    print(end="")
    return y, w, [w], type(w), f"{w}"


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", [contained, shown, across_a_break])
@pytest.mark.parametrize("kind", VALUES)
def test_values_keep_their_class(kind, program, dynamic):
    value = VALUES[kind]
    same_types(program, X, value, dynamic=dynamic)
    same_types(lambda x: program(x, value), X, dynamic=dynamic)


def arithmetic(x, v):
    folded = [v + 1, 1 + v, v * 2.0, -v, +v, abs(v), v**2, v // 1, v % 2, divmod(v, 2), round(v), int(v), float(v)]
    return x + v, x * v, v * x, x**v, folded, max(v, 0), min(v, 9), sum([v, v]), sorted([v, 0]), torch.full((2,), v)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("kind", ["enum", "flag", "int", "float", "bool"])
def test_arithmetic_gives_the_classes_of_eager(kind, dynamic):
    same_types(arithmetic, X, VALUES[kind], dynamic=dynamic)


def slices(x, v):
    return x + 1, v + (1,), (1, *v), v * 2, v[0], v[:1], v[::-1], v + v, tuple(v), list(v), len(v), v == tuple(v)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("kind", ["named", "pair", "tuple", "size"])
def test_parts_of_tuples_have_the_classes_of_eager(kind, dynamic):
    same_types(slices, X, VALUES[kind], dynamic=dynamic)


def test_what_is_made_inside():
    def program(x):
        word, count = Word("ab"), Count(5)
        point = Point(1, 2)._replace(y=7)
        names = [
            Color(1),
            Color["BLUE"],
            Color.RED | Color.BLUE,
            Access.READ | 2,
            ~Access.READ,
            Name("first"),
            list(Color),
        ]
        text = [word + "c", word * 1, word[:], word.strip(), word.upper(), "".join([word]), f"{word:>5}", str(word)]
        numbers = [count + 0, count * 1, +count, count.real, count.conjugate(), int(count), round(count), True + True]
        largest = x.max(dim=1)
        return names, text, numbers, point, point._asdict(), Pair(x, 1), largest, type(largest), x.shape, x.stride()

    same_types(program, X)
