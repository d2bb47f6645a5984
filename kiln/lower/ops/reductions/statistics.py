"""Variances and norms.

Variances take two passes, the mean first: no digits cancel where the mean is large beside the spread. ATen's kernels
accumulate float32 in float64; these lowerings do the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from kiln.loops.sizes import is_one
from kiln.loops.tensor_views import Tensor, squeeze

from ...builders import cast, full, pointwise, scalar, size_tensor
from ...lowering import Lowering
from ...registry import NotLowered, lowers
from ..pointwise.formulas import Operand, as_type, result_type
from .reduction_helpers import (
    as_wide,
    axes_of,
    elements_along,
    mean_along,
    moment_type,
    once_per_row,
    reduce,
    refuse_empty,
    sum_along,
    used_results,
)

aten = torch.ops.aten
Node = torch.fx.Node


# ---- variance --------------------------------------------------------------------------------------------------------


def variance(
    lowering: Lowering, tensor: Tensor, dims: Any, correction: Operand | None, keepdim: bool
) -> tuple[Tensor, Tensor]:
    """Variance and mean, in the widest type."""
    refuse_empty(tensor)
    if not tensor.dtype.is_floating_point:
        raise NotLowered("the variance of integers")
    axes = axes_of(tensor.rank, dims)
    value = cast(tensor, moment_type(lowering, tensor.dtype))
    mean = once_per_row(lowering, mean_along(lowering, value, axes, keepdim=True))
    squares = pointwise("square", pointwise("sub", value, mean))
    summed = sum_along(lowering, squares, axes, keepdim)
    count = size_tensor(elements_along(tensor.shape, axes) if tensor.rank else 1, value.dtype)
    less = as_type(1 if correction is None else correction, value.dtype)
    divisor = pointwise("maximum", pointwise("sub", count, less), scalar(0, value.dtype))
    if not keepdim and tensor.rank:
        mean = squeeze(mean, axes)
    return pointwise("div", summed, divisor), mean


@lowers(aten.var.correction)
def var(lowering: Lowering, node: Node, tensor: Tensor, dims: Any, *, correction: Any, keepdim: bool) -> Tensor:
    return cast(variance(lowering, tensor, dims, correction, keepdim)[0], tensor.dtype)


@lowers(aten.std.correction)
def std(lowering: Lowering, node: Node, tensor: Tensor, dims: Any, *, correction: Any, keepdim: bool) -> Tensor:
    return cast(pointwise("sqrt", variance(lowering, tensor, dims, correction, keepdim)[0]), tensor.dtype)


@lowers(aten.var_mean.correction)
def var_mean(lowering: Lowering, node: Node, tensor: Tensor, dims: Any, *, correction: Any, keepdim: bool) -> Any:
    spread, mean = variance(lowering, tensor, dims, correction, keepdim)
    return cast(spread, tensor.dtype) if 0 in used_results(node) else None, cast(mean, tensor.dtype)


@lowers(aten.std_mean.correction)
def std_mean(lowering: Lowering, node: Node, tensor: Tensor, dims: Any, *, correction: Any, keepdim: bool) -> Any:
    spread, mean = variance(lowering, tensor, dims, correction, keepdim)
    return cast(pointwise("sqrt", spread), tensor.dtype) if 0 in used_results(node) else None, cast(mean, tensor.dtype)


# ---- norms -----------------------------------------------------------------------------------------------------------


def norm_of(lowering: Lowering, tensor: Tensor, order: float, axes: Sequence[int], keepdim: bool) -> Tensor:
    """The norm of a tensor of a wide type."""
    size = pointwise("abs", tensor)
    if order == 0:
        nonzero = pointwise("ne", tensor, scalar(0, tensor.dtype))
        return sum_along(lowering, cast(nonzero, tensor.dtype), axes, keepdim)
    if not tensor.rank or all(is_one(tensor.shape[axis]) for axis in axes):
        return reduce(lowering, size, "sum", axes, keepdim)  # nothing that could overflow
    if math.isinf(order):
        refuse_empty(tensor)
        return reduce(lowering, size, "max" if order > 0 else "min", axes, keepdim)
    if order == 1:
        return sum_along(lowering, size, axes, keepdim)
    if order == 2:
        return pointwise("sqrt", sum_along(lowering, pointwise("square", tensor), axes, keepdim))
    powers = pointwise("pow", size, full((), order, tensor.dtype))
    return pointwise("pow", sum_along(lowering, powers, axes, keepdim), full((), 1 / order, tensor.dtype))


@lowers(aten.linalg_vector_norm.default, aten.norm.Scalar, aten.norm.ScalarOpt_dim)
@lowers(aten.norm.ScalarOpt_dim_dtype, aten.norm.ScalarOpt_dtype)
def vector_norm(
    lowering: Lowering,
    node: Node,
    tensor: Tensor,
    order: Any,
    dims: Any = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> Tensor:
    result = result_type(node)
    order = 2 if order is None else order
    if not isinstance(order, (int, float)) or not result.is_floating_point:
        raise NotLowered("a norm whose order is no number")
    value = as_wide(cast(tensor, result) if dtype is not None else tensor)
    return cast(norm_of(lowering, value, float(order), axes_of(tensor.rank, dims), keepdim), result)
