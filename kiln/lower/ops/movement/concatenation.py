"""Concatenation, repetition and rolling of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kiln.loops import tensor_views
from kiln.loops.sizes import Size, is_empty, is_one, product
from kiln.loops.tensor_views import Tensor

from ...builders import full, pointwise, positions, size_tensor, where
from ...lowering import Lowering
from ...pieces import Pieces, converted, joined, may_wait, unsqueezed, write_pieces
from ...registry import lowers
from .index_helpers import concatenated, identity_rows, lookup, positive_axis, range_mask, shape_of

aten = torch.ops.aten
Node = torch.fx.Node


@lowers(aten.cat.default)
def cat(lowering: Lowering, node: Node, tensors: Sequence[Tensor | Pieces], dim: int = 0) -> Tensor | Pieces:
    value = node.meta["val"]
    # An empty vector goes with everything, for what was once allowed.
    parts = [converted(part, value.dtype) for part in tensors if not is_empty(part.shape)]
    if not parts:
        return full(shape_of(node), 0, value.dtype)
    if len(parts) == 1 and isinstance(parts[0], Tensor):
        return parts[0]
    found = joined(parts, positive_axis(dim, value.dim()))
    if lowering.device.type == "cuda" and may_wait(found):
        return found
    return write_pieces(lowering, found, value)


@lowers(aten.stack.default)
def stack(lowering: Lowering, node: Node, tensors: Sequence[Tensor | Pieces], dim: int = 0) -> Tensor | Pieces:
    place = dim % len(shape_of(node))
    return cat(lowering, node, [unsqueezed(tensor, place) for tensor in tensors], place)


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
    return lowering.reshape(tensor_views.expand(lowering.reshape(tensor, single), many), shape)


@lowers(aten.roll.default)
def roll(lowering: Lowering, node: Node, tensor: Tensor, shifts: Sequence[Any], dims: Sequence[int] = ()) -> Tensor:
    if is_empty(tensor.shape) or not tensor.rank:
        return tensor
    if not dims:
        flat = lowering.reshape(tensor, [product(tensor.shape)])
        return lowering.reshape(roll_axis(lowering, flat, 0, shifts[0]), tensor.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        tensor = roll_axis(lowering, tensor, dim % tensor.rank, shift)
    return tensor


def roll_axis(lowering: Lowering, tensor: Tensor, dim: int, shift: Size) -> Tensor:
    """Along the innermost axis two pieces change places; along others each row is looked up where it is."""
    size = tensor.shape[dim]
    shift = shift % size
    if isinstance(shift, int) and shift == 0:
        return tensor
    if dim == tensor.rank - 1:
        end, start = (
            tensor_views.slice_(tensor, dim, size - shift, shift),
            tensor_views.slice_(tensor, dim, 0, size - shift),
        )
        return concatenated(lowering, None, [end, start], dim)
    wrapped = range_mask(tensor.shape, dim, 0, shift)
    assert wrapped is not None
    here = positions(tensor.shape, dim, -shift)
    rows = identity_rows(tensor.rank)
    rows[dim] = where(wrapped, pointwise("add", here, size_tensor(size)), here)
    return lookup(lowering, tensor, tensor.shape, rows)
