"""Missing guards that guard mutation found (tests/sweep_guards.py), each as a small test of its own.

A program is called, one thing that it can reach is changed, and it is called again: the answer must be eager's.
"""

from __future__ import annotations

import collections
import contextlib
import operator

import pytest
import torch
from program_table import X
from torch.utils.checkpoint import checkpoint

import kiln
from kiln.testing import check


def changes(program, args, change):
    """Call, change, call, undo, call: compiled and in eager."""
    compiled = kiln.compile(program, backend="eager", fullgraph=True)
    assert_same(compiled, program, args)
    with change:
        assert_same(compiled, program, args)
    assert_same(compiled, program, args)


def assert_same(compiled, program, args):
    def run(function):
        try:
            return function(*args)
        except Exception as error:
            return type(error), str(error)

    expected, seen = run(program), run(compiled)
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(seen, expected, rtol=0, atol=0)
    else:
        assert seen == expected


@contextlib.contextmanager
def attribute(owner, name, value):
    """An attribute set for a while, and taken away or put back."""
    before = owner.__dict__.get(name, NotImplemented)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is NotImplemented:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


def test_getattribute_added_to_a_class():
    class Box:
        def __init__(self):
            self.size = 3

    def other(self, name):
        found = object.__getattribute__(self, name)
        return found + 1 if name == "size" else found

    changes(lambda x, box: x + box.size, (X, Box()), attribute(Box, "__getattribute__", other))


def test_getattribute_added_to_a_class_that_the_program_makes_objects_of():
    class Box:
        def __init__(self):
            self.size = 3

    def other(self, name):
        found = object.__getattribute__(self, name)
        return found + 1 if name == "size" else found

    changes(lambda x: x + Box().size, (X,), attribute(Box, "__getattribute__", other))


def test_getattribute_added_to_a_subclass_of_tuple():
    class Pair(tuple):
        scale = 2

    def other(self, name):
        return 5 if name == "scale" else tuple.__getattribute__(self, name)

    changes(lambda x, pair: x * pair.scale + pair[0], (X, Pair((1, 2))), attribute(Pair, "__getattribute__", other))


@pytest.mark.parametrize(
    ("name", "method", "program"),
    [
        ("__bool__", lambda self: False, lambda x, box: x + 1 if box else x - 1),
        ("__len__", lambda self: 0, lambda x, box: x + 1 if box else x - 1),
        ("__eq__", lambda self, other: False, lambda x, box: x + (box == box)),
        ("__iter__", lambda self: iter((7,)), lambda x, box: x + sum(box)),
        ("__contains__", lambda self, item: True, lambda x, box: x + (9 in box)),
        ("__repr__", lambda self: "box", lambda x, box: x + len(repr(box))),
        ("__call__", lambda self: 8, lambda x, box: x + box() if callable(box) else x),
        ("__hash__", lambda self: 5, lambda x, box: x + hash(box)),
    ],
)
def test_special_method_added_to_a_class(name, method, program):
    class Box:
        def __getitem__(self, index):
            if index > 2:
                raise IndexError(index)
            return index

        def __hash__(self):
            return 4

        def __repr__(self):
            return "a box"

        __eq__ = object.__eq__

    changes(program, (X, Box()), attribute(Box, name, method))


def test_class_between_gets_the_method_that_super_finds():
    class Base:
        def scale(self):
            return 2

    class Middle(Base):
        pass

    class Last(Middle):
        def scale(self):
            return super().scale() + 1

    changes(lambda x, owner: x * owner.scale(), (X, Last()), attribute(Middle, "scale", lambda self: 10))


def test_bases_changed_under_super():
    class One:
        def scale(self):
            return 2

    class Other:
        def scale(self):
            return 5

    class Base(One):
        pass

    class Last(Base):
        def scale(self):
            return super().scale() + 1

    @contextlib.contextmanager
    def rebased():
        Base.__bases__ = (Other,)
        try:
            yield
        finally:
            Base.__bases__ = (One,)

    changes(lambda x, owner: x * owner.scale(), (X, Last()), rebased())


def test_method_of_tensors_replaced():
    original = torch.Tensor.sigmoid
    changes(lambda x: x.sigmoid(), (X,), attribute(torch.Tensor, "sigmoid", lambda self: original(self) + 1))


def test_function_of_torch_replaced_by_one_that_calls_it():
    """The graph holds the original; its text must not find the replacement by name."""
    original = torch.sin
    changes(lambda x: torch.sin(x), (X,), attribute(torch, "sin", lambda x: original(x) + 1))


def test_function_of_torch_reached_otherwise_keeps_its_meaning():
    """The program holds the original; what the name means later does not matter to it."""
    program = {"function": torch.cos}
    changes(lambda x, table: table["function"](x), (X, program), attribute(torch, "cos", lambda x: torch.zeros_like(x)))


def test_empty_slot_is_asked_without_getattr():
    """A check must not run a ``__getattr__`` of the program's."""

    class Box:
        __slots__ = ("value",)
        asked = 0

        def __getattr__(self, name):
            Box.asked += 1
            raise AttributeError(name)

    def program(x, box):
        try:
            return x + box.value
        except AttributeError:
            return x - 1

    compiled = kiln.compile(program, backend="eager")
    assert torch.equal(compiled(X, Box()), X - 1)
    before = Box.asked
    assert torch.equal(compiled(X, Box()), X - 1)
    assert Box.asked - before <= 1  # by the program itself


def test_explaining_a_miss_makes_no_items_of_a_defaultdict():
    def program(table):
        for key in table:
            table[key] = table[key] + 1
        return list(table)

    compiled = kiln.compile(program, backend="eager")
    assert compiled({"a": 1, "b": 2}) == ["a", "b"]
    table = collections.defaultdict(int)
    assert compiled(table) == [] and not table


def test_getattribute_of_a_metaclass():
    class Meta(type):
        pass

    class Settings(metaclass=Meta):
        scale = 3

    def other(cls, name):
        return 7 if name == "scale" else type.__getattribute__(cls, name)

    changes(lambda x: x * Settings.scale, (X,), attribute(Meta, "__getattribute__", other))


def test_gradient_of_another_size():
    def program(x):
        return x * 2

    def replaced():
        x = torch.ones(3, requires_grad=True)
        (x * 2).sum().backward()
        x.data = torch.ones(4)
        return (x,)

    check(program, make_args=replaced, dynamic=True, grads=False)


def test_method_caller_with_keywords_across_a_break():
    class Pair:
        def total(self, *, extra):
            return extra

    def program(x, pair):
        caller = operator.methodcaller("total", extra=x * 2)
        kiln.graph_break()
        return caller(pair) + 1

    check(program, X, Pair())


class PlainSubclass(torch.Tensor):
    pass


def test_checkpoint_of_a_tensor_subclass_ends():
    """The conversion to the subclass is taken out of the graph; it was the end of the checkpointed region."""

    def program(x):
        return checkpoint(lambda t: (t * 2).sin(), x, use_reentrant=False)

    check(program, make_args=lambda: (torch.arange(3.0).as_subclass(PlainSubclass).requires_grad_(),))
    check(program, make_args=lambda: (torch.arange(3.0).as_subclass(PlainSubclass),))
