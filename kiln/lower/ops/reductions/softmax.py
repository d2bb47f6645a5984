"""Softmax and log-softmax along any axis, and their backwards: three passes over a row in one kernel."""

from __future__ import annotations

from typing import Any

import torch

from kiln.loops import tensor_views
from kiln.loops.tensor_views import Tensor

from ...builders import cast, pointwise, scalar, where
from ...lowering import Lowering
from ...registry import lowers
from ..pointwise.formulas import result_type
from .reduction_helpers import as_wide, once_per_row, reduce, refuse_empty, sum_along

aten = torch.ops.aten
Node = torch.fx.Node


def with_axis(tensor: Tensor) -> Tensor:
    """A tensor without axes as one of one element."""
    refuse_empty(tensor)
    return tensor if tensor.rank else tensor_views.unsqueeze(tensor, 0)


def like(tensor: Tensor, node: Node) -> Tensor:
    """In the type and rank of the node's result."""
    value = node.meta["val"]
    found = cast(tensor, value.dtype)
    return found if value.dim() else tensor_views.squeeze(found, [0])


def exponentials(lowering: Lowering, value: Tensor, axis: int) -> tuple[Tensor, Tensor, Tensor]:
    """Distances from the greatest, their exponentials, and the sums of those."""
    most = reduce(lowering, value, "max", [axis], keepdim=True)
    distance = pointwise("sub", value, most)
    powers = pointwise("exp", distance)
    return distance, powers, sum_along(lowering, powers, [axis], keepdim=True)


@lowers(aten._softmax.default)
def softmax(lowering: Lowering, node: Node, tensor: Tensor, dim: int, half_to_float: bool) -> Tensor:
    value = with_axis(as_wide(tensor))
    _, powers, summed = exponentials(lowering, value, dim % value.rank)
    share = once_per_row(lowering, pointwise("reciprocal", summed))  # the sum is at least 1: the greatest has exp(0)
    return like(pointwise("mul", powers, share), node)


@lowers(aten._safe_softmax.default)
def safe_softmax(lowering: Lowering, node: Node, tensor: Tensor, dim: int, dtype: Any) -> Tensor:
    """Rows of nothing but minus infinity give zeros."""
    value = with_axis(as_wide(cast(tensor, result_type(node))))
    _, powers, summed = exponentials(lowering, value, dim % value.rank)
    minus_infinity = scalar(float("-inf"), value.dtype)
    masked = reduce(lowering, pointwise("eq", value, minus_infinity), "all", [dim % value.rank], keepdim=True)
    share = once_per_row(lowering, pointwise("reciprocal", summed))
    return like(where(masked, scalar(0, value.dtype), pointwise("mul", powers, share)), node)


@lowers(aten._log_softmax.default)
def log_softmax(lowering: Lowering, node: Node, tensor: Tensor, dim: int, half_to_float: bool) -> Tensor:
    value = with_axis(as_wide(tensor))
    distance, _, summed = exponentials(lowering, value, dim % value.rank)
    return like(pointwise("sub", distance, once_per_row(lowering, pointwise("log", summed))), node)


@lowers(aten._softmax_backward_data.default)
def softmax_backward(
    lowering: Lowering, node: Node, gradient: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype
) -> Tensor:
    gradient, output = with_axis(as_wide(gradient)), with_axis(as_wide(output))
    summed = sum_along(lowering, pointwise("mul", gradient, output), [dim % output.rank], keepdim=True)
    return like(pointwise("mul", pointwise("sub", gradient, summed), output), node)


@lowers(aten._log_softmax_backward_data.default)
def log_softmax_backward(
    lowering: Lowering, node: Node, gradient: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype
) -> Tensor:
    gradient, output = with_axis(as_wide(gradient)), with_axis(as_wide(output))
    summed = sum_along(lowering, gradient, [dim % output.rank], keepdim=True)
    return like(pointwise("sub", gradient, pointwise("mul", pointwise("exp", output), summed)), node)
