"""Max pools of a joint graph whose indices only their own backward reads save a byte for each window.

ATen's index is an int64, the place of a maximum in its plane. The place in the window is as good, and takes one byte
(`program.operators.pooling_operators`). This comes before layouts are chosen: which element a window of nothing but
minus infinity has as its maximum depends on the layout in eager.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from ... import operator_functions as operator
from ...program.operators.pooling_operators import WITH_OFFSETS, WITH_OFFSETS_BACKWARD
from ..graph_nodes import value_of

aten = torch.ops.aten
Node = torch.fx.Node
LARGEST_WINDOW = 127  # places, which an int8 counts


def save_offsets(module: torch.fx.GraphModule) -> None:
    graph = module.graph
    for node in graph.find_nodes(op="call_function", target=aten.max_pool2d_with_indices.default):
        backward = readers_of_indices(node)
        if backward and all(is_backward_of(one, node) for one in backward) and has_plain_sizes(node):
            rewrite(node, backward)


def readers_of_indices(node: Node) -> list[Node]:
    parts = [user for user in node.users if user.target is operator.getitem and user.args[1] == 1]
    return [user for part in parts for user in part.users]


def is_backward_of(reader: Node, node: Node) -> bool:
    """Whether a node is the pool's backward, with the same windows, and reads the indices as such."""
    if reader.target is not aten.max_pool2d_with_indices_backward.default or len(reader.args) != 8:
        return False
    gradient, _, *windows, indices = reader.args
    is_own = isinstance(indices, Node) and indices.args[:1] == (node,) and gradient is not indices
    return is_own and windows_of(windows) == windows_of(node.args[1:])


def has_plain_sizes(node: Node) -> bool:
    values, _ = node.meta["val"]
    if node.kwargs:
        return False
    (rows, columns), _, padding, dilation, _ = windows_of(node.args[1:])
    if rows * columns > LARGEST_WINDOW or (any(padding) and any(one != 1 for one in dilation)):
        return False
    if values.dim() != 4 or not values.is_floating_point():
        return False
    return all(isinstance(size, int) for size in (*node.all_input_nodes[0].meta["val"].shape, *values.shape))


def windows_of(given: Sequence[Any]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...], bool]:
    """Size, step, padding and dilation on two axes, and whether the number of windows is rounded up."""
    defaults: list[Any] = [[], 0, 1, False]
    size, step, padding, dilation, is_rounded_up = [*given, *defaults[len(given) - 1 :]]
    return pair(size), pair(step or size), pair(padding), pair(dilation), bool(is_rounded_up)


def pair(given: Any) -> tuple[int, ...]:
    numbers = [given] if isinstance(given, int) else list(given)
    return (numbers[0], numbers[-1])


def rewrite(node: Node, backward: list[Node]) -> None:
    """Both operators in place: the nodes keep their names, by which another backward finds saved values."""
    windows = tuple(list(one) if isinstance(one, tuple) else one for one in windows_of(node.args[1:]))
    source, value = node.args[0], node.meta["val"]
    given: Any = source.meta["val"]  # type: ignore[union-attr]
    is_last = given.is_contiguous(memory_format=torch.channels_last) and not given.is_contiguous()
    found = value_of(WITH_OFFSETS, (source, *windows, is_last), {})
    if found[0].stride() != value[0].stride() or found[0].shape != value[0].shape:
        return
    changed: list[tuple[Node, tuple[Any, ...]]] = []
    for one in backward:
        gradient, tensor, indices = one.args[0], one.args[1], one.args[-1]
        layout = torch.channels_last if is_last else torch.contiguous_format
        if not one.meta["val"].is_contiguous(memory_format=layout):
            return
        shape = list(tensor.meta["val"].shape)  # type: ignore[union-attr]
        changed.append((one, (gradient, indices, shape, *windows)))
    node.target, node.args, node.kwargs = WITH_OFFSETS, (source, *windows, is_last), {}
    node.meta["val"] = (value[0], found[1])
    for user in node.users:
        user.meta["val"] = node.meta["val"][user.args[1]]
    for one, args in changed:
        one.target, one.args, one.kwargs = WITH_OFFSETS_BACKWARD, args, {}
