"""Changes to a joint graph before it is split into forward and backward, for GPUs.

A log-softmax becomes its formula, so that the backward has the greatest value of each row and the logarithm of its sum
saved. What is left to compute again is one pass over the elements; otherwise it would be three, two of them reductions.
"""

from __future__ import annotations

import torch
import torch.fx

from ..aot.partition.graph_writers import Emit
from ..program.graph_device import device_of_graph

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
    """The formula of the lowering (`lower.ops.reductions.softmax`), node by node."""
    source, dim = node.all_input_nodes[0], node.args[1]
    emit, result = Emit(graph, node), node.meta["val"].dtype

    def cast(value: Node, dtype: torch.dtype) -> Node:
        return value if value.meta["val"].dtype is dtype else emit(aten._to_copy.default, value, dtype=dtype)

    with graph.inserting_before(node):
        dtype = source.meta["val"].dtype
        value = cast(source, torch.float32 if dtype in HALF_TYPES else dtype)
        most = emit(aten.amax.default, value, [dim], True)
        distance = emit(aten.sub.Tensor, value, most)
        total = emit(aten.sum.dim_IntList, emit(aten.exp.default, distance), [dim], True)
        found = cast(emit(aten.sub.Tensor, distance, emit(aten.log.default, total)), result)
    node.replace_all_uses_with(found)
    graph.erase_node(node)
