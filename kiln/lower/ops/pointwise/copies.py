"""Copies and changes of type. A copy is the same expression; its layout is chosen where it is materialized."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from kiln.loops.ir import wide
from kiln.loops.tensor_views import Tensor, expand

from ... import builders
from ...lowering import Lowering
from ...registry import NotLowered, lowers, lowers_dynamic_floats
from .formulas import Operand, as_type, copy_if_visible

aten = torch.ops.aten


@lowers(aten._to_copy.default)
def to_copy(lowering: Lowering, node: Node, x: Tensor, **options: Any) -> Tensor:
    result = node.meta["val"]
    if options.get("pin_memory"):
        raise NotLowered("a copy to somewhere else")
    return builders.cast(x, result.dtype) if x.dtype is not result.dtype else copy_if_visible(lowering, node, x)


@lowers(aten.clone.default, aten.lift_fresh_copy.default)
def clone(lowering: Lowering, node: Node, x: Tensor, **options: Any) -> Tensor:
    return copy_if_visible(lowering, node, x)


@lowers(aten.copy.default)
def copy(lowering: Lowering, node: Node, x: Tensor, source: Operand, non_blocking: bool = False) -> Tensor:
    return copy_if_visible(lowering, node, expand(as_type(source, x.dtype), x.shape))


lowers_dynamic_floats([aten.copy.default])  # ``tensor.copy_(2)``


@lowers(aten.native_dropout_backward.default)
def native_dropout_backward(lowering: Lowering, node: Node, grad: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Twice multiplied, as ATen does it: by the mask, then by the scale (which is not rounded to the type)."""
    kept = builders.pointwise("mul", grad, builders.cast(mask, grad.dtype))
    inside = wide(grad.dtype)
    return builders.cast(
        builders.pointwise("mul", builders.cast(kept, inside), builders.scalar(scale, inside)), grad.dtype
    )
