"""A graph of operators as an `OperatorProgram`, which runs natively, without Python between the operators.

Operators are called through torch's dispatcher as from Python, but below autocast, where the graph was recorded. Other
functions in the graph are called as they are. A graph with anything else has no program.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from ... import operator_functions as operator
from ..._native import OperatorProgram
from ...platform.torch_operators import OpOverload, schema_of

Node = torch.fx.Node


class NoProgram(Exception):
    """Something that a program cannot do."""


def program_of(
    module: torch.fx.GraphModule, otherwise: Callable[[list[Any]], Any]
) -> Callable[[list[Any]], Any] | None:
    """A program for a graph, as a function of a list that it empties; tensors of other classes go ``otherwise``."""
    try:
        return Builder(module).build(otherwise)
    except (NoProgram, AttributeError, TypeError, RuntimeError):
        return None


class Builder:
    """Gives values numbers, and describes the steps."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        self.module = module
        self.places: dict[Node, int] = {}
        self.parts: dict[Node, list[int]] = {}  # of operators with several results
        self.constants: dict[Node, Any] = {}
        self.steps: list[tuple[Any, ...]] = []
        self.count = 0

    def build(self, otherwise: Callable[[list[Any]], Any]) -> OperatorProgram:
        outputs: list[Any] = []
        inputs = [node for node in self.module.graph.nodes if node.op == "placeholder"]
        for node in inputs:  # they come first, wherever in the graph they are
            self.places[node] = self.new()
        for node in self.module.graph.nodes:
            if node.op == "placeholder":
                continue
            if node.op == "get_attr":
                self.constants[node] = self.attribute(str(node.target))
            elif node.op in ("call_function", "call_method"):
                self.add(node)
            elif node.op == "output":
                values = node.args[0] if isinstance(node.args[0], (list, tuple)) else None
                if values is None:
                    raise NoProgram("one result")
                outputs = [self.output(value) for value in values]
            else:
                raise NoProgram(node.op)
        return OperatorProgram(len(inputs), self.count, self.steps, outputs, otherwise)

    def new(self) -> int:
        self.count += 1
        return self.count - 1

    def attribute(self, name: str) -> Any:
        value: Any = self.module
        for part in name.split("."):
            value = getattr(value, part)
        if not isinstance(value, torch.Tensor):
            raise NoProgram("an attribute that is no tensor")
        return value

    def add(self, node: Node) -> None:
        target: Any = node.target if node.op == "call_function" else getattr(torch.Tensor, str(node.target))
        if target is operator.getitem and isinstance(node.args[1], int) and self.gives_several(node.args[0]):
            self.add_item(node)
        elif type(target) is OpOverload:
            self.add_operator(node, target)
        elif has_nodes(node.kwargs):
            raise NoProgram("keywords")
        else:
            target = functools.partial(target, **node.kwargs) if node.kwargs else target
            self.places[node] = self.new()
            self.steps.append((target, tuple(map(self.describe, node.args)), (self.places[node],)))

    def gives_several(self, source: Any) -> bool:
        """Whether it is an operator with several results, not a tensor that is indexed."""
        if source in self.parts:
            return True
        target = source.target if isinstance(source, Node) else None
        return isinstance(target, OpOverload) and isinstance(schema_of(target).returns[0].type, torch.ListType)

    def add_item(self, node: Node) -> None:
        source, index = node.args
        if isinstance(source, Node) and isinstance(index, int) and source in self.parts:
            self.places[node] = self.parts[source][index]
            return
        self.places[node] = self.new()
        self.steps.append((index, (self.describe(source),), (self.places[node],)))

    def add_operator(self, node: Node, target: OpOverload) -> None:
        schema = schema_of(target)
        given = dict(zip([argument.name for argument in schema.arguments], node.args, strict=False))
        given.update(node.kwargs)
        arguments = tuple(
            self.describe(given[argument.name]) if argument.name in given else None for argument in schema.arguments
        )
        results = [self.new() for _ in schema.returns]
        if len(results) == 1:
            self.places[node] = results[0]
        else:
            self.parts[node] = results
        self.steps.append(((schema.name, schema.overload_name), arguments, tuple(results)))

    def describe(self, value: Any) -> Any:
        """The description of a value in a program: a register, a constant in a tuple, or a list of those."""
        if isinstance(value, Node):
            return (self.constants[value],) if value in self.constants else self.place(value)
        if not has_nodes(value):
            return (value,)
        if isinstance(value, (list, tuple)):
            return [self.describe(part) for part in value]
        raise NoProgram("a node inside of something else")

    def place(self, node: Node) -> int:
        if node not in self.places:
            raise NoProgram("all results of an operator as one value")
        return self.places[node]

    def output(self, value: Any) -> Any:
        described = self.describe(value)
        if isinstance(described, list):
            raise NoProgram("a nested result")
        return described


def has_nodes(value: Any) -> bool:
    found: list[Node] = []
    torch.fx.node.map_arg(value, found.append)
    return bool(found)
