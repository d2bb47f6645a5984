"""Elements written by indices that are data: index_put, index_add, scatter and the gradient of embedding.

The result starts as a copy of the tensor that is written to. Where several elements are written to one place, they are
written in order, as in eager: the last one stays, or they are added in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kiln.loops import tensor_views
from kiln.loops.ir import HALF_TYPES
from kiln.loops.sizes import Size, hint, is_empty, is_one, product
from kiln.loops.tensor_views import Tensor

from ... import index_checks
from ...builders import cast, full, pointwise, scalar, size_tensor, where
from ...index_checks import checked_index
from ...lowering import Lowering
from ...registry import NotLowered, lowers
from ..pointwise.formulas import as_type
from .gather import INDEX_TYPES, AdvancedIndex, broadcast_index
from .index_helpers import identity_rows, positive_axis, shape_of, write_at

aten = torch.ops.aten
Node = torch.fx.Node


def scattered(
    lowering: Lowering,
    node: Node,
    base: Tensor,
    rows: Sequence[Any],
    value: Tensor,
    accumulate: str | None = None,
    rounds_each: bool = False,
) -> Tensor:
    """A copy of the base with a value written, over the value's space, where the rows say."""
    if accumulate is not None and base.dtype is torch.bool:
        raise NotLowered("truth values that are added")
    result = lowering.materialize(base, node.meta["val"])
    if not is_empty(value.shape) and not is_empty(base.shape):
        write_at(lowering, result, rows, value, accumulate, rounds_each=rounds_each)
    return result


# ---- index_put -------------------------------------------------------------------------------------------------------


@lowers(aten.index_put.default, aten._unsafe_index_put.default)
def index_put(
    lowering: Lowering,
    node: Node,
    tensor: Tensor,
    indices: Sequence[Tensor | None],
    values: Tensor,
    accumulate: bool = False,
) -> Tensor:
    if is_mask(tensor, indices, values, accumulate):
        return set_where(lowering, tensor, indices[0], values)
    places = AdvancedIndex(lowering, tensor.shape, indices)
    if places.is_empty:
        return tensor
    value = tensor_views.expand(cast(values, tensor.dtype), places.shape)
    if accumulate and is_worth_wide_sums(lowering, tensor.dtype, tensor.shape, value.shape):
        found = scattered(lowering, node, cast(tensor, torch.float32), places.rows, cast(value, torch.float32), "add")
        return cast(found, tensor.dtype)
    return scattered(lowering, node, tensor, places.rows, value, "add" if accumulate else None)


def is_worth_wide_sums(
    lowering: Lowering, dtype: torch.dtype, shape: Sequence[Size], added_shape: Sequence[Size]
) -> bool:
    """Whether to add float16 or bfloat16 in a float32 copy, on a GPU: eager sorts the elements so that it can add those
    of one place in float32 and round once. The copy takes less time where few elements get nothing added."""
    is_wanted = dtype in HALF_TYPES and lowering.device.type == "cuda"
    return is_wanted and hint(product(shape)) <= MOST_COPIED * hint(product(added_shape))


MOST_COPIED = 4  # elements of the float32 copy for each that is added


def is_mask(tensor: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool) -> bool:
    """Whether this is ``tensor[mask] = number``."""
    return (
        len(indices) == 1
        and indices[0] is not None
        and indices[0].dtype is torch.bool
        and all(is_one(size) for size in values.shape)
        and not accumulate
    )


def set_where(lowering: Lowering, tensor: Tensor, mask: Tensor | None, values: Tensor) -> Tensor:
    assert mask is not None
    for _ in range(tensor.rank - mask.rank):
        mask = tensor_views.unsqueeze(mask, mask.rank)
    value = lowering.reshape(cast(values, tensor.dtype), ())
    return where(mask, value, tensor)


