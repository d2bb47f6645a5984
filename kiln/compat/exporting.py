"""``torch._dynamo.export``: a graph that is called with the program's own arguments and gives its own results.

Kiln's graphs take everything as inputs and give tensors only. Here the inputs that are not the caller's tensors become
attributes of the graph module, and what the program returned is put together around the graph's outputs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.utils._pytree as pytree

from .. import api, exc
from ..report import events


class ExportResult(NamedTuple):
    """What ``torch._dynamo.export(f)(…)`` gives."""

    graph_module: torch.nn.Module
    guards: list[str]


class ExportedGraph(torch.nn.Module):
    """A captured graph with the signature of the function that it was captured from."""

    def __init__(self, graph_module: torch.fx.GraphModule, attributes: dict[str, Any], places: list[Any], result: Any):
        super().__init__()
        self.graph_module = graph_module
        for name, value in attributes.items():
            if isinstance(value, torch.nn.Parameter):
                self.register_parameter(name, value)
            elif isinstance(value, torch.Tensor):
                self.register_buffer(name, value)
            else:
                setattr(self, name, value)
        self._places = places  # of each input: its place among the caller's arguments, or the name of an attribute
        self._result = result  # the places of outputs in the result, and how it is built

    @property
    def graph(self) -> torch.fx.Graph:
        """The graph, with an input for everything it uses."""
        return self.graph_module.graph

    @property
    def code(self) -> str:
        return self.graph_module.code

    def print_readable(self, print_output: bool = True, **options: Any) -> str:
        return self.graph_module.print_readable(print_output, **options)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        leaves = pytree.tree_leaves((args, kwargs))
        inputs = [getattr(self, place) if isinstance(place, str) else leaves[place] for place in self._places]
        outputs = self.graph_module(*inputs)
        found, spec = self._result
        values = [
            outputs[place] if kind == "output" else leaves[place] if kind == "input" else place for kind, place in found
        ]
        return pytree.tree_unflatten(values, spec)


class _Watching:
    """A backend that keeps the one graph it gets, and the values of its first call."""

    graph: torch.fx.GraphModule | None = None
    inputs: tuple[Any, ...] = ()
    outputs: tuple[Any, ...] = ()

    def __call__(self, graph_module: torch.fx.GraphModule, example_inputs: Any) -> Any:
        if self.graph is not None:
            raise exc.UserError("torch._dynamo.export needs a program of one graph")
        self.graph = graph_module

        def run(*inputs: Any) -> Any:
            self.inputs, self.outputs = inputs, tuple(graph_module.forward(*inputs))
            return self.outputs

        return run


def export(f: Any, *extra_args: Any, **accepted: Any) -> Any:
    """``torch._dynamo.export(f)(*args)``: graph and guards; other options of torch's have no effect."""

    def inner(*args: Any, **kwargs: Any) -> ExportResult:
        watching = _Watching()
        with events.listen() as heard:
            result = api.compile(f, backend=watching, fullgraph=True)(*args, **kwargs)
        if watching.graph is None:
            raise exc.UserError("torch._dynamo.export needs a call that does tensor work; none was captured")
        leaves = {id(leaf): place for place, leaf in enumerate(pytree.tree_leaves((args, kwargs)))}
        attributes: dict[str, Any] = {}
        places = [
            _place(value, node, leaves, attributes)
            for value, node in zip(watching.inputs, _inputs(watching.graph), strict=True)
        ]
        values, spec = pytree.tree_flatten(result)
        outputs = {id(value): place for place, value in enumerate(watching.outputs)}
        found = [
            ("output", outputs[id(value)])
            if id(value) in outputs
            else ("input", leaves[id(value)])
            if isinstance(value, torch.Tensor) and id(value) in leaves
            else ("constant", value)
            for value in values
        ]
        graph = ExportedGraph(watching.graph, attributes, places, (found, spec))
        return ExportResult(graph, heard.guards[-1][1])

    return inner(*extra_args) if extra_args else inner


def _inputs(graph_module: torch.fx.GraphModule) -> list[torch.fx.Node]:
    return [node for node in graph_module.graph.nodes if node.op == "placeholder"]


def _place(value: Any, node: torch.fx.Node, leaves: dict[int, int], attributes: dict[str, Any]) -> int | str:
    if id(value) in leaves:
        return leaves[id(value)]
    attributes[f"input_{node.name}"] = value
    return f"input_{node.name}"
