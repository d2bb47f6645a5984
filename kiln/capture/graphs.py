"""Graphs that are quick to write: fx's own, but for a look at every argument of every node."""

from __future__ import annotations

from typing import Any

import torch.fx


class Graph(torch.fx.Graph):
    """A graph whose writers turn symbolic numbers into nodes themselves.

    torch (2.13) goes through the arguments of each new node in search of such numbers, to warn of them, which takes
    twice as long as all else. It does not where arguments are given afterwards.
    """

    has_complex = False

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
        if args:
            assign(node, "args", args)
            self.has_complex = self.has_complex or any(type(arg) is complex for arg in args)
        if kwargs:
            assign(node, "kwargs", kwargs)
            self.has_complex = self.has_complex or any(type(arg) is complex for arg in kwargs.values())
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
