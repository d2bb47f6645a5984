"""Adds the gradient of an embedding to another gradient of its weight in place: weights that a model uses twice.

``other + embedding_dense_backward(...)`` fills a tensor of the weight's size with zeros, adds rows to it, and adds all
of it to the other. Rows can as well be added to a copy of the other one, which is written anyway.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from ...aot.partition.graph_cleanup import eliminate_dead

aten = torch.ops.aten
Node = torch.fx.Node


def add_to_embedding_gradients(module: torch.fx.GraphModule) -> None:
    changed = False
    for node in module.graph.find_nodes(op="call_function", target=aten.add.Tensor):
        for place in (1, 0):
            if add_rows(node, node.args[place], node.args[1 - place]):
                changed = True
                break
    if changed:
        eliminate_dead(module.graph)


def add_rows(node: Node, gradient: Any, other: Any) -> bool:
    if not (isinstance(gradient, Node) and isinstance(other, Node)) or node.kwargs or len(gradient.users) > 1:
        return False
    if gradient.target is not aten.embedding_dense_backward.default:
        return False
    rows, indices, _, padding, is_scaled = gradient.args
    value, given = node.meta["val"], other.meta.get("val")
    if is_scaled is not False or padding != -1 or not isinstance(given, torch.Tensor) or given.shape != value.shape:
        return False
    if not all(one.dtype is torch.float32 for one in (value, given, rows.meta["val"])):  # type: ignore[union-attr]
        return False
    with node.graph.inserting_before(node):
        made = node.graph.call_function(aten.index_put.default, (other, [indices], rows, True))
    made.meta = dict(node.meta)
    node.replace_all_uses_with(made)
    return True
