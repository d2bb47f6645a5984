"""Graphs of backward passes without a compiler: they run as they are, and free their inputs as they use them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.fx

from ... import operator_functions as operator
from ..trace.node_comments import add_comments


def consuming(module: torch.fx.GraphModule) -> Callable[..., Any]:
    """The graph as a function that empties its list of inputs after reading them."""
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
    add_comments(graph)
    return torch.fx.GraphModule(torch.nn.Module(), graph, "CompiledAutograd").forward
