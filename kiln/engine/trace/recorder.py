"""The dispatch mode that records the operations of autograd's nodes while these run on fake tensors.

The graph is not functional: operations are recorded as they come, in-place ones included. It takes ``inputs`` (a list
of tensors), ``sizes`` (the dynamic numbers) and ``hooks`` (Python objects).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from ... import operator_functions as operator
from ...aot.trace.size_nodes import SizeNodes
from ...platform.fx_graphs import is_erased
from ...platform.torch_dispatch import PlainDispatchMode
from ...platform.torch_operators import OpOverload, operator_name
from ...program.graph import Graph
from ...program.operators.operator_table import find_operator, operator_of
from ...program.shapes import shape_cache
from ..walk.refusal import Refused
from .node_meta import NOWHERE, note

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
ARGUMENTS = ("inputs", "sizes", "hooks")


class Recorder(PlainDispatchMode):
    """Records the operations that run under it."""

    def __init__(self) -> None:
        super().__init__()
        self.graph = Graph()
        self.lists = {name: self.graph.placeholder(name) for name in ARGUMENTS}
        self.items: dict[tuple[str, int], torch.fx.Node] = {}
        self.nodes: dict[int, torch.fx.Node] = {}  # by the identity of the tensor
        self.kept: list[torch.Tensor] = []  # so that identities stay unique
        # Tensors that stand for a Python number, by identity: it, and its node if it is an argument.
        self.plain_numbers: dict[int, tuple[Any, torch.fx.Node | None]] = {}
        self.numbers = SizeNodes(self)
        self.origin = NOWHERE  # the call that runs

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        keywords = kwargs or {}
        if not isinstance(function, OpOverload):
            raise Refused(f"the higher-order operator {function}")
        called = operator_of(function)
        if called.asks_form:
            return function(*args, **keywords)
        if not self.plain_numbers:
            result = shape_cache.run(function, args, keywords)
        else:
            result = shape_cache.run(function, self.with_numbers(args), self.with_numbers(keywords))
        if called.gives_argument and id(args[0]) in self.nodes:
            self.bind(result, self.nodes[id(args[0])])
        elif any(isinstance(part, torch.Tensor) for part in parts_of(result)):
            self.record(function, args, keywords, result)
        return result

    def with_numbers(self, value: Any) -> Any:
        """Arguments with numbers for the tensors that stand for them."""
        if isinstance(value, torch.Tensor):
            return self.plain_numbers.get(id(value), (value,))[0]
        if isinstance(value, (tuple, list)):
            return type(value)([self.with_numbers(part) for part in value])
        if isinstance(value, dict):
            return {name: self.with_numbers(part) for name, part in value.items()}
        return value

    def record(self, function: Any, args: tuple[Any, ...], keywords: dict[str, Any], result: Any) -> torch.fx.Node:
        """A node for a call that returned this result."""
        node = self.emit(function, self.nodes_of(args), self.nodes_of(keywords), result)
        if isinstance(result, torch.Tensor):
            self.bind(result, node)
        else:
            for place, part in enumerate(result):
                if isinstance(part, torch.Tensor) and id(part) not in self.nodes:
                    self.bind(part, self.emit(operator.getitem, (node, place), {}, part))
        return node

    def emit(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        keywords: dict[str, Any] | None = None,
        value: object = None,
    ) -> torch.fx.Node:
        name = operator_name(function) if isinstance(function, OpOverload) else None
        node = self.graph.create_node("call_function", function, args, keywords, name)
        note(node, value, self.origin)
        return node

    def bind(self, tensor: torch.Tensor, node: torch.fx.Node) -> None:
        """Note the node of a tensor. The result of an in-place operation keeps the node that it had."""
        if id(tensor) not in self.nodes:
            self.nodes[id(tensor)] = node
            self.kept.append(tensor)

    def item(self, name: str, place: int, value: Any) -> torch.fx.Node:
        """An item of one of the three arguments."""
        node = self.items.get((name, place))
        if node is None:
            node = self.items[name, place] = self.emit(operator.getitem, (self.lists[name], place), {}, value)
            note(node, value, NOWHERE)
        return node

    def nodes_of(self, value: Any) -> Any:
        """Arguments of a call as arguments of a node."""
        if isinstance(value, torch.Tensor):
            node = self.nodes.get(id(value))
            if node is None and id(value) in self.plain_numbers:
                number, node = self.plain_numbers[id(value)]
                return number if node is None else node
            if node is None:
                raise Refused("a tensor that a node of autograd's graph keeps out of sight")
            return node
        if isinstance(value, SYMBOLIC):
            return self.numbers.node_of(value)
        if isinstance(value, (tuple, list)):
            return type(value)([self.nodes_of(part) for part in value])
        if isinstance(value, dict):
            return {name: self.nodes_of(part) for name, part in value.items()}
        return value

    def finish(self, results: Sequence[Any]) -> torch.fx.Graph:
        """The graph with these results, without dead code."""
        self.graph.output(tuple(self.nodes_of(tuple(results))))
        for node in reversed(list(self.graph.nodes)):
            if not node.users and node.op == "call_function" and not has_effect(node.target):
                self.graph.erase_node(node)
        self.gather_items()
        return self.graph

    def gather_items(self) -> None:
        """Move the reads of the arguments to the front: then the lists can be emptied."""
        last = self.lists[ARGUMENTS[-1]]
        for name in ARGUMENTS:
            for (owner, _), node in sorted(self.items.items(), key=lambda item: item[0][1]):
                if owner == name and not is_erased(node):
                    last.append(node)
                    last = node


def parts_of(result: Any) -> Sequence[Any]:
    return result if isinstance(result, (tuple, list)) else (result,)


def has_effect(target: Any) -> bool:
    """Whether a call does something besides giving its result."""
    called = find_operator(target)
    if called is not None:
        return called.mutable or called.random or not called.schema.returns
    return getattr(target, "__module__", "").startswith(("kiln.engine", "kiln.program.accumulation"))
