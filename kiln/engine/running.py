"""Running a compiled backward pass without compiler: the graph itself, which lets go of its inputs as it uses them."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch.fx

from .text import comment


def consuming(module: torch.fx.GraphModule) -> Callable[..., Any]:
    """The graph as a function that empties the list of inputs once it has taken them out."""
    graph = torch.fx.Graph()
    result = graph.graph_copy(module.graph, {})
    inputs = next(iter(graph.nodes))
    last = inputs
    for node in graph.nodes:
        if node.op == "placeholder" or (node.target is operator.getitem and node.args[0] is inputs):
            last = node
    with graph.inserting_after(last):
        graph.call_method("clear", (inputs,))
    graph.output(result)
    comment(graph)
    return torch.fx.GraphModule(torch.nn.Module(), graph, "CompiledAutograd").forward
