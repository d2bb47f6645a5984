"""Scans: cumulative sums, products and extremes.

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

from ...builders import cast, full, pointwise, positions, scalar, where
from ...lowering import Lowering
from ...registry import NotLowered, lowers
from ..pointwise.formulas import result_type
from .reduction_helpers import moment_type

aten = torch.ops.aten
Node = torch.fx.Node


def scanned(lowering: Lowering, value: Tensor, kind: str, axis: int, like: torch.Tensor) -> Tensor:
    """The scan of a value along an axis, in memory that is laid out like a tensor."""
    buffer = lowering.new_buffer(value.dtype, value.shape, sizes_of(like.stride()) if is_dense(like) else None)
    place = Access(buffer, buffer.strides, 0)
    lowering.write(Write(place, value.shape, value.expr, kind, (axis,), is_scan=True))
    return load_whole(buffer)


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
    found = scanned(lowering, value, kind, axis, like)
    return found if value.dtype is dtype else lowering.materialize(cast(found, dtype), like)


@lowers(aten.cumsum.default)
def cumulative_sum(lowering: Lowering, node: Node, tensor: Tensor, dim: int, *, dtype: Any) -> Tensor:
    return scan(lowering, node, tensor, "sum", dim)


@lowers(aten.cumprod.default)
def cumulative_product(lowering: Lowering, node: Node, tensor: Tensor, dim: int, *, dtype: Any) -> Tensor:
    return scan(lowering, node, tensor, "prod", dim)


# ---- extremes --------------------------------------------------------------------------------------------------------


def extremes(lowering: Lowering, node: Node, tensor: Tensor, kind: str, dim: int) -> tuple[Tensor, Tensor]:
    """The greatest (least) values so far, and the place of the last of them; of NaN, the last one's."""
    if lowering.device.type == "cpu" or tensor.dtype is torch.bool or not tensor.rank or is_empty(tensor.shape):
        raise NotLowered("extremes on CPUs, of truth values, or of nothing")
    axis, (like, like_places) = dim % tensor.rank, node.meta["val"]
    tensor = lowering.in_memory(tensor)
    values = scanned(lowering, tensor, kind, axis, like)
    is_new = pointwise("ge" if kind == "max" else "le", tensor, values)
    if tensor.dtype.is_floating_point:
        is_new = pointwise("or", is_new, pointwise("isnan", tensor))
    candidate = where(is_new, positions(tensor.shape, axis), scalar(0, torch.int64))
    return values, scanned(lowering, candidate, "max", axis, like_places)


@lowers(aten.cummax.default)
def cumulative_maximum(lowering: Lowering, node: Node, tensor: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    return extremes(lowering, node, tensor, "max", dim)


@lowers(aten.cummin.default)
def cumulative_minimum(lowering: Lowering, node: Node, tensor: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    return extremes(lowering, node, tensor, "min", dim)
