"""Takes the bias out of convolutions on a GPU: ATen adds it, and sums its gradient, in passes of its own after cuDNN.

As operators of the graph these are parts of the kernels around the convolution. They are the same operators, so
results are the same.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from ... import operator_functions as operator
from ..graph_nodes import Node, add_call

aten = torch.ops.aten


def split_bias(module: torch.fx.GraphModule) -> None:
    for node in module.graph.find_nodes(op="call_function", target=aten.convolution.default):
        if is_on_gpu(node) and node.args[2] is not None and node.args[8] == 1:
            split_forward(node)
    for node in module.graph.find_nodes(op="call_function", target=aten.convolution_backward.default):
        if is_on_gpu(node.args[0]) and node.args[10][2] and node.args[9] == 1:
            split_backward(node)


def is_on_gpu(node: Any) -> bool:
    value = node.meta.get("val") if isinstance(node, Node) else None
    return isinstance(value, torch.Tensor) and value.device.type == "cuda" and value.dim() > 2


def split_forward(node: Node) -> None:
    source, weight, bias, *rest = node.args
    shape = [1, bias.meta["val"].shape[0], *[1] * (node.meta["val"].dim() - 2)]  # type: ignore[union-attr]
    with node.graph.inserting_before(node):
        plain = add_call(node, aten.convolution.default, source, weight, None, *rest, name=f"{node.name}_plain")
        column = add_call(node, aten.view.default, bias, shape, name=f"{node.name}_bias")
        total = add_call(node, aten.add.Tensor, plain, column, name=f"{node.name}_sum")
    node.replace_all_uses_with(total)


def split_backward(node: Node) -> None:
    gradient: Any = node.args[0]
    axes = [0, *range(2, gradient.meta["val"].dim())]
    mask: Any = node.args[10]
    with node.graph.inserting_before(node):
        total = add_call(node, aten.sum.dim_IntList, gradient, axes, name=f"{node.name}_bias")
        rest = (None, *node.args[4:10], [mask[0], mask[1], False])
        plain = add_call(node, node.target, *node.args[:3], *rest, name=f"{node.name}_plain")
    for user in list(node.users):
        if user.target is operator.getitem and user.args[1] == 2:
            user.replace_all_uses_with(total)
    node.replace_all_uses_with(plain)