@lowers(aten.put.default)
def put(
    lowering: Lowering, node: Node, tensor: Tensor, index: Tensor, source: Tensor, accumulate: bool = False
) -> Tensor:
    if is_empty(index.shape) or not tensor.rank:
        raise NotLowered("nothing, or a number")
    size = product(tensor.shape)
    safe = checked_index(lowering, index, size, index_checks.OUT_OF_ELEMENTS, wraps=True)
    flat = lowering.materialize(lowering.reshape(tensor, [size]))
    write_at(lowering, flat, [safe], lowering.reshape(source, index.shape), "add" if accumulate else None)
    return lowering.reshape(flat, tensor.shape)


# ---- along one axis, whole slices ------------------------------------------------------------------------------------


def slices(
    lowering: Lowering, node: Node, tensor: Tensor, dim: int, index: Tensor, value: Tensor, message: str, **how: Any
) -> Tensor:
    """``tensor[:, index[i]] = value[:, i]``; "wraps" and "accumulate" say how."""
    if not tensor.rank or index.rank > 1 or index.dtype not in INDEX_TYPES:
        raise NotLowered("a number, or an index that is none")
    if not index.rank:
        index = tensor_views.unsqueeze(index, 0)
    shape = [index.shape[0] if d == dim else size for d, size in enumerate(tensor.shape)]
    value = tensor_views.expand(value if value.rank else tensor_views.unsqueeze(value, 0), shape)
    rows = identity_rows(tensor.rank)
    safe = checked_index(lowering, index, tensor.shape[dim], message, wraps=how.get("wraps", False))
    rows[dim] = broadcast_index(safe, shape, dim)
    return scattered(lowering, node, tensor, rows, value, how.get("accumulate"), rounds_each=True)


@lowers(aten.index_add.default)
def index_add(
    lowering: Lowering, node: Node, tensor: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Any = 1
) -> Tensor:
    if tensor.dtype in HALF_TYPES and lowering.device.type == "cpu":
        raise NotLowered("sums that eager rounds in its own way")
    if alpha != 1:
        source = pointwise("mul", source, as_type(alpha, source.dtype))
    dim = positive_axis(dim, tensor.rank)
    message = index_checks.OUT_OF_BOUNDS_OF_GATHER % dim
    return slices(lowering, node, tensor, dim, index, source, message, accumulate="add")


