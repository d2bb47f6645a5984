"""Sums, products, extremes, truth: reductions of one value to one."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from kiln.loops import tensor_views
from kiln.loops.ir import wide
from kiln.loops.tensor_views import Tensor

from ...builders import cast, pointwise, scalar, where
from ...lowering import Lowering
from ...registry import NotLowered, lowers
from ..pointwise.formulas import result_type
from .reduction_helpers import (
    as_wide,
    axes_of,
    mean_along,
    reduce,
    refuse_empty,
    refuse_possibly_empty,
    sum_along,
    used_results,
)

aten = torch.ops.aten
Node = torch.fx.Node


# ---- sums and products -----------------------------------------------------------------------------------------------


def accumulated(
    kind: str, lowering: Lowering, node: Node, tensor: Tensor, dims: Any = None, keepdim: bool = False, *, dtype: Any
) -> Tensor:
    """A sum or product, in the type of the result; float16 and bfloat16 in float32."""
    dtype = result_type(node)
    if dtype is torch.bool or (kind == "prod" and dtype is torch.float16):
        raise NotLowered("a sum of truth values as one, or a product that eager rounds at each step")
    value = as_wide(cast(tensor, dtype))
    return cast(reduce(lowering, value, kind, axes_of(tensor.rank, dims), keepdim), dtype)


lowers(aten.sum.default, aten.sum.dim_IntList)(functools.partial(accumulated, "sum"))
lowers(aten.prod.default, aten.prod.dim_int)(functools.partial(accumulated, "prod"))


@lowers(aten.nansum.default)
def sum_of_numbers(lowering: Lowering, node: Node, tensor: Tensor, dims: Any, keepdim: bool, *, dtype: Any) -> Tensor:
    if tensor.dtype.is_floating_point:
        tensor = where(pointwise("isnan", tensor), scalar(0, tensor.dtype), tensor)
    return accumulated("sum", lowering, node, tensor, dims, keepdim, dtype=dtype)


@lowers(aten.mean.default, aten.mean.dim)
def mean(
    lowering: Lowering, node: Node, tensor: Tensor, dims: Any = None, keepdim: bool = False, *, dtype: Any
) -> Tensor:
    result = result_type(node)
    return cast(mean_along(lowering, cast(tensor, wide(result)), axes_of(tensor.rank, dims), keepdim), result)


@lowers(aten.count_nonzero.default, aten.count_nonzero.dim_IntList)
def count_nonzero(lowering: Lowering, node: Node, tensor: Tensor, dims: Any) -> Tensor:
    return sum_along(lowering, cast(is_true(tensor), torch.int64), axes_of(tensor.rank, dims))


# ---- truth -----------------------------------------------------------------------------------------------------------


def is_true(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype is torch.bool else pointwise("ne", tensor, scalar(0, tensor.dtype))


def truth(kind: str, lowering: Lowering, node: Node, tensor: Tensor, dims: Any = None, keepdim: bool = False) -> Tensor:
    found = reduce(lowering, is_true(tensor), kind, axes_of(tensor.rank, dims), keepdim)
    return cast(found, result_type(node))  # uint8 of uint8


lowers(aten.any.default, aten.any.dim, aten.any.dims)(functools.partial(truth, "any"))
lowers(aten.all.default, aten.all.dim, aten.all.dims)(functools.partial(truth, "all"))


# ---- extremes --------------------------------------------------------------------------------------------------------

OF_TRUTH = {"max": "any", "min": "all"}


def extreme(lowering: Lowering, tensor: Tensor, kind: str, dims: Any = None, keepdim: bool = False) -> Tensor:
    """The greatest or least value; NaN is both."""
    axes = axes_of(tensor.rank, dims)
    if tensor.dtype is torch.bool:
        return reduce(lowering, tensor, OF_TRUTH[kind], axes, keepdim)
    return cast(reduce(lowering, as_wide(tensor), kind, axes, keepdim), tensor.dtype)


def place_of_extreme(lowering: Lowering, tensor: Tensor, kind: str, dim: int | None, keepdim: bool) -> Tensor:
    """The index of the first extreme value along an axis, or among all elements."""
    value = cast(tensor, torch.uint8) if tensor.dtype is torch.bool else as_wide(tensor)
    return reduce(lowering, value, f"arg{kind}", axes_of(tensor.rank, dim), keepdim)


def extreme_of_all(kind: str, lowering: Lowering, node: Node, tensor: Tensor) -> Tensor:
    refuse_possibly_empty(tensor, range(tensor.rank))
    return extreme(lowering, tensor, kind)


def extreme_along(
    kind: str, lowering: Lowering, node: Node, tensor: Tensor, dims: Sequence[int], keepdim: bool
) -> Tensor:
    return extreme(lowering, tensor, kind, dims, keepdim)


def place_alone(kind: str, lowering: Lowering, node: Node, tensor: Tensor, dim: int | None, keepdim: bool) -> Tensor:
    if tensor.dtype is torch.bool:
        raise NotLowered("the place alone of a truth value")
    return place_of_extreme(lowering, tensor, kind, dim, keepdim)


def extreme_and_place(kind: str, lowering: Lowering, node: Node, tensor: Tensor, dim: int, keepdim: bool) -> Any:
    refuse_possibly_empty(tensor, (dim,))
    used = used_results(node)
    value = extreme(lowering, tensor, kind, dim, keepdim) if 0 in used else None
    place = place_of_extreme(lowering, tensor, kind, dim, keepdim) if 1 in used else None
    return value, place


for _kind in ("max", "min"):
    lowers(getattr(aten, _kind).default)(functools.partial(extreme_of_all, _kind))
    lowers(getattr(aten, f"a{_kind}").default)(functools.partial(extreme_along, _kind))
    lowers(getattr(aten, f"arg{_kind}").default)(functools.partial(place_alone, _kind))
    lowers(getattr(aten, _kind).dim)(functools.partial(extreme_and_place, _kind))


@lowers(aten.aminmax.default)
def both_extremes(lowering: Lowering, node: Node, tensor: Tensor, *, dim: int | None, keepdim: bool) -> Any:
    axes = None
    if dim is None:
        keepdim = keepdim and tensor.rank == node.meta["val"][0].dim()
    else:
        axes = (dim,)
    return tuple(extreme(lowering, tensor, kind, axes, keepdim) for kind in ("min", "max"))


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
    summed = cast(sum_along(lowering, exponentials, axes, keepdim), value.dtype)
    if tensor.rank and not keepdim:
        most = tensor_views.squeeze(most, axes)
    return pointwise("add", pointwise("log", summed), most)
