"""Borders: padding, and its relatives that set a part of a tensor (``*_scatter``) or give a part's gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kiln.loops import tensor_views
from kiln.loops.sizes import Size, is_empty
from kiln.loops.tensor_views import Tensor

from ...builders import cast, full, pointwise, positions, scalar, size_tensor, where
from ...lowering import Lowering
from ...registry import NotLowered, lowers
from ..pointwise.formulas import as_type
from .index_helpers import all_masks, concatenated, identity_rows, lookup, positive_axis, range_mask, shape_of, write_at
from .view_operators import diagonal_rows, from_front, slice_start

aten = torch.ops.aten
Node = torch.fx.Node


def pad(tensor: Tensor, shape: Sequence[Size], starts: Sequence[Size], outside: Tensor) -> Tensor:
    """The tensor within a greater space, from these positions on; elsewhere what ``outside`` is."""
    if is_empty(tensor.shape):
        return tensor_views.expand(outside, shape)
    ends = [start + size for start, size in zip(starts, tensor.shape, strict=True)]
    inside = all_masks([range_mask(shape, dim, start, ends[dim]) for dim, start in enumerate(starts)])
    there = tensor_views.shift(tensor, shape, starts)
    if inside is None:
        return there
    return where(inside, tensor_views.masked(there, inside), outside)


@lowers(aten.constant_pad_nd.default)
def constant_pad_nd(lowering: Lowering, node: Node, tensor: Tensor, pads: Sequence[Size], value: Any = 0) -> Tensor:
    starts: list[Size] = [0] * tensor.rank
    for place in range(len(pads) // 2):
        starts[tensor.rank - 1 - place] = pads[2 * place]
    return pad(tensor, shape_of(node), starts, as_type(value, tensor.dtype))


# ---- borders that come from the tensor -------------------------------------------------------------------------------


def reflected(position: Tensor, size: Size) -> Tensor:
    last = size_tensor(size - 1)
    return pointwise("sub", last, pointwise("abs", pointwise("sub", last, pointwise("abs", position))))


def replicated(position: Tensor, size: Size) -> Tensor:
    least = pointwise("maximum", position, scalar(0, torch.int64))
    return pointwise("minimum", least, size_tensor(size - 1))


def border_rows(shape: Sequence[Size], sizes: Sequence[Size], pads: Sequence[Size], replicates: bool) -> list[Any]:
    """Where in a tensor of these sizes the elements of the padded shape come from."""
    rows = identity_rows(len(shape))
    for place in range(len(pads) // 2):
        dim = len(shape) - 1 - place
        if pads[2 * place] != 0 or pads[2 * place + 1] != 0:
            position = positions(shape, dim, -pads[2 * place])
            rows[dim] = (replicated if replicates else reflected)(position, sizes[dim])
    return rows


def border_pieces(tensor: Tensor, before: Size, after: Size, replicates: bool) -> list[Tensor]:
    """Along the innermost axis the borders are views: constant, or run through backwards."""
    dim = tensor.rank - 1
    size = tensor.shape[dim]

    def border(width: Size, start: Size) -> Tensor:
        rows = identity_rows(tensor.rank)
        rows[dim] = ({} if replicates else {dim: -1}, start)
        return tensor_views.affine(tensor, [*tensor.shape[:-1], width], rows)

    pieces = [border(before, 0 if replicates else before), tensor, border(after, size - (1 if replicates else 2))]
    return [piece for piece in pieces if not is_empty(piece.shape)]


def lower_border(forward: Any, backward: Any, replicates: bool) -> None:
    @lowers(forward)
    def pad_border(lowering: Lowering, node: Node, tensor: Tensor, pads: Sequence[Size]) -> Tensor:
        shape = shape_of(node)
        if tensor.dtype is torch.bool:
            raise NotLowered("bools, of which eager has only some")
        if is_empty(shape):
            return full(shape, 0, tensor.dtype)
        if any(isinstance(width, int) and width < 0 for width in pads):
            return lookup(lowering, tensor, shape, border_rows(shape, tensor.shape, pads, replicates))
        outer = [*shape[:-1], tensor.shape[-1]]
        rows = border_rows(outer, tensor.shape, [0, 0, *pads[2:]], replicates)
        padded = lookup(lowering, tensor, outer, rows)
        return concatenated(
            lowering, node.meta["val"], border_pieces(padded, pads[0], pads[1], replicates), len(shape) - 1
        )

    @lowers(backward)
    def pad_border_backward(
        lowering: Lowering, node: Node, gradient: Tensor, tensor: Tensor, pads: Sequence[Size]
    ) -> Tensor:
        if tensor.dtype in (torch.float16, torch.bfloat16):
            raise NotLowered("sums whose order is the operator's")
        found = lowering.materialize(full(tensor.shape, 0, tensor.dtype), node.meta["val"])
        rows = border_rows(gradient.shape, tensor.shape, pads, replicates)
        write_at(lowering, found, rows, gradient, "add")
        return found


for _rank in (1, 2, 3):
    for _name, _replicates in (("reflection", False), ("replication", True)):
        _operator = f"{_name}_pad{_rank}d"
        lower_border(getattr(aten, _operator).default, getattr(aten, f"{_operator}_backward").default, _replicates)


# ---- parts -----------------------------------------------------------------------------------------------------------


def at(shape: Sequence[Size], dim: int, index: Size) -> Tensor:
    """Where the position along an axis is this one."""
    return pointwise("eq", positions(shape, dim), size_tensor(index))


def set_selected(base: Tensor, value: Tensor, dim: int, index: Size) -> Tensor:
    here = at(base.shape, dim, index)
    spread = tensor_views.expand(tensor_views.unsqueeze(value, dim), base.shape)
    return where(here, tensor_views.masked(spread, here), base)


def set_slice(lowering: Lowering, node: Node, base: Tensor, value: Tensor, dim: int, start: Size, step: int) -> Tensor:
    if is_empty(value.shape):
        return base
    if step == 1:
        starts: list[Size] = [0] * base.rank
        starts[dim] = start
        return pad(value, base.shape, starts, base)
    found = lowering.materialize(base, node.meta["val"])
    rows = identity_rows(base.rank)
    rows[dim] = ({dim: step}, start)
    write_at(lowering, found, rows, value)
    return found


@lowers(aten.select_scatter.default)
def select_scatter(lowering: Lowering, node: Node, base: Tensor, value: Tensor, dim: int, index: Size) -> Tensor:
    dim = positive_axis(dim, base.rank)
    return set_selected(base, cast(value, base.dtype), dim, from_front(index, base.shape[dim]))


@lowers(aten.select_backward.default)
def select_backward(
    lowering: Lowering, node: Node, gradient: Tensor, sizes: Sequence[Size], dim: int, index: Size
) -> Tensor:
    base = full(shape_of(node), 0, gradient.dtype)
    dim = positive_axis(dim, base.rank)
    return set_selected(base, gradient, dim, from_front(index, base.shape[dim]))


@lowers(aten.slice_scatter.default)
def slice_scatter(
    lowering: Lowering,
    node: Node,
    base: Tensor,
    value: Tensor,
    dim: int = 0,
    start: Size | None = None,
    end: Size | None = None,
    step: int = 1,
) -> Tensor:
    dim = positive_axis(dim, base.rank)
    start = slice_start(node, 0, dim, base.shape[dim], start)
    return set_slice(lowering, node, base, cast(value, base.dtype), dim, start, step)


@lowers(aten.slice_backward.default)
def slice_backward(
    lowering: Lowering,
    node: Node,
    gradient: Tensor,
    sizes: Sequence[Size],
    dim: int,
    start: Size,
    end: Size,
    step: int,
) -> Tensor:
    base = full(shape_of(node), 0, gradient.dtype)
    dim = positive_axis(dim, base.rank)
    size = base.shape[dim]
    if isinstance(start, int) and isinstance(size, int):
        start = min(max(start + size if start < 0 else start, 0), size)
    return set_slice(lowering, node, base, gradient, dim, from_front(start, size), step)


@lowers(aten.diagonal_scatter.default)
def diagonal_scatter(
    lowering: Lowering, node: Node, base: Tensor, value: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Tensor:
    found = lowering.materialize(base, node.meta["val"])
    write_at(lowering, found, diagonal_rows(base.rank, offset, dim1, dim2), cast(value, base.dtype))
    return found


@lowers(aten.diagonal_backward.default)
def diagonal_backward(
    lowering: Lowering, node: Node, gradient: Tensor, sizes: Sequence[Size], offset: int, dim1: int, dim2: int
) -> Tensor:
    return diagonal_scatter(lowering, node, full(shape_of(node), 0, gradient.dtype), gradient, offset, dim1, dim2)


@lowers(aten.diag_embed.default)
def diag_embed(
    lowering: Lowering, node: Node, tensor: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1
) -> Tensor:
    base = full(shape_of(node), 0, tensor.dtype)
    return diagonal_scatter(lowering, node, base, tensor, offset, dim1, dim2)
