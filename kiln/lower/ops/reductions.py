"""Sums, products, extremes, truth: reductions of one value to one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .. import views
from ..build import cast, pointwise, scalar, where
from ..ir import wide
from ..lowering import Lowering
from ..registry import NotLowered, lowers
from ..views import Tensor
from .formulas import result_type
from .reducing import as_wide, average, axes_of, reduce, refuse_empty, refuse_perhaps_nothing, total, wanted

aten = torch.ops.aten
Node = torch.fx.Node


# ---- sums and products -----------------------------------------------------------------------------------------------


def accumulated(lowering: Lowering, node: Node, tensor: Tensor, kind: str, dims: Any, keepdim: bool) -> Tensor:
    """A sum or product, in the type of the result; float16 and bfloat16 in float32."""
    dtype = result_type(node)
    if dtype is torch.bool or (kind == "prod" and dtype is torch.float16):
        raise NotLowered("a sum of truth values as one, or a product that eager rounds at each step")
    value = as_wide(cast(tensor, dtype))
    return cast(reduce(lowering, value, kind, axes_of(tensor.rank, dims), keepdim), dtype)


@lowers(aten.sum.default)
def sum_all(lowering: Lowering, node: Node, tensor: Tensor, *, dtype: Any) -> Tensor:
    return accumulated(lowering, node, tensor, "sum", None, False)


@lowers(aten.sum.dim_IntList)
def sum_along(lowering: Lowering, node: Node, tensor: Tensor, dims: Any, keepdim: bool, *, dtype: Any) -> Tensor:
    return accumulated(lowering, node, tensor, "sum", dims, keepdim)


@lowers(aten.prod.default)
def product_all(lowering: Lowering, node: Node, tensor: Tensor, *, dtype: Any) -> Tensor:
    return accumulated(lowering, node, tensor, "prod", None, False)


@lowers(aten.prod.dim_int)
def product_along(lowering: Lowering, node: Node, tensor: Tensor, dim: int, keepdim: bool, *, dtype: Any) -> Tensor:
    return accumulated(lowering, node, tensor, "prod", dim, keepdim)


@lowers(aten.nansum.default)
def sum_of_numbers(lowering: Lowering, node: Node, tensor: Tensor, dims: Any, keepdim: bool, *, dtype: Any) -> Tensor:
    if tensor.dtype.is_floating_point:
        tensor = where(pointwise("isnan", tensor), scalar(0, tensor.dtype), tensor)
    return accumulated(lowering, node, tensor, "sum", dims, keepdim)


@lowers(aten.mean.default)
def mean_all(lowering: Lowering, node: Node, tensor: Tensor, *, dtype: Any) -> Tensor:
    return mean_along(lowering, node, tensor, None, False, dtype=dtype)


@lowers(aten.mean.dim)
def mean_along(lowering: Lowering, node: Node, tensor: Tensor, dims: Any, keepdim: bool, *, dtype: Any) -> Tensor:
    result = result_type(node)
    return cast(average(lowering, cast(tensor, wide(result)), axes_of(tensor.rank, dims), keepdim), result)


@lowers(aten.count_nonzero.default)
def count_nonzero_all(lowering: Lowering, node: Node, tensor: Tensor, dim: int | None) -> Tensor:
    return count_nonzero(lowering, node, tensor, dim)


@lowers(aten.count_nonzero.dim_IntList)
def count_nonzero(lowering: Lowering, node: Node, tensor: Tensor, dims: Any) -> Tensor:
    return total(lowering, cast(is_true(tensor), torch.int64), axes_of(tensor.rank, dims))


# ---- truth -----------------------------------------------------------------------------------------------------------


def is_true(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype is torch.bool else pointwise("ne", tensor, scalar(0, tensor.dtype))


def truth(lowering: Lowering, node: Node, tensor: Tensor, kind: str, dims: Any, keepdim: bool) -> Tensor:
    found = reduce(lowering, is_true(tensor), kind, axes_of(tensor.rank, dims), keepdim)
    return cast(found, result_type(node))  # uint8 of uint8


@lowers(aten.any.default)
def any_of_all(lowering: Lowering, node: Node, tensor: Tensor) -> Tensor:
    return truth(lowering, node, tensor, "any", None, False)


@lowers(aten.any.dim, aten.any.dims)
def any_along(lowering: Lowering, node: Node, tensor: Tensor, dims: Any, keepdim: bool) -> Tensor:
    return truth(lowering, node, tensor, "any", dims, keepdim)


@lowers(aten.all.default)
def all_of_all(lowering: Lowering, node: Node, tensor: Tensor) -> Tensor:
    return truth(lowering, node, tensor, "all", None, False)


@lowers(aten.all.dim, aten.all.dims)
def all_along(lowering: Lowering, node: Node, tensor: Tensor, dims: Any, keepdim: bool) -> Tensor:
    return truth(lowering, node, tensor, "all", dims, keepdim)


# ---- extremes --------------------------------------------------------------------------------------------------------

OF_TRUTH = {"max": "any", "min": "all"}


def extreme(lowering: Lowering, tensor: Tensor, kind: str, dims: Any = None, keepdim: bool = False) -> Tensor:
    """The greatest or least value; NaN is both."""
    axes = axes_of(tensor.rank, dims)
    if tensor.dtype is torch.bool:
        return reduce(lowering, tensor, OF_TRUTH[kind], axes, keepdim)
    return cast(reduce(lowering, as_wide(tensor), kind, axes, keepdim), tensor.dtype)


@lowers(aten.max.default)
def greatest(lowering: Lowering, node: Node, tensor: Tensor) -> Tensor:
    refuse_perhaps_nothing(tensor, range(tensor.rank))
    return extreme(lowering, tensor, "max")


@lowers(aten.min.default)
def least(lowering: Lowering, node: Node, tensor: Tensor) -> Tensor:
    refuse_perhaps_nothing(tensor, range(tensor.rank))
    return extreme(lowering, tensor, "min")


@lowers(aten.amax.default)
def greatest_along(lowering: Lowering, node: Node, tensor: Tensor, dims: Sequence[int], keepdim: bool) -> Tensor:
    return extreme(lowering, tensor, "max", dims, keepdim)


@lowers(aten.amin.default)
def least_along(lowering: Lowering, node: Node, tensor: Tensor, dims: Sequence[int], keepdim: bool) -> Tensor:
    return extreme(lowering, tensor, "min", dims, keepdim)


@lowers(aten.aminmax.default)
def both_extremes(lowering: Lowering, node: Node, tensor: Tensor, *, dim: int | None, keepdim: bool) -> Any:
    axes = None
    if dim is None:
        keepdim = keepdim and tensor.rank == node.meta["val"][0].dim()
    else:
        axes = (dim,)
    return tuple(extreme(lowering, tensor, kind, axes, keepdim) for kind in ("min", "max"))


def place_of_extreme(lowering: Lowering, tensor: Tensor, kind: str, dim: int | None, keepdim: bool) -> Tensor:
    """Where along an axis, or among all elements, the first extreme value lies."""
    value = cast(tensor, torch.uint8) if tensor.dtype is torch.bool else as_wide(tensor)
    return reduce(lowering, value, f"arg{kind}", axes_of(tensor.rank, dim), keepdim)


@lowers(aten.argmax.default)
def place_of_greatest(lowering: Lowering, node: Node, tensor: Tensor, dim: int | None, keepdim: bool) -> Tensor:
    refuse_truth(tensor)
    return place_of_extreme(lowering, tensor, "max", dim, keepdim)


@lowers(aten.argmin.default)
def place_of_least(lowering: Lowering, node: Node, tensor: Tensor, dim: int | None, keepdim: bool) -> Tensor:
    refuse_truth(tensor)
    return place_of_extreme(lowering, tensor, "min", dim, keepdim)


def refuse_truth(tensor: Tensor) -> None:
    if tensor.dtype is torch.bool:
        raise NotLowered("the place alone of a truth value")


def extreme_and_place(lowering: Lowering, node: Node, tensor: Tensor, kind: str, dim: int, keepdim: bool) -> Any:
    refuse_perhaps_nothing(tensor, (dim,))
    used = wanted(node)
    value = extreme(lowering, tensor, kind, dim, keepdim) if 0 in used else None
    place = place_of_extreme(lowering, tensor, kind, dim, keepdim) if 1 in used else None
    return value, place


@lowers(aten.max.dim)
def greatest_and_place(lowering: Lowering, node: Node, tensor: Tensor, dim: int, keepdim: bool) -> Any:
    return extreme_and_place(lowering, node, tensor, "max", dim, keepdim)


@lowers(aten.min.dim)
def least_and_place(lowering: Lowering, node: Node, tensor: Tensor, dim: int, keepdim: bool) -> Any:
    return extreme_and_place(lowering, node, tensor, "min", dim, keepdim)


# ---- exponentials ----------------------------------------------------------------------------------------------------


@lowers(aten.logsumexp.default)
def log_of_summed_exponentials(
    lowering: Lowering, node: Node, tensor: Tensor, dims: Sequence[int], keepdim: bool
) -> Tensor:
    """One operation after another, each rounded in the type of the result, as ATen does it."""
    refuse_empty(tensor)
    value = cast(tensor, result_type(node))
    axes = axes_of(tensor.rank, dims)
    most = extreme(lowering, value, "max", axes, keepdim=True)
    most = where(pointwise("isinf", most), scalar(0, most.dtype), most)
    exponentials = as_wide(pointwise("exp", pointwise("sub", value, most)))
    summed = cast(total(lowering, exponentials, axes, keepdim), value.dtype)
    if tensor.rank and not keepdim:
        most = views.squeeze(most, axes)
    return pointwise("add", pointwise("log", summed), most)
