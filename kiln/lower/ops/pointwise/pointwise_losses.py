"""Losses that are a number for each element, and their derivatives: squares, absolute values, logistic ones.

float16 and bfloat16 are rounded where ATen's kernels round. `binary_cross_entropy` itself is left to ATen, which raises
for values that are no probabilities.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sympy
import torch
from torch.fx import Node

from kiln.loops.ir import HALF_TYPES, wide
from kiln.loops.tensor_views import Tensor

from ... import builders
from ...lowering import Lowering
from ...registry import NotLowered, lowers
from ..reductions.reduction_helpers import as_wide, elements_along, mean_along, sum_along
from .activations import log_sigmoid
from .formulas import Value, computed, where

aten = torch.ops.aten
MEAN, SUM = 1, 2  # kinds of reduction

# ---- forward ---------------------------------------------------------------------------------------------------------


def combined(lowering: Lowering, node: Node, losses: Tensor, reduction: int) -> Tensor:
    """The losses of all elements (of the type of the tensors) as a result."""
    result = node.meta["val"].dtype
    if reduction not in (MEAN, SUM):
        return builders.cast(losses, result)
    axes = tuple(range(losses.rank))
    if not axes:
        return builders.cast(losses, result)
    combine = mean_along if reduction == MEAN else sum_along
    return builders.cast(combine(lowering, as_wide(losses), axes), result)


def loss(
    lowering: Lowering, node: Node, function: Callable[..., Value], tensors: list[Tensor], reduction: int, narrow: Any
) -> Tensor:
    """A function of the elements, rounded to their type, then added up or averaged."""
    dtype = node.meta["val"].dtype
    if not dtype.is_floating_point:
        raise NotLowered("losses of integers")
    inside = dtype if dtype in narrow else wide(dtype)
    operands = builders.broadcast(*(builders.cast(tensor, inside) for tensor in tensors))
    value = function(*(Value(operand.expr) for operand in operands)).cast(dtype)
    return combined(lowering, node, Tensor(operands[0].shape, value.expr), reduction)


@lowers(aten.mse_loss.default)
def mse_loss(lowering: Lowering, node: Node, x: Tensor, target: Tensor, reduction: int = MEAN) -> Tensor:
    def square(a: Value, b: Value) -> Value:
        return (a - b) * (a - b)

    return loss(lowering, node, square, [x, target], reduction, HALF_TYPES)


@lowers(aten.smooth_l1_loss.default)
def smooth_l1_loss(
    lowering: Lowering, node: Node, x: Tensor, target: Tensor, reduction: int = MEAN, beta: float = 1.0
) -> Tensor:
    def smooth(a: Value, b: Value) -> Value:
        distance = (a - b).abs()
        if beta == 0:
            return distance
        return where(distance < beta, 0.5 * distance * distance / beta, distance - 0.5 * Value(distance.like(beta)))

    return loss(lowering, node, smooth, [x, target], reduction, (torch.float16,))


@lowers(aten.huber_loss.default)
def huber_loss(
    lowering: Lowering, node: Node, x: Tensor, target: Tensor, reduction: int = MEAN, delta: float = 1.0
) -> Tensor:
    def huber(a: Value, b: Value) -> Value:
        distance = (a - b).abs()
        half = 0.5 * Value(distance.like(delta))
        return where(distance <= delta, 0.5 * distance * distance, delta * (distance - half))

    return loss(lowering, node, huber, [x, target], reduction, (torch.bfloat16,))


@lowers(aten.soft_margin_loss.default)
def soft_margin_loss(lowering: Lowering, node: Node, x: Tensor, target: Tensor, reduction: int = MEAN) -> Tensor:
    return loss(lowering, node, lambda a, b: (-b * a).exp().log1p(), [x, target], reduction, HALF_TYPES)


@lowers(aten.binary_cross_entropy_with_logits.default)
def logistic_loss(
    lowering: Lowering,
    node: Node,
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    positive: Tensor | None = None,
    reduction: int = MEAN,
) -> Tensor:
    def logistic(a: Value, b: Value, *factors: Value) -> Value:
        left = iter(factors)
        inside = log_sigmoid(a.cast(wide(a.dtype)))[0].cast(a.dtype)
        factor = next(left) if weight is not None else None
        if positive is not None:
            inside = inside * ((next(left) - 1.0) * b + 1.0)
        value = (1.0 - b) * a - inside
        return value if factor is None else value * factor

    dtypes = {tensor.dtype for tensor in (x, target, weight, positive) if tensor is not None}
    if len(dtypes) > 1:
        raise NotLowered("tensors of several types")
    tensors = [x, target, *(tensor for tensor in (weight, positive) if tensor is not None)]
    return loss(lowering, node, logistic, tensors, reduction, HALF_TYPES)


# ---- backward --------------------------------------------------------------------------------------------------------


def backward(
    node: Node,
    function: Callable[..., Value],
    tensors: list[Tensor],
    reduction: int,
    narrow: Any,
    scale: float = 1.0,
    is_wide: bool = False,
) -> Tensor:
    """A function of a factor (``scale`` over how many elements were averaged; in the wide type, if so wished) and of
    elements."""
    dtype = node.meta["val"].dtype
    inside = dtype if dtype in narrow else wide(dtype)
    operands = builders.broadcast(*(builders.cast(tensor, inside) for tensor in tensors))
    count = elements_along(operands[0].shape, range(operands[0].rank)) if reduction == MEAN else 1
    values = [Value(operand.expr) for operand in operands]
    value = function(factor_of(scale, count, wide(inside) if is_wide else inside), *values).cast(dtype)
    return Tensor(operands[0].shape, value.expr)


def factor_of(scale: float, count: Any, dtype: torch.dtype) -> Value:
    if isinstance(count, sympy.Expr):
        exact = builders.pointwise(
            "div", builders.scalar(scale, torch.float64), builders.size_tensor(count, torch.float64)
        )
        return Value(builders.cast(exact, dtype).expr)
    return Value(builders.scalar(scale / count if count else scale, dtype).expr)


@lowers(aten.mse_loss_backward.default)
def mse_backward(lowering: Lowering, node: Node, grad: Tensor, x: Tensor, target: Tensor, reduction: int) -> Tensor:
    def slope(factor: Value, g: Value, a: Value, b: Value) -> Value:
        return factor * (a - b) * g

    return backward(node, slope, [grad, x, target], reduction, HALF_TYPES, 2.0)


@lowers(aten.smooth_l1_loss_backward.default)
def smooth_l1_backward(
    lowering: Lowering, node: Node, grad: Tensor, x: Tensor, target: Tensor, reduction: int, beta: float
) -> Tensor:
    def slope(factor: Value, g: Value, a: Value, b: Value) -> Value:
        distance = a - b
        outside = where(distance <= -beta, -factor * g, factor * g)
        if beta == 0:
            return outside
        inside = factor * (distance / beta) * g
        return where((distance <= -beta) | (distance >= beta), outside, inside)

    return backward(node, slope, [grad, x, target], reduction, ())


@lowers(aten.huber_loss_backward.default)
def huber_backward(
    lowering: Lowering, node: Node, grad: Tensor, x: Tensor, target: Tensor, reduction: int, delta: float
) -> Tensor:
    def slope(factor: Value, g: Value, a: Value, b: Value) -> Value:
        distance = a - b
        outside = where(distance <= -delta, -factor * g * delta, factor * g * delta)
        return where((distance <= -delta) | (distance >= delta), outside, factor * distance * g)

    return backward(node, slope, [grad, x, target], reduction, HALF_TYPES)


@lowers(aten.soft_margin_loss_backward.default)
def soft_margin_backward(
    lowering: Lowering, node: Node, grad: Tensor, x: Tensor, target: Tensor, reduction: int
) -> Tensor:
    def slope(factor: Value, g: Value, a: Value, b: Value) -> Value:
        power = (-b * a).exp()
        scaled = ((b * power).cast(factor.dtype) * -factor).cast(b.dtype)
        return scaled / (1.0 + power) * g

    return backward(node, slope, [grad, x, target], reduction, HALF_TYPES, is_wide=True)


@lowers(aten.binary_cross_entropy_backward.default)
def cross_entropy_backward(
    lowering: Lowering,
    node: Node,
    grad: Tensor,
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = MEAN,
) -> Tensor:
    def slope(g: Value, a: Value, b: Value, *weights: Value) -> Value:
        product = (1.0 - a) * a
        value = g * (a - b) / where(product < 1e-12, 1e-12, product)
        return value * weights[0] if weights else value

    tensors = [grad, x, target, *([weight] if weight is not None else [])]
    found = computed(slope, tensors, node.meta["val"].dtype, node.meta["val"])
    if reduction != MEAN:
        return found
    count = builders.size_tensor(elements_along(found.shape, range(found.rank)), wide(found.dtype))
    return builders.cast(builders.pointwise("div", as_wide(found), count), found.dtype)
