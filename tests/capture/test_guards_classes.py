"""Missing guards that guard mutation found about classes and functions as objects: names, annotations, protocols.

A program is called, one thing that it can reach is changed, and it is called again: the answer must be eager's.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import inspect
import typing

import pytest
import torch
from program_table import X
from test_guards_mutated import attribute, changes, renamed
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

import kiln


@typing.runtime_checkable
class HasTotal(typing.Protocol):
    total: int


@typing.runtime_checkable
class Goes(typing.Protocol):
    def go(self): ...


class Box:
    size: int
    tag: str


@pytest.mark.parametrize("classes", [HasTotal, (int, HasTotal)])
def test_attribute_that_a_protocol_asks_for(classes):
    box = Box()
    changes(lambda x, box: isinstance(box, classes), (X, box), attribute(box, "total", 1))


@pytest.mark.parametrize("classes", [Goes, (int, Goes)])
@pytest.mark.parametrize("on_class", [True, False])
def test_method_that_a_protocol_asks_for(classes, on_class):
    box = Box()
    owner = Box if on_class else box
    changes(lambda x, box: isinstance(box, classes), (X, box), attribute(owner, "go", lambda *args: 1))


@contextlib.contextmanager
def added(mapping, key, value):
    mapping[key] = value
    try:
        yield
    finally:
        del mapping[key]


def hinted(a: int, b: Box = None) -> float: ...


@pytest.mark.parametrize("owner", [Box, hinted])
@pytest.mark.parametrize(
    "program", [lambda x, owner: list(owner.__annotations__), lambda x, owner: list(typing.get_type_hints(owner))]
)
def test_annotation_added(owner, program):
    changes(program, (X, owner), added(owner.__annotations__, "more", int))


def test_annotation_added_that_a_signature_shows():
    changes(lambda x: str(inspect.signature(hinted)), (X,), added(hinted.__annotations__, "a", "str"))


def test_signature_given_to_a_function():
    other = inspect.signature(lambda a, b, c: None)
    changes(lambda x: len(inspect.signature(hinted).parameters), (X,), attribute(hinted, "__signature__", other))


def test_name_in_an_annotation_means_another_class():
    class Other:
        pass

    @contextlib.contextmanager
    def replaced():
        before = globals()["Box"]
        globals()["Box"] = Other
        try:
            yield
        finally:
            globals()["Box"] = before

    changes(lambda x: typing.get_type_hints(hinted)["b"], (X,), replaced())


class Color(enum.Enum):
    RED = 1


def test_members_of_an_enum_become_descriptors():
    changes(lambda x: x + Color.RED.value, (X,), attribute(Color, "__get__", lambda self, owner, cls: Other))


class Other:
    value = 5


class Problem(ValueError):
    pass


Pair = collections.namedtuple("Pair", "a b")


@dataclasses.dataclass
class Point:
    across: int = 1


@pytest.mark.parametrize("name", ["__name__", "__qualname__", "__module__"])
@pytest.mark.parametrize(
    ("cls", "program"),
    [
        (Box, lambda x: repr(Box)),
        (Box, lambda x: f"{Box} {Box!s:>40}"),
        (Box, lambda x: "%s" % Box),  # noqa: UP031
        (Box, lambda x: "{}".format([Box, {Box: 1}])),  # noqa: UP032
        (Problem, lambda x: repr(Problem("a"))),
        (Problem, lambda x: repr(Problem("a", 2))),
        (Pair, lambda x: repr(Pair(1, 2))),
        (Point, lambda x: repr(Point())),
    ],
)
def test_class_renamed_that_text_names(cls, program, name):
    changes(program, (X,), renamed(cls, name))


def test_checkpoint_under_a_mode():
    """Backward computes the region again without the mode."""

    class Doubling(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            return result * 2 if function is torch.Tensor.mul else result

    def program(x):
        return checkpoint(lambda t: (t * 2).sin(), x, use_reentrant=False)

    def gradients(function):
        x = torch.arange(4.0).requires_grad_()
        function(x).sum().backward()
        with Doubling():
            function(x).sum().backward()
        return x.grad

    torch.testing.assert_close(gradients(kiln.compile(program, backend="eager")), gradients(program))


class Matched:
    __match_args__ = ["first"]
    first = 1


@pytest.mark.parametrize("value", [collections.deque(["first"]), (collections.deque(),), None, ("first",), ()])
def test_match_args_replaced(value):
    def program(x, given):
        try:
            match given:
                case Matched(found):
                    return found
        except TypeError as error:
            return str(error)

    changes(program, (X, Matched()), attribute(Matched, "__match_args__", value))
