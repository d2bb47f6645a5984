"""Elements looked up by indices that are data: embedding, gather, index_select, take and ``x[i, :, j]``.

All indices go through `index_checks.checked_index`: what is out of range is never read, and raises what eager raises.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kiln.loops import tensor_views
from kiln.loops.sizes import Size, is_empty, is_one, product
from kiln.loops.tensor_views import Tensor

from ... import index_checks
from ...builders import broadcast_shape, full
from ...index_checks import checked_index
from ...lowering import Lowering
from ...registry import NotLowered, lowers
from .index_helpers import identity_rows, lookup, positive_axis, shape_of

aten = torch.ops.aten
Node = torch.fx.Node
INDEX_TYPES = (torch.int64, torch.int32)


def found(lowering: Lowering, source: Tensor, shape: Sequence[Size], rows: Sequence[Any]) -> Tensor:
    """What is looked up; nothing, where there is nothing to look up or to look in."""
    if is_empty(shape) or is_empty(source.shape):
        return full(shape, 0, source.dtype)
    return lookup(lowering, source, shape, rows)


def broadcast_index(index: Tensor, shape: Sequence[Size], first: int) -> Tensor:
    """An index over a greater space, its own axes from ``first`` on."""
    rows = [({} if is_one(size) else {first + d: 1}, 0) for d, size in enumerate(index.shape)]
    return tensor_views.affine(index, shape, rows)


@lowers(aten.embedding.default)
def embedding(lowering: Lowering, node: Node, weight: Tensor, indices: Tensor, *_: Any) -> Tensor:
    shape = shape_of(node)
    index = broadcast_index(checked_index(lowering, indices, weight.shape[0], index_checks.OUT_OF_SELF), shape, 0)
    return found(lowering, weight, shape, [index, ({len(shape) - 1: 1}, 0)])


@lowers(aten.index_select.default)
def index_select(lowering: Lowering, node: Node, tensor: Tensor, dim: int, index: Tensor) -> Tensor:
    if not tensor.rank:
        raise NotLowered("of a number")
    if not index.rank:
        index = tensor_views.unsqueeze(index, 0)
    dim = positive_axis(dim, tensor.rank)
    shape = shape_of(node)
    rows = identity_rows(tensor.rank)
    # Eager looks up rows and columns in different ways, each with its own error.
    message = index_checks.OUT_OF_DATA if dim == 1 and tensor.rank == 2 else index_checks.OUT_OF_SELF
    rows[dim] = broadcast_index(checked_index(lowering, index, tensor.shape[dim], message), shape, dim)
    return found(lowering, tensor, shape, rows)


@lowers(aten.gather.default)
def gather(
    lowering: Lowering, node: Node, tensor: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False
) -> Tensor:
    dim = positive_axis(dim, tensor.rank)
    shape = shape_of(node)
    if is_empty(shape):
        return full(shape, 0, tensor.dtype)
    if not tensor.rank:
        tensor = tensor_views.unsqueeze(tensor, 0)
    over = tensor_views.unsqueeze(index, 0) if not index.rank else index
    rows = identity_rows(tensor.rank)
    rows[dim] = checked_index(lowering, over, tensor.shape[dim], index_checks.OUT_OF_BOUNDS_OF_GATHER % dim)
    return lowering.reshape(found(lowering, tensor, over.shape, rows), shape)


@lowers(aten.take.default)
def take(lowering: Lowering, node: Node, tensor: Tensor, index: Tensor) -> Tensor:
    size = product(tensor.shape)
    flat = lowering.reshape(tensor, [size])
    return found(
        lowering, flat, index.shape, [checked_index(lowering, index, size, index_checks.OUT_OF_ELEMENTS, wraps=True)]
    )


# ---- several indices -------------------------------------------------------------------------------------------------


class AdvancedIndex:
    """Which elements of a tensor ``tensor[indices]`` is: over which shape, and how their positions are made.

    The axes of the indices come where the indices stand, or first of all where they do not stand together.
    """

    def __init__(self, lowering: Lowering, sizes: Sequence[Size], indices: Sequence[Tensor | None]) -> None:
        given = {d: index for d, index in enumerate(indices) if index is not None}
        if any(index.dtype not in INDEX_TYPES for index in given.values()):
            raise NotLowered("an index that is a mask")
        if not given:
            raise NotLowered("no index")
        common = broadcast_shape(*(index.shape for index in given.values()))
        is_adjacent = list(given) == list(range(min(given), max(given) + 1))
        self.first = min(given) if is_adjacent else 0
        rest = [d for d in range(len(sizes)) if d not in given]
        kept = [sizes[d] for d in rest]
        self.shape: tuple[Size, ...] = (*kept[: self.first], *common, *kept[self.first :])
        self.rows: list[Any] = identity_rows(len(sizes))
        for place, d in enumerate(rest):
            self.rows[d] = ({place + (len(common) if place >= self.first else 0): 1}, 0)
        self.is_empty = is_empty(self.shape)
        if self.is_empty:
            return
        for place, (d, index) in enumerate(given.items()):
            safe = checked_index(lowering, index, sizes[d], index_checks.OUT_OF_BOUNDS % place, wraps=True)
            self.rows[d] = broadcast_index(safe, self.shape, self.first + len(common) - index.rank)


@lowers(aten.index.Tensor, aten._unsafe_index.Tensor)
def index(lowering: Lowering, node: Node, tensor: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    places = AdvancedIndex(lowering, tensor.shape, indices)
    return found(lowering, tensor, places.shape, places.rows)
