"""Graphs that are quick to write: fx's own, but for a look at every argument of every node."""

from __future__ import annotations

import types
from typing import Any

import torch.fx

from ..platform.fx_graphs import qualified_name


class Graph(torch.fx.Graph):
    """A graph whose writers turn symbolic numbers into nodes themselves.

    torch (2.13) goes through the arguments of each new node in search of such numbers, to warn of them, which takes
    twice as long as all else. It does not where arguments are given afterwards.
    """

    has_complex = False
    created = 0  # how many nodes were made, also those that are erased by now

    def create_node(
        self,
        op: str,
        target: Any,
        args: tuple[Any, ...] | None = None,
        kwargs: dict[str, Any] | None = None,
        name: str | None = None,
        type_expr: Any = None,
    ) -> torch.fx.Node:
        node = super().create_node(op, target, (), {}, name, type_expr)
        self.created += 1
        if args:
            assign(node, "args", args)
            self.has_complex = self.has_complex or complex in map(type, args)
        if kwargs:
            assign(node, "kwargs", kwargs)
            self.has_complex = self.has_complex or complex in map(type, kwargs.values())
        return node

    def python_code(self, *args: Any, **kwargs: Any) -> Any:
        """The text of the graph, in which complex constants are written so that Python reads the same numbers."""
        if not self.has_complex:
            return super().python_code(*args, **kwargs)
        before = [(node, node.args, node.kwargs) for node in self.nodes]
        try:
            for node, positional, keywords in before:
                assign(node, "args", torch.fx.node.map_aggregate(positional, exact_text))
                assign(node, "kwargs", torch.fx.node.map_aggregate(keywords, exact_text))
            return super().python_code(*args, **kwargs)
        finally:
            for node, positional, keywords in before:
                assign(node, "args", positional)
                assign(node, "kwargs", keywords)


assign = object.__setattr__  # a node's own looks whether its operator changes


def is_read_back(value: complex) -> bool:
    """Whether the text of a complex number is read as that number: ``(1-0j)`` is ``1+0j``, ``infj`` a name."""
    return {str(value.real), str(value.imag)}.isdisjoint(("-0.0", "inf", "-inf", "nan"))


class ComplexCall(complex):
    """A complex number written as a call."""

    def __repr__(self) -> str:
        return f"complex({self.real!r}, {self.imag!r})"  # fx modules know the names inf and nan


def exact_text(value: Any) -> Any:
    return ComplexCall(value) if type(value) is complex and not is_read_back(value) else value


def exact_constant(graph: torch.fx.Graph, value: complex) -> complex | torch.fx.Node:
    """A complex number as an argument; where its text is read as another, the result of a call."""
    return value if is_read_back(value) else graph.call_function(complex, (value.real, value.imag))


class Names:
    """A module or class of torch as the text of a graph sees it: some of its attributes are fixed."""

    def __init__(self, real: Any) -> None:
        self.__dict__["_real"] = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


CONSTANTS = {
    repr(value).removeprefix("torch."): value
    for value in list(vars(torch).values())
    if type(value) in (torch.dtype, torch.layout, torch.memory_format, torch.qscheme)
}


class TorchNames(Names):
    """The module ``torch`` as the text of a graph sees it: ``torch.float32`` is the dtype that was captured."""


for _name, _value in CONSTANTS.items():
    setattr(TorchNames, _name, _value)


NAMED_TARGETS = (
    types.BuiltinFunctionType,
    types.FunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
)


def fix_names(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Have a graph's text use the very functions and dtypes that were captured.

    The text says ``torch.add`` or ``torch.float32``, and looks that up when it runs. A program may have put something
    of its own there by then (or already, which calls the one it replaced).
    """
    names = type(module).forward.__globals__
    if names.get("torch") is not torch:
        return module
    root = TorchNames(torch)
    for target in {node.target for node in module.graph.nodes if isinstance(node.target, NAMED_TARGETS)}:
        try:
            *path, name = qualified_name(target).split(".")
        except (RuntimeError, AttributeError):  # the text has another way to it
            continue
        if not path or path.pop(0) != "torch":
            continue
        owner = root
        for part in path:
            if part not in owner.__dict__:
                owner.__dict__[part] = Names(getattr(owner, part))
            owner = owner.__dict__[part]
        owner.__dict__[name] = target
    names["torch"] = root
    return module


def count_operations(graph: torch.fx.Graph) -> int:
    """How many nodes of a graph are operations, as opposed to inputs, constants and outputs."""
    return sum(node.op in ("call_function", "call_method", "call_module") for node in graph.nodes)
