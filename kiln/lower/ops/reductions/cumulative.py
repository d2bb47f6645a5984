"""Scans: cumulative sums and products.

ATen goes along the axis one element after another, and carries float32 in float64, float16 and bfloat16 in float32
(`moment_type`); so do these, to the same bits.
"""

from __future__ import annotations

from typing import Any

import torch

from kiln.loops.ir import Access, Write
from kiln.loops.sizes import is_empty, is_one
from kiln.loops.tensor_layouts import is_dense, load_whole, sizes_of
from kiln.loops.tensor_views import Tensor

from ...builders import cast, full, pointwise, scalar
from ...lowering import Lowering
from ...registry import NotLowered, lowers
from ..pointwise.formulas import result_type
from .reduction_helpers import moment_type

aten = torch.ops.aten
Node = torch.fx.Node


def scan(lowering: Lowering, node: Node, tensor: Tensor, kind: str, dim: int) -> Tensor:
    dtype = result_type(node)
    if dtype is torch.bool:
        raise NotLowered("a sum of truth values as one")
    tensor = cast(tensor, dtype)
    if not tensor.rank:
        return tensor
    if is_empty(tensor.shape):
        return full(tensor.shape, 0, dtype)
    axis, value = dim % tensor.rank, cast(tensor, moment_type(lowering, dtype))
    if is_one(tensor.shape[axis]):
        return cast(pointwise("add", scalar(0, value.dtype), value), dtype) if kind == "sum" else tensor
    like = node.meta["val"]
    buffer = lowering.new_buffer(value.dtype, value.shape, sizes_of(like.stride()) if is_dense(like) else None)
    place = Access(buffer, buffer.strides, 0)
    lowering.write(Write(place, value.shape, value.expr, kind, (axis,), is_scan=True))
    return load_whole(buffer) if value.dtype is dtype else lowering.materialize(cast(load_whole(buffer), dtype), like)


@lowers(aten.cumsum.default)
def cumulative_sum(lowering: Lowering, node: Node, tensor: Tensor, dim: int, *, dtype: Any) -> Tensor:
    return scan(lowering, node, tensor, "sum", dim)


@lowers(aten.cumprod.default)
def cumulative_product(lowering: Lowering, node: Node, tensor: Tensor, dim: int, *, dtype: Any) -> Tensor:
    return scan(lowering, node, tensor, "prod", dim)
