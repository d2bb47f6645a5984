"""Tensors put together, repeated and rolled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .. import views
from ..build import cast, full, of_size, pointwise, positions, where
from ..ir import Access, Size, Write
from ..lowering import Lowering, is_dense, sizes_of, whole
from ..registry import lowers
from ..views import Tensor, is_one
from .places import along, axis, is_empty, lookup, number_of_elements, shape_of, within

aten = torch.ops.aten
Node = torch.fx.Node


@lowers(aten.cat.default)
def cat(lowering: Lowering, node: Node, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Each piece is computed where it belongs in the result."""
    value = node.meta["val"]
    shape = sizes_of(value.shape)
    # An empty vector goes with everything, for what was once allowed.
    pieces = [cast(piece, value.dtype) for piece in tensors if not is_empty(piece.shape)]
    if not pieces:
        return full(shape, 0, value.dtype)
    if len(pieces) == 1:
        return pieces[0]
    dim = axis(dim, len(shape))
    buffer = lowering.new_buffer(value.dtype, shape, sizes_of(value.stride()) if is_dense(value) else None)
    start: Size = 0
    for piece in pieces:
        place = Access(buffer, buffer.strides, start * buffer.strides[dim])
        lowering.write(Write(place, piece.shape, piece.expr))
        start = start + piece.shape[dim]
    return whole(buffer)


@lowers(aten.stack.default)
def stack(lowering: Lowering, node: Node, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    place = dim % len(shape_of(node))
    return cat(lowering, node, [views.unsqueeze(tensor, place) for tensor in tensors], place)


@lowers(aten.repeat.default)
def repeat(lowering: Lowering, node: Node, tensor: Tensor, repeats: Sequence[Size]) -> Tensor:
    shape = shape_of(node)
    if is_empty(shape):
        return full(shape, 0, tensor.dtype)
    sizes = [1] * (len(repeats) - tensor.rank) + list(tensor.shape)
    single: list[Size] = []
    many: list[Size] = []
    for size, count in zip(sizes, repeats, strict=True):
        if not is_one(size) and not is_one(count):
            single.append(1)
            many.append(count)
        single.append(size)
        many.append(count if is_one(size) else size)
    return lowering.reshape(views.expand(lowering.reshape(tensor, single), many), shape)


@lowers(aten.roll.default)
def roll(lowering: Lowering, node: Node, tensor: Tensor, shifts: Sequence[Any], dims: Sequence[int] = ()) -> Tensor:
    if is_empty(tensor.shape) or not tensor.rank:
        return tensor
    if not dims:
        flat = lowering.reshape(tensor, [number_of_elements(tensor.shape)])
        return lowering.reshape(roll_axis(lowering, flat, 0, shifts[0]), tensor.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        tensor = roll_axis(lowering, tensor, dim % tensor.rank, shift)
    return tensor


def roll_axis(lowering: Lowering, tensor: Tensor, dim: int, shift: Size) -> Tensor:
    """Along the innermost axis two loads, both contiguous, are better; along others one load from where it is."""
    size = tensor.shape[dim]
    shift = shift % size
    if isinstance(shift, int) and shift == 0:
        return tensor
    wrapped = within(tensor.shape, dim, 0, shift)
    assert wrapped is not None
    if dim < tensor.rank - 1:
        here = positions(tensor.shape, dim, -shift)
        rows = along(tensor.rank)
        rows[dim] = where(wrapped, pointwise("add", here, of_size(size)), here)
        return lookup(lowering, tensor, tensor.shape, rows)
    zeros = [0] * tensor.rank
    ends = [views.shift(tensor, tensor.shape, zeros[:dim] + [by]) for by in (shift - size, shift)]
    return where(wrapped, views.masked(ends[0], wrapped), views.masked(ends[1], pointwise("not", wrapped)))
