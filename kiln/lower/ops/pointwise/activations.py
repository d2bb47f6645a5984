"""Activation functions and their derivatives, in the order of operations of ATen's kernels."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from kiln.loops.ir import HALF_TYPES, wide
from kiln.loops.tensor_views import Tensor, masked, shift, slice_

from ... import builders
from ...lowering import Lowering
from ...registry import NotLowered, lowers
from .formulas import AnyFunction, Value, computed, formula, of_tensors, result_type, where

aten = torch.ops.aten

# ---- linear in pieces ------------------------------------------------------------------------------------------------


def of_any_type(*overloads: Any) -> Callable[[AnyFunction], AnyFunction]:
    """Registers a function of values that is made of comparisons: the same for integers, and never rounded."""

    def register(function: AnyFunction) -> AnyFunction:
        @lowers(*overloads)
        def lower(lowering: Lowering, node: Node, *args: Any) -> Tensor:
            dtype = result_type(node)
            if dtype is torch.bool:
                raise NotLowered("bools have none of it")
            return computed(*of_tensors(function, args, {}), wide(dtype), node.meta["val"])

        return function

    return register


@of_any_type(aten.threshold.default)
def threshold(x: Value, bound: float, value: float) -> Value:
    return where(x <= bound, value, x)


@of_any_type(aten.threshold_backward.default)
def threshold_backward(grad: Value, x: Value, bound: float) -> Value:
    return where(x <= bound, 0, grad)


@of_any_type(aten.hardtanh.default)
def hardtanh(x: Value, low: float, high: float) -> Value:
    x = where(x < low, low, x)
    return where(x > high, high, x)


@of_any_type(aten.hardtanh_backward.default)
def hardtanh_backward(grad: Value, x: Value, low: float, high: float) -> Value:
    return where((x > low) & (x < high), grad, 0)  # none of NaN


@of_any_type(aten.relu6.default)
def relu6(x: Value) -> Value:
    return hardtanh(x, 0, 6)


@formula(aten.leaky_relu.default)
def leaky_relu(x: Value, slope: float = 0.01) -> Value:
    return where(x > 0, x, x * slope)


@formula(aten.leaky_relu_backward.default)
def leaky_relu_backward(grad: Value, x: Value, slope: float, is_result: bool) -> Value:
    return where(x > 0, grad, grad * slope)


@formula(aten._prelu_kernel.default)
def prelu(x: Value, weight: Value) -> Value:
    return where(x > 0, x, x * weight)


@formula(aten._prelu_kernel_backward.default)
def prelu_backward(grad: Value, x: Value, weight: Value) -> tuple[Value, Value]:
    return where(x > 0, grad, weight * grad), where(x > 0, 0.0, x * grad)


@formula(aten.hardshrink.default, narrow=HALF_TYPES)
def hardshrink(x: Value, bound: float = 0.5) -> Value:
    return where((x >= -bound) & (x <= bound), 0.0, x)


@formula(aten.hardshrink_backward.default, aten.softshrink_backward.default, narrow=HALF_TYPES)
def shrink_backward(grad: Value, x: Value, bound: float) -> Value:
    return where((x < -bound) | (x > bound), grad, 0.0)  # none of NaN


@formula(aten.softshrink.default)
def softshrink(x: Value, bound: float = 0.5) -> Value:
    return where(x > bound, x - bound, where(x < -bound, x + bound, where(x.isnan(), x, 0.0)))


def bounded(x: Value) -> Value:
    """Between 0 and 6; NaN stays."""
    x = where(x < 0.0, 0.0, x)
    return where(x > 6.0, 6.0, x)


SIXTH = 0.1666666716337204  # of ATen, a float32 for all types


def a_sixth(lowering: Lowering, node: Node, x: Tensor, function: Callable[[Value], Value]) -> Tensor:
    """A sixth of a function: ATen divides on the CPU, and multiplies on GPUs."""
    if lowering.device.type == "cpu":
        return computed(lambda value: function(value) / 6.0, [x], wide(x.dtype), node.meta["val"])
    return computed(lambda value: function(value) * SIXTH, [x], wide(x.dtype), node.meta["val"])


@lowers(aten.hardsigmoid.default)
def hardsigmoid(lowering: Lowering, node: Node, x: Tensor) -> Tensor:
    return a_sixth(lowering, node, x, lambda value: bounded(value + 3.0))


@formula(aten.hardsigmoid_backward.default)
def hardsigmoid_backward(grad: Value, x: Value) -> Value:
    return where((x > -3.0) & (x < 3.0), grad * SIXTH, 0.0)


@lowers(aten.hardswish.default)
def hardswish(lowering: Lowering, node: Node, x: Tensor) -> Tensor:
    return a_sixth(lowering, node, x, lambda value: value * bounded(value + 3.0))


@formula(aten.hardswish_backward.default)
def hardswish_backward(grad: Value, x: Value) -> Value:
    return where(x <= -3.0, 0.0, where(x >= 3.0, grad, grad * (x / 3.0 + 0.5)))


@formula(aten.rrelu_with_noise_backward.default)
def rrelu_backward(
    grad: Value, x: Value, noise: Value, lower: float, upper: float, training: bool, is_result: bool
) -> Value:
    if training and upper - lower > 1e-6:
        return noise * grad
    return leaky_relu_backward(grad, x, (lower + upper) / 2, is_result)


# ---- exponential -----------------------------------------------------------------------------------------------------


def sigmoid(x: Value) -> Value:
    return 1.0 / (1.0 + (-x).exp())


@formula(aten.silu.default)
def silu(x: Value) -> Value:
    return x / (1.0 + (-x).exp())


@formula(aten.silu_backward.default)
def silu_backward(grad: Value, x: Value) -> Value:
    inside = sigmoid(x)
    return grad * inside * x.fma(1.0 - inside, 1.0)


@formula(aten.sigmoid_backward.default, narrow=(torch.float16,))
def sigmoid_backward(grad: Value, result: Value) -> Value:
    return grad * (1.0 - result) * result


@formula(aten.tanh_backward.default)
def tanh_backward(grad: Value, result: Value) -> Value:
    return grad * (-result).fma(result, 1.0)


@formula(aten.elu.default)
def elu(x: Value, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Value:
    return where(x <= 0, (x * input_scale).expm1() * (alpha * scale), x * scale)


@formula(aten.celu.default)
def celu(x: Value, alpha: float = 1) -> Value:
    return elu(x, alpha, 1.0, 1.0 / alpha)


@formula(aten.elu_backward.default)
def elu_backward(grad: Value, alpha: float, scale: float, input_scale: float, is_result: bool, x: Value) -> Value:
    factor = alpha * scale
    if is_result:
        below = grad * input_scale * (x + factor)
    else:
        below = grad * input_scale * factor * (x * input_scale).exp()
    return where(x > 0, grad * scale, below)


@formula(aten.softplus.default)
def softplus(x: Value, beta: float = 1, bound: float = 20) -> Value:
    scaled = x * beta
    return where(scaled > bound, x, scaled.exp().log1p() / beta)


@formula(aten.softplus_backward.default)
def softplus_backward(grad: Value, x: Value, beta: float, bound: float) -> Value:
    scaled = x * beta
    power = scaled.exp()
    return where(scaled > bound, grad, grad * power / (power + 1.0))


@formula(aten.log_sigmoid_forward.default)
def log_sigmoid(x: Value) -> tuple[Value, Value]:
    power = (-x.abs()).exp()
    return where(x < 0.0, x, where(x.isnan(), x, 0.0)) - power.log1p(), power


@formula(aten.log_sigmoid_backward.default)
def log_sigmoid_backward(grad: Value, x: Value, power: Value) -> Value:
    below = x < 0.0
    part = power / (power + 1.0)
    return where(below, 1.0 - part, part) * grad


@formula(aten.mish.default)
def mish(x: Value) -> Value:
    return x * x.exp().log1p().tanh()


@formula(aten.mish_backward.default)
def mish_backward(grad: Value, x: Value) -> Value:
    inside = x.exp().log1p().tanh()
    return grad * (inside + x * sigmoid(x) * (1.0 - inside * inside))


# ---- GELU ------------------------------------------------------------------------------------------------------------

CUBE = 0.044715
TANH_SCALE = math.sqrt(2.0 / math.pi)


def gelu_tanh_inside(x: Value) -> Value:
    return TANH_SCALE * (x + CUBE * (x * x * x))


@formula(aten.gelu.default)
def gelu(x: Value, *, approximate: str = "none") -> Value:
    if approximate == "tanh":
        return 0.5 * x * (1.0 + gelu_tanh_inside(x).tanh())
    if x.dtype is torch.float32:
        return x.gelu_erf()
    return x * 0.5 * (1.0 + (x * math.sqrt(0.5)).erf())


@formula(aten.gelu_backward.default)
def gelu_backward(grad: Value, x: Value, *, approximate: str = "none") -> Value:
    if approximate == "tanh":
        inside = gelu_tanh_inside(x).tanh()
        slope = TANH_SCALE * (1.0 + 3.0 * CUBE * (x * x))
        return grad * (0.5 * (1.0 + inside) + 0.5 * x * (1.0 - inside * inside) * slope)
    below = 0.5 * (1.0 + (x * math.sqrt(0.5)).erf())
    density = (x * x * -0.5).exp() * (1.0 / math.sqrt(2.0 * math.pi))
    return grad * (below + x * density)


# ---- gates -----------------------------------------------------------------------------------------------------------


def halves(x: Tensor, dim: int) -> tuple[Tensor, Tensor, int]:
    """A tensor's two halves along an axis, and that axis."""
    dim = dim % max(x.rank, 1)
    size = x.shape[dim]
    if not isinstance(size, int) or size % 2:
        raise NotLowered("halves of a dynamic size")
    return slice_(x, dim, 0, size // 2), slice_(x, dim, size // 2, size // 2), dim


@lowers(aten.glu.default)
def glu(lowering: Lowering, node: Node, x: Tensor, dim: int = -1) -> Tensor:
    value, gate, _ = halves(x, dim)
    return computed(lambda a, b: a * sigmoid(b), [value, gate], wide(x.dtype), node.meta["val"])


@lowers(aten.glu_backward.default)
def glu_backward(lowering: Lowering, node: Node, grad: Tensor, x: Tensor, dim: int) -> Tensor:
    value, gate, dim = halves(x, dim)
    half = value.shape[dim]
    inside = wide(x.dtype)
    place = builders.positions(x.shape, dim)
    is_first = builders.pointwise("lt", place, builders.size_tensor(half))

    def both(tensor: Tensor) -> Tensor:
        """A half as if it was the whole: twice one after the other."""
        return repeated(tensor, x.shape, dim, half, is_first)

    def derivative(choice: Value, g: Value, v: Value, b: Value) -> Value:
        gate = sigmoid(b).cast(x.dtype).cast(inside)
        return where(choice, gate * g, (1.0 - gate) * gate * v * g)

    tensors = [both(tensor) for tensor in (grad, value, gate)]
    result = derivative(Value(is_first.expr), *(Value(builders.cast(tensor, inside).expr) for tensor in tensors))
    return Tensor(x.shape, result.cast(node.meta["val"].dtype).expr)


def repeated(tensor: Tensor, shape: Any, dim: int, half: int, is_first: Tensor) -> Tensor:
    """``tensor`` (half as long along the axis) at each place of the whole."""
    zeros = [0] * tensor.rank
    early = masked(shift(tensor, shape, zeros), is_first)
    late = masked(
        shift(tensor, shape, [half if axis == dim else 0 for axis in range(tensor.rank)]),
        builders.pointwise("not", is_first),
    )
    return builders.where(is_first, early, late)
