"""Changes to a joint graph before it is split into forward and backward, for GPUs.

A log-softmax becomes its formula, so that the backward has the greatest value of each row and the logarithm of its sum
saved. What is left to compute again is one pass over the elements; otherwise it would be three, two of them reductions.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from ...program.graph_device import device_of_graph
from ..graph_nodes import add_call

aten = torch.ops.aten
Node = torch.fx.Node
HALF_TYPES = (torch.float16, torch.bfloat16)


def rewrite_joint(module: torch.fx.GraphModule) -> None:
    if device_of_graph(module).type != "cuda":
        return
    for node in module.graph.find_nodes(op="call_function", target=aten._log_softmax.default):
        value = node.all_input_nodes[0].meta["val"]
        if value.dim() and value.is_floating_point() and all(type(size) is int and size for size in value.shape):
            write_log_softmax(module.graph, node)


def write_log_softmax(graph: torch.fx.Graph, node: Node) -> None:
    """The formula of the lowering (`lower.ops.reductions.softmax`), node by node, with names of their own."""
    source, dim, result = node.all_input_nodes[0], node.args[1], node.meta["val"]

    def emit(name: str, target: Any, *args: Any, **kwargs: Any) -> Node:
        return add_call(node, target, *args, name=f"{node.name}_{name}", **kwargs)

    def cast(name: str, value: Node, dtype: torch.dtype) -> Node:
        return value if value.meta["val"].dtype is dtype else emit(name, aten._to_copy.default, value, dtype=dtype)

    with graph.inserting_before(node):
        dtype = source.meta["val"].dtype
        value = cast("wide", source, torch.float32 if dtype in HALF_TYPES else dtype)
        most = emit("most", aten.amax.default, value, [dim], True)
        distance = emit("distance", aten.sub.Tensor, value, most)
        powers = emit("powers", aten.exp.default, distance)
        total = emit("total", aten.sum.dim_IntList, powers, [dim], True)
        found = emit("result", aten.sub.Tensor, distance, emit("log", aten.log.default, total))
        found = cast("narrow", found, result.dtype)
        if found.meta["val"].stride() != result.stride():  # the formula keeps the layout of the source
            found = emit("laid_out", aten.clone.default, found, memory_format=torch.contiguous_format)
    node.replace_all_uses_with(found)
    graph.erase_node(node)
