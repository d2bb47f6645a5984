"""Sums over bags of embeddings: where all bags are of one size, which is what a matrix of indices means."""

from __future__ import annotations

from typing import Any

import torch

from kiln.loops import tensor_views
from kiln.loops.ir import HALF_TYPES
from kiln.loops.sizes import Size, is_empty, same
from kiln.loops.tensor_layouts import sizes_of
from kiln.loops.tensor_views import Tensor

from ... import index_checks
from ...builders import cast, full, pointwise, positions, scalar, size_tensor
from ...index_checks import checked_index
from ...lowering import Lowering
from ...registry import NotLowered, lowers
from .gather import broadcast_index
from .index_helpers import lookup, shape_of, write_at

aten = torch.ops.aten
Node = torch.fx.Node
SUM = 0


@lowers(aten._embedding_bag.default, aten._embedding_bag_forward_only.default)
def embedding_bag(
    lowering: Lowering,
    node: Node,
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scales_by_frequency: bool = False,
    mode: int = SUM,
    sparse: bool = False,
    weights: Tensor | None = None,
    has_last_offset: bool = False,
    padding_index: int = -1,
) -> tuple[Tensor, ...]:
    """What is saved beside the sums is what ATen saves where it takes its fast way: zeros."""
    sums, *saved = node.meta["val"]
    size = size_of_bags(offsets, indices)
    if mode != SUM or weights is not None or has_last_offset or padding_index >= 0 or size is None:
        raise NotLowered("bags that are not sums of the same number of rows")
    if weight.dtype is not torch.float32 or tuple(saved[0].shape) != (0,) or is_empty((*indices.shape, *weight.shape)):
        raise NotLowered("bags for which ATen saves more, or nothing")
    bags, width = sizes_of(sums.shape)
    message = index_checks.OUT_OF_EMBEDDINGS
    index = lowering.reshape(checked_index(lowering, indices, weight.shape[0], message), [bags, size])
    shape = (bags, size, width)
    rows = lookup(lowering, weight, shape, [broadcast_index(index, shape, 0), ({2: 1}, 0)])
    zeros = [full(sizes_of(value.shape), 0, value.dtype) for value in saved]
    return (lowering.reduce(rows, "sum", [1]), *zeros)


def size_of_bags(offsets: Tensor, indices: Tensor) -> Size | None:
    """How many indices each bag has, if they are known to be as many for all."""
    if offsets.expr.kind != "iota" or offsets.rank != 1 or indices.rank != 1:
        return None
    (stride,), start = offsets.expr.payload
    fits = same(start, 0) and same(stride * offsets.shape[0], indices.shape[0])
    return stride if fits and stride != 0 else None


@lowers(aten._embedding_bag_backward.default)
def embedding_bag_backward(
    lowering: Lowering,
    node: Node,
    gradient: Tensor,
    indices: Tensor,
    offsets: Tensor,
    bag_of_index: Tensor,
    sizes: Tensor,
    greatest: Tensor,
    count: Size,
    scales_by_frequency: bool,
    mode: int,
    sparse: bool,
    weights: Tensor | None,
    padding_index: int = -1,
) -> Tensor:
    """Each index adds the gradient of its bag to its row, in their order."""
    if mode != SUM or sparse or scales_by_frequency or weights is not None or gradient.dtype is not torch.float32:
        raise NotLowered("bags that are not plain sums")
    shape = shape_of(node)
    if is_empty((*shape, *indices.shape, *offsets.shape)) or indices.rank != 1:
        raise NotLowered("nothing")
    index = cast(indices, torch.int64)
    fine = pointwise("and", pointwise("ge", index, scalar(0, torch.int64)), pointwise("lt", index, size_tensor(count)))
    if padding_index >= 0:
        fine = pointwise("and", fine, pointwise("ne", index, size_tensor(padding_index)))
    size, source = size_of_bags(offsets, indices), before_cast(lowering, gradient)
    if size is not None:
        bags: tuple[Size, ...] = (offsets.shape[0], size)
        index, fine = lowering.reshape(index, bags), lowering.reshape(fine, bags)
        space = (*bags, shape[1])
        value = tensor_views.affine(source, space, [({0: 1}, 0), ({2: 1}, 0)])
    else:
        space = (indices.shape[0], shape[1])
        bag = broadcast_index(bags_of(lowering, offsets, space[0], gradient.shape[0]), space, 0)
        value = tensor_views.indexed(source, space, [bag, ({1: 1}, 0)])
    result = lowering.materialize(full(shape, 0, gradient.dtype), node.meta["val"])
    rows: list[Any] = [broadcast_index(index, space, 0), ({len(space) - 1: 1}, 0)]
    write_at(lowering, result, rows, value, "add", mask=broadcast_index(fine, space, 0))
    return result


def bags_of(lowering: Lowering, offsets: Tensor, length: Size, count: Size) -> Tensor:
    """The bag of each index: the offsets that are less than the next position begin a bag before it."""
    begun = positions((length,), 0, 1)
    found = lowering.call_operator(aten.bucketize.Tensor, [begun, offsets], torch.int64, (length,))
    bag = pointwise("sub", found, scalar(1, torch.int64))
    return pointwise("minimum", pointwise("maximum", bag, scalar(0, torch.int64)), size_tensor(count - 1))


def before_cast(lowering: Lowering, tensor: Tensor) -> Tensor:
    """A tensor that is read from memory: in the type that it was cast from, where that is shorter."""
    expr = tensor.expr
    if expr.kind == "cast" and expr.args[0].dtype in HALF_TYPES:
        return cast(lowering.in_memory(Tensor(tensor.shape, expr.args[0])), tensor.dtype)
    return lowering.in_memory(tensor)