@lowers(aten.index_copy.default)
def index_copy(lowering: Lowering, node: Node, tensor: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    dim = positive_axis(dim, tensor.rank)
    return slices(lowering, node, tensor, dim, index, source, index_checks.OUT_OF_BOUNDS_OF_COPY % dim)


@lowers(aten.index_fill.int_Scalar, aten.index_fill.int_Tensor)
def index_fill(lowering: Lowering, node: Node, tensor: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    dim = positive_axis(dim, tensor.rank)
    filled = as_type(value, tensor.dtype)
    return slices(lowering, node, tensor, dim, index, filled, index_checks.OUT_OF_BOUNDS % dim, wraps=True)


@lowers(aten.embedding_dense_backward.default)
def embedding_dense_backward(
    lowering: Lowering,
    node: Node,
    gradient: Tensor,
    indices: Tensor,
    rows: Size,
    padding_index: int,
    scales_by_frequency: bool,
) -> Tensor:
    """Indices that are out of range, and those of the padding, are left out without a word, as eager does."""
    if scales_by_frequency:
        raise NotLowered("scaled by how often an index occurs")
    shape = shape_of(node)
    count = product(indices.shape)
    index = cast(lowering.reshape(indices, [count]), torch.int64)
    value = lowering.reshape(gradient, [count, shape[1]])
    fine = pointwise("and", pointwise("ge", index, scalar(0, torch.int64)), pointwise("lt", index, size_tensor(rows)))
    if not isinstance(padding_index, int) or padding_index >= 0:
        fine = pointwise("and", fine, pointwise("ne", index, size_tensor(padding_index)))
    dtype = gradient.dtype
    if not is_empty(value.shape) and is_worth_wide_sums(lowering, dtype, shape, value.shape):
        value = cast(value, torch.float32)
    result = lowering.materialize(full(shape, 0, value.dtype), node.meta["val"])
    if not is_empty(value.shape) and not is_empty(shape):
        write_at(
            lowering,
            result,
            [broadcast_index(index, value.shape, 0), ({1: 1}, 0)],
            value,
            "add",
            mask=broadcast_index(fine, value.shape, 0),
        )
    return cast(result, dtype)


# ---- along one axis, element by element ------------------------------------------------------------------------------

# The `accumulate` of `ir.Write`, by the name of the reduction in ATen.
MEETINGS = {"sum": "add", "add": "add", "prod": "mul", "multiply": "mul", "amax": "max", "amin": "min"}


class Scatter:
    """The places of a scatter, over the index's space."""

    def __init__(self, lowering: Lowering, node: Node, tensor: Tensor, dim: int, index: Tensor) -> None:
        self.lowering, self.node, self.shape = lowering, node, tensor.shape
        if not tensor.rank or not index.rank:
            raise NotLowered("a number")
        dim = positive_axis(dim, tensor.rank)
        self.space = index.shape
        self.rows = identity_rows(tensor.rank)
        if not is_empty(index.shape):
            self.rows[dim] = checked_index(
                lowering, index, tensor.shape[dim], index_checks.OUT_OF_BOUNDS_OF_GATHER % dim
            )

    def value(self, source: Tensor) -> Tensor:
        """The part of the source that is written."""
        return tensor_views.affine(source, self.space, identity_rows(source.rank))

    def into(self, base: Tensor, value: Tensor, accumulate: str | None = None) -> Tensor:
        if accumulate is not None and base.dtype in HALF_TYPES and self.lowering.device.type == "cpu":
            raise NotLowered("sums that eager rounds in its own way")
        value = tensor_views.expand(value, self.space)
        return scattered(self.lowering, self.node, base, self.rows, value, accumulate, rounds_each=True)


@lowers(aten.scatter.src, aten.scatter.reduce)
def scatter(
    lowering: Lowering, node: Node, tensor: Tensor, dim: int, index: Tensor, source: Tensor, *, reduce: str = ""
) -> Tensor:
    places = Scatter(lowering, node, tensor, dim, index)
    return places.into(tensor, places.value(source), MEETINGS[reduce] if reduce else None)


@lowers(aten.scatter.value, aten.scatter.value_reduce)
def scatter_value(
    lowering: Lowering, node: Node, tensor: Tensor, dim: int, index: Tensor, value: Any, *, reduce: str = ""
) -> Tensor:
    places = Scatter(lowering, node, tensor, dim, index)
    return places.into(tensor, as_type(value, tensor.dtype), MEETINGS[reduce] if reduce else None)


@lowers(aten.scatter_add.default)
def scatter_add(lowering: Lowering, node: Node, tensor: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    return scatter(lowering, node, tensor, dim, index, source, reduce="add")


@lowers(aten.scatter_reduce.two)
def scatter_reduce(
    lowering: Lowering,
    node: Node,
    tensor: Tensor,
    dim: int,
    index: Tensor,
    source: Tensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> Tensor:
    if reduce not in MEETINGS:
        raise NotLowered("means")
    places = Scatter(lowering, node, tensor, dim, index)
    if not include_self:
        tensor = places.into(tensor, neutral(MEETINGS[reduce], tensor.dtype))
    return places.into(tensor, places.value(source), MEETINGS[reduce])


def neutral(meeting: str, dtype: torch.dtype) -> Tensor:
    """What changes nothing when it meets something."""
    if meeting in ("add", "mul"):
        return scalar(int(meeting == "mul"), dtype)
    if dtype.is_floating_point:
        return scalar(float("-inf" if meeting == "max" else "inf"), dtype)
    if dtype is torch.bool:
        return scalar(meeting == "min", dtype)
    limits = torch.iinfo(dtype)
    return scalar(limits.min if meeting == "max" else limits.max, dtype)
