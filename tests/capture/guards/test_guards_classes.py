"""Missing guards that guard mutation found about classes and functions as objects: names, annotations, protocols.

A program is called, one thing that it can reach is changed, and it is called again: the answer must be eager's.
"""

from __future__ import annotations

import abc
import collections
import contextlib
import dataclasses
import enum
import inspect
import typing

import pytest
import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

import kiln
from kiln.testing import CompileCounter, check
from tests.capture.guards.test_guards_mutated import attribute, changes, renamed
from tests.support.program_table import X


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


def test_member_of_an_enum_replaced():
    @contextlib.contextmanager
    def replaced():
        before = Color.RED
        type.__setattr__(Color, "RED", 5)
        try:
            yield
        finally:
            type.__setattr__(Color, "RED", before)

    changes(lambda x: isinstance(Color.RED, int), (X,), replaced())


class Described:
    """A descriptor."""

    def __get__(self, owner, cls=None):
        return 2

    def __set__(self, owner, value):
        owner.kept = value


class Owner:
    field = Described()
    kept = 0


@pytest.mark.parametrize("name", ["__get__", "__set__"])
def test_method_of_a_descriptor_becomes_a_static_one(name):
    """It is called with one argument less: the descriptor is not passed."""

    def program(x, owner):
        owner.field = 3
        return x + owner.field, owner.kept

    def other(*args):
        if name == "__set__":
            args[0].kept = len(args)
        return len(args)

    compiled = kiln.compile(program, backend="eager")
    owners = Owner(), Owner()
    for _ in range(2):
        assert str(compiled(X, owners[0])) == str(program(X, owners[1]))
        setattr(Described, name, staticmethod(other))


def test_dictionary_of_an_object_reached_on_its_own():
    class Box:
        def __getattr__(self, name):
            return 9

    def program(box, table, x):
        table["b"] = x
        return box.b

    box = Box()
    box.__dict__ = table = {"a": 1}
    assert torch.equal(kiln.compile(program, backend="eager")(box, table, X), X)

    def other_order(box, table, x):
        first = box.a
        table["a"] = x
        return first, box.a

    expected = 1, X
    table["a"] = 1
    seen = kiln.compile(other_order, backend="eager")(box, table, X)
    assert seen[0] == expected[0] and torch.equal(seen[1], expected[1])


def test_hooks_of_all_modules_do_not_see_a_checkpointed_graph():
    layers = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.GELU())

    def program(x):
        return checkpoint(layers, x, use_reentrant=False)

    def gradients(function):
        x = torch.ones(2, requires_grad=True)
        result = function(x)
        result.sum().backward()
        return result, x.grad

    handle = register_module_forward_pre_hook(lambda module, args: tuple(arg * 2 for arg in args))
    try:
        torch.testing.assert_close(gradients(kiln.compile(program, backend="eager")), gradients(program))
    finally:
        handle.remove()


def test_bytes_of_a_tensor_of_varying_size():
    check(lambda x: (x.nbytes, x + 1), torch.ones(4, 3), dynamic=True)


def test_hooks_of_all_modules_do_not_see_a_graph_that_a_backend_gives_back():
    handle = register_module_forward_pre_hook(lambda module, args: tuple(arg * 2 for arg in args))
    try:
        assert torch.equal(kiln.compile(lambda x: x + 1, backend=lambda module, inputs: module)(X), X + 1)
    finally:
        handle.remove()


def test_hook_that_a_backend_registers_on_the_graph_is_called():
    def backend(module, inputs):
        module.register_forward_hook(lambda module, args, result: tuple(each * 2 for each in result))
        return module

    assert torch.equal(kiln.compile(lambda x: x + 1, backend=backend)(X), (X + 1) * 2)


class Tabled(enum.Enum):
    ONE = 1
    TWO = 2


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x + len(list(Tabled)),
        lambda x: x + Tabled["TWO"].value,
        lambda x: x + Tabled(2).value,
        lambda x: x + max(member.value for member in Tabled),
    ],
)
@pytest.mark.parametrize("table", ["_member_names_", "_member_map_", "_value2member_map_"])
def test_tables_of_an_enumeration(program, table):
    """The tables are private, and read by native code: what is taken out of them is noticed."""
    compiled, content = kiln.compile(program), getattr(Tabled, table)
    assert torch.equal(compiled(torch.ones(2)), program(torch.ones(2)))
    before = content.copy()
    content.pop("TWO" if table == "_member_map_" else 2 if table == "_value2member_map_" else -1)
    try:
        outcomes = []
        for function in (program, compiled):
            try:
                outcomes.append(function(torch.ones(2)).tolist())
            except Exception as error:
                outcomes.append(f"{type(error).__name__}: {error}")
        assert outcomes[1] == outcomes[0]
    finally:
        content.clear()
        content.extend(before) if isinstance(content, list) else content.update(before)
    assert torch.equal(compiled(torch.ones(2)), program(torch.ones(2)))


class Named(abc.ABC):  # noqa: B024  (only such a class lets its module be removed)
    def __init__(self):
        self.number = 2


def test_a_class_that_loses_its_module():
    def program(x, given):
        return x + given.number, isinstance(given, Named), repr(type(given))

    compiled = kiln.compile(program)
    compiled(torch.ones(2), Named())
    module = Named.__module__
    del Named.__module__
    try:
        assert compiled(torch.ones(2), Named())[0].tolist() == program(torch.ones(2), Named())[0].tolist()
    finally:
        Named.__module__ = module


class Combined(enum.Flag):
    A = 1
    B = 2
    C = 4


def test_combinations_of_flags_are_no_change():
    """Python makes a member for a combination when it is first asked for."""

    def program(x):
        return x + Combined(3).value + len(list(Combined))

    counter = CompileCounter()
    compiled = kiln.compile(program, backend=counter)
    for _ in range(3):
        assert torch.equal(compiled(torch.ones(2)), program(torch.ones(2)))
    assert Combined(6).value == 6
    assert torch.equal(compiled(torch.ones(2)), program(torch.ones(2)))
    assert counter.frame_count == 1
