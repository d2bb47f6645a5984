"""Removes dead code, aliases, double transposes, and reads of tensors for their shape only."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from ...platform.torch_operators import operator_name
from .node_values import Node, first_argument, is_tensor
from .recompute_cost import has_effect

aten = torch.ops.aten

IDENTITIES = frozenset({aten.detach.default, aten.alias.default})
OWN_INVERSES = frozenset({aten.t.default, aten.transpose.int, aten._conj.default, aten._neg_view.default})


def eliminate_dead(graph: torch.fx.Graph) -> None:
    """Remove nodes without effects whose results are not read."""
    for node in reversed(graph.nodes):
        if not node.users and node.op not in ("placeholder", "output") and not has_effect(node):
            graph.erase_node(node)


def clean_up(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Read through aliases and transposes of transposes, then remove dead code.

    What is only filled is made from a shape, so that the tensor that it is like need not be saved. A node that is
    itself a result stays: returning an alias of an input is not returning the input. The module's text is not renewed.
    """
    graph = module.graph
    for node in graph.nodes:
        replacement = read_through(node)
        if replacement is not None:
            node.replace_all_uses_with(replacement, delete_user_cb=lambda user: user.op != "output")
        elif node.target in FILLS:
            fill_without_reading(node)
    eliminate_dead(graph)
    return module


def read_through(node: Node) -> Node | None:
    if node.op != "call_function":
        return None
    if node.target in IDENTITIES:
        return first_argument(node)
    if node.target in OWN_INVERSES:
        inner = first_argument(node)
        if inner.target is node.target and transposed_dims(inner) == transposed_dims(node):
            return first_argument(inner)
    return None


# Operators that read only a tensor's properties: the operator that takes a shape instead, and the fill value's place.
FILLS = {
    aten.full_like.default: (aten.full.default, 1),
    aten.zeros_like.default: (aten.zeros.default, None),
    aten.ones_like.default: (aten.ones.default, None),
    aten.empty_like.default: (aten.empty.memory_format, None),
    aten.new_full.default: (aten.full.default, 2),
    aten.new_zeros.default: (aten.zeros.default, None),
    aten.new_ones.default: (aten.ones.default, None),
    aten.new_empty.default: (aten.empty.memory_format, None),
}


def fill_without_reading(node: Node) -> None:
    """Make a tensor from a shape instead of like another tensor. The node keeps its name."""
    value: Any = node.meta.get("val")
    like: Any = node.args[0]
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or not has_default_strides(value):
        return
    if not is_tensor(like) or type(like.meta["val"]) is not type(value):
        return
    target: Any = node.target
    given: tuple[Any, ...] = node.args
    if target in LIKE and not has_default_strides(like.meta["val"]):
        return  # the real kernel keeps strides that the fake one does not
    function, number = FILLS[target]
    shape = [size_node(node, like, dim) for dim in range(value.dim())] if target in LIKE else list(given[1])
    numbers = () if number is None else (given[number],)
    node.target, node.args = function, (shape, *numbers)
    node.kwargs = {"dtype": value.dtype, "layout": value.layout, "device": value.device, "pin_memory": False}


def has_default_strides(value: torch.Tensor) -> bool:
    """Whether a tensor has the strides that one made from its shape has, also where the size is 1."""
    if not value.is_contiguous():
        return False
    expected: Any = 1
    for size, stride in zip(reversed(value.shape), reversed(value.stride()), strict=True):
        if isinstance(size, int) and size == 1 and not (isinstance(expected, int) and stride == expected):
            return False
        expected = expected * size if not isinstance(size, int) or size else expected
    return True


LIKE = frozenset({target for target in FILLS if operator_name(target).endswith("_like")})


def size_node(node: Node, like: Node, dim: int) -> Any:
    size = like.meta["val"].shape[dim]
    if not isinstance(size, torch.SymInt):
        return size
    with node.graph.inserting_before(node):
        made = node.graph.create_node("call_function", aten.sym_size.int, (like, dim), {}, f"{node.name}_size_{dim}")
    made.meta = {key: node.meta[key] for key in ("region", "stack_trace", "seq_nr") if key in node.meta} | {"val": size}
    return made


def transposed_dims(node: Node) -> list[int]:
    """The dimensions that a transpose swaps, counted from the front."""
    rank = node.meta["val"].dim() if is_tensor(node) else 0
    return sorted([dim % rank if rank and isinstance(dim, int) else id(dim) for dim in node.args[1:]])
