"""The rules: where a library call has alternatives.

Both rules leave out the rounding of an intermediate result to a low type, as eager would have it if it computed in one
step. Their results are closer to the exact ones than eager's, by up to half a unit of the low type. In float16 an
intermediate result may be infinite, which programs look for (GradScaler), so it is kept there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...platform.torch_operators import overload_names
from ..graph_nodes import Node
from .alternatives import Alternative, Site, rule

aten = torch.ops.aten
LOW_TYPES = (torch.float16, torch.bfloat16)
SAME_RANGE = (torch.bfloat16,)  # as float32: what is not rounded is not infinite in eager
HAS_WIDE_RESULTS = "dtype" in overload_names(aten.mm)  # since torch 2.8


def only_reader(node: Any, target: Any) -> bool:
    """Whether a node calls an operator, and one node reads its result."""
    return isinstance(node, Node) and node.target is target and len(node.users) == 1


def is_low(node: Node, types: Sequence[torch.dtype] = LOW_TYPES) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype in types and value.device.type == "cuda"


@rule(aten._to_copy.default)
def product_in_float32(node: Node) -> Site | None:
    """A product in a low type whose only reader converts it to float32 for a result of the graph, as gradients of
    weights are under autocast: cuBLAS adds in float32 and can store that. (A kernel that goes on computing with the
    product converts it for nothing.)"""
    product: Any = node.args[0]
    if not HAS_WIDE_RESULTS or node.meta["val"].dtype is not torch.float32 or not is_low(product, SAME_RANGE):
        return None
    if not only_reader(product, aten.mm.default) or node.kwargs.get("memory_format") not in (
        None,
        torch.preserve_format,
    ):
        return None
    if any(user.op != "output" for user in node.users):
        return None
    inputs: Any = product.args

    def rounded(call: Any, a: Any, b: Any) -> Any:
        return call(aten._to_copy.default, call(aten.mm.default, a, b), dtype=torch.float32)

    def exact(call: Any, a: Any, b: Any) -> Any:
        return call(aten.mm.dtype, a, b, torch.float32)

    return Site(node, tuple(inputs), (Alternative("mm, cast", rounded), Alternative("mm.dtype", exact)), 1)


@rule(aten.relu.default, aten.gelu.default)
def activation_of_product(node: Node) -> Site | None:
    """An activation of a linear layer whose input nothing else reads: cuBLASLt applies it to what it stores."""
    source: Any = node.args[0]
    view = source if isinstance(source, Node) and source.target in VIEWS and len(source.users) == 1 else None
    linear: Any = view.args[0] if view is not None else source
    types = LOW_TYPES if node.target is aten.relu.default else SAME_RANGE
    if not only_reader(linear, aten.addmm.default) or not is_low(linear, types) or linear.kwargs:
        return None
    if node.target is aten.gelu.default and node.kwargs.get("approximate") != "tanh":
        return None  # cuBLASLt's is by tanh
    bias, a, b = linear.args
    if bias.meta["val"].dim() != 1:
        return None
    is_gelu, options = node.target is aten.gelu.default, dict(node.kwargs)
    shape = list(node.meta["val"].shape) if view is not None else None
    if shape is not None and not all(isinstance(size, int) for size in shape):
        return None
    target: Any = node.target

    def shaped(call: Any, given: Any) -> Any:
        return given if shape is None else call(aten.view.default, given, shape)

    def apart(call: Any, bias: Any, a: Any, b: Any) -> Any:
        return call(target, shaped(call, call(aten.addmm.default, bias, a, b)), **options)

    def together(call: Any, bias: Any, a: Any, b: Any) -> Any:
        return shaped(call, call(aten._addmm_activation.default, bias, a, b, use_gelu=is_gelu))

    names = Alternative("addmm, activation", apart), Alternative("addmm_activation", together)
    return Site(node, (bias, a, b), names, preferred=0, numbers=(is_gelu,))


VIEWS = frozenset({aten.view.default, aten._unsafe_view.default})
