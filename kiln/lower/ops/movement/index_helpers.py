"""What lowerings of shapes and indices share: shapes of results, axes, positions, and writes into part of a buffer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kiln.loops import tensor_views
from kiln.loops.ir import HALF_TYPES, Access, Write
from kiln.loops.sizes import Size, same
from kiln.loops.tensor_layouts import sizes_of
from kiln.loops.tensor_views import Row, Tensor

from ...builders import pointwise, positions, size_tensor
from ...costs import CHEAP_LOADS, CHEAP_OPERATIONS, cost_of
from ...lowering import Lowering
from ...pieces import joined, write_pieces
from ...registry import NotLowered


def shape_of(node: torch.fx.Node) -> tuple[Size, ...]:
    """The shape of a node's result."""
    return sizes_of(node.meta["val"].shape)


def positive_axis(dim: int, rank: int) -> int:
    """An axis counted from the front; a number has one."""
    return dim % max(rank, 1)


def identity_rows(rank: int) -> list[Any]:
    """The rows of no change, to be changed (see `tensor_views.affine`)."""
    return [({d: 1}, 0) for d in range(rank)]


def range_mask(shape: Sequence[Size], dim: int, start: Size, end: Size) -> Tensor | None:
    """Where the position along an axis is from start to end; None where that is everywhere."""
    here = positions(shape, dim)
    parts = []
    if not (isinstance(start, int) and start <= 0):
        parts.append(pointwise("ge", here, size_tensor(start)))
    if not same(end, shape[dim]):
        parts.append(pointwise("lt", here, size_tensor(end)))
    return all_masks(parts)


def all_masks(masks: Sequence[Tensor | None]) -> Tensor | None:
    found: Tensor | None = None
    for mask in masks:
        if mask is not None:
            found = mask if found is None else pointwise("and", found, mask)
    return found


def lookup(lowering: Lowering, source: Tensor, shape: Sequence[Size], rows: Sequence[Row | Tensor]) -> Tensor:
    """`tensor_views.indexed`; a costly source is materialized first."""
    operations, loads, costly = cost_of(source.expr)
    if costly or operations > CHEAP_OPERATIONS or loads > CHEAP_LOADS:
        source = lowering.in_memory(source)
    return tensor_views.indexed(source, shape, rows)


def concatenated(lowering: Lowering, like: torch.Tensor | None, pieces: Sequence[Tensor], dim: int) -> Tensor:
    """The concatenation of pieces along an axis; each piece is computed in its place in memory."""
    if len(pieces) == 1:
        return pieces[0]
    return write_pieces(lowering, joined(pieces, dim), like)


def write_at(
    lowering: Lowering,
    made: Tensor,
    rows: Sequence[Row | Tensor],
    value: Tensor,
    accumulate: str | None = None,
    mask: Tensor | None = None,
    rounds_each: bool = False,
) -> None:
    """Write a value over its own space (where the mask is true) into a buffer that was just made, at the places that
    the rows say. ``rounds_each``: on GPUs, eager rounds each sum to the type."""
    there = tensor_views.indexed(made, value.shape, rows)
    access: Access = there.expr.payload
    if lowering.device.type == "cuda" and (accumulate is not None or access.indirect):
        refuse_unordered(made.dtype, accumulate, rounds_each)
    if mask is not None:
        access = Access(access.buffer, access.strides, access.offset, access.indirect, mask.expr)
    lowering.write(Write(access, value.shape, value.expr, accumulate=accumulate))


def refuse_unordered(dtype: torch.dtype, accumulate: str | None, rounds_each: bool) -> None:
    """Threads of a GPU write in no order. Where eager writes in one, or adds in a wider type, ATen does it."""
    if torch.are_deterministic_algorithms_enabled():
        raise NotLowered("writes in an order that deterministic algorithms keep")
    if accumulate in ("add", "mul") and dtype in HALF_TYPES and not rounds_each:
        raise NotLowered("sums that eager rounds in its own way")
