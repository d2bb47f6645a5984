"""Functions of numbers that are a formula: interpolation, products added, logarithms of sums, angles."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from kiln.loops.ir import HALF_TYPES, wide
from kiln.loops.tensor_views import Tensor

from ... import builders
from ...lowering import Lowering
from ...registry import NotLowered, lowers, lowers_dynamic_floats
from .elementwise import overloads
from .formulas import Operand, Value, common_type, computed, copy_if_visible, float_type, formula, of_tensors, where

aten = torch.ops.aten
INFINITY = float("inf")


def is_one(value: Any) -> bool:
    return isinstance(value, (int, float)) and value == 1


# ---- several tensors -------------------------------------------------------------------------------------------------


def addcmul(x: Value, a: Value, b: Value, value: Any = 1) -> Value:
    """ATen's vectors round the sum and the last product once."""
    scaled = a if is_one(value) else value * a
    return scaled.fma(b, x) if x.dtype.is_floating_point else x + scaled * b


@lowers(aten.addcmul.default)
def lower_addcmul(lowering: Lowering, node: Node, x: Tensor, a: Tensor, b: Tensor, *, value: Any = 1) -> Tensor:
    return computed(*of_tensors(addcmul, (x, a, b, value), {}), wide(node.meta["val"].dtype), node.meta["val"])


@formula(aten.addcdiv.default)
def addcdiv(x: Value, a: Value, b: Value, value: Any = 1) -> Value:
    return x + (a if is_one(value) else value * a) / b


@formula(aten.lerp.Scalar)
def lerp_number(start: Value, end: Value, weight: Any) -> Value:
    if isinstance(weight, Value):
        return lerp(start, end, weight)
    near = abs(weight) < 0.5
    inside = Value(start.like(weight))
    return (inside if near else inside - 1).fma(end - start, start if near else end)


@formula(aten.lerp.Tensor)
def lerp(start: Value, end: Value, weight: Value) -> Value:
    near = weight.abs() < 0.5
    return where(near, weight, weight - 1).fma(end - start, where(near, start, end))


lowers_dynamic_floats((aten.addcmul.default, aten.addcdiv.default, aten.lerp.Scalar))


# ---- two numbers -----------------------------------------------------------------------------------------------------


def logaddexp(x: Value, y: Value) -> Value:
    total = x.maximum(y) + (-(x - y).abs()).exp().log1p()
    return where(x.eq(y) & x.isinf(), x, total)


def logaddexp2(x: Value, y: Value) -> Value:
    total = x.maximum(y) + (-(x - y).abs()).exp2().log1p() * (1 / math.log(2))
    return where(x.eq(y) & x.isinf(), x, total)


def xlogy(x: Value, y: Value) -> Value:
    return where(y.isnan(), y, where(x.eq(0), 0.0, x * y.log()))


def xlog1py(x: Value, y: Value) -> Value:
    return where(y.isnan(), y, where(x.eq(0), 0.0, x * y.log1p()))


def pair(
    function: Callable[..., Value], is_narrow: bool, lowering: Lowering, node: Node, a: Operand, b: Operand
) -> Tensor:
    dtype = float_type(common_type([a, b]))
    return computed(function, [a, b], dtype if is_narrow else wide(dtype), node.meta["val"])


SCALARS = ("default", "Tensor", "Scalar_Other", "Scalar_Self", "other_scalar", "self_scalar")
for _name, (_function, _is_narrow) in {
    "logaddexp": (logaddexp, False),
    "logaddexp2": (logaddexp2, False),
    "xlogy": (xlogy, True),
    "special_xlog1py": (xlog1py, True),
}.items():
    lowers(*overloads(_name, SCALARS))(functools.partial(pair, _function, _is_narrow))


# ---- one number ------------------------------------------------------------------------------------------------------


def sinc(x: Value) -> Value:
    product = x * math.pi
    return where(x.eq(0), 1.0, product.sin() / product)


def entr(x: Value) -> Value:
    return where(x.isnan(), x, where(x > 0, -x * x.log(), where(x.eq(0), 0.0, Value(x.like(-INFINITY)))))


def angle(x: Value) -> Value:
    return where(x.isnan(), x, where(x < 0, math.pi, Value(x.like(0.0))))


def of_float(function: Callable[..., Value], is_narrow: bool, lowering: Lowering, node: Node, x: Tensor) -> Tensor:
    dtype = float_type(x.dtype)
    return computed(function, [x], dtype if is_narrow else wide(dtype), node.meta["val"])


FLOAT_FUNCTIONS: dict[str, tuple[Callable[[Value], Value], bool]] = {
    "sinc": (sinc, False),
    "special_entr": (entr, True),
    "angle": (angle, False),
    "deg2rad": (lambda x: x * (math.pi / 180), False),
    "rad2deg": (lambda x: x * (180 / math.pi), False),
}
for _operator, (_of_float, _rounds) in FLOAT_FUNCTIONS.items():
    lowers(getattr(aten, _operator).default)(functools.partial(of_float, _of_float, _rounds))


@lowers(aten.frac.default)
def frac(lowering: Lowering, node: Node, x: Tensor) -> Tensor:
    return computed(lambda v: v - v.trunc(), [x], x.dtype, node.meta["val"])


@lowers(aten._conj_physical.default, aten.conj_physical.default)
def conj_physical(lowering: Lowering, node: Node, x: Tensor) -> Tensor:
    return copy_if_visible(lowering, node, x)


@lowers(aten.round.decimals)
def round_decimals(lowering: Lowering, node: Node, x: Tensor, *, decimals: int) -> Tensor:
    """ATen scales by a power of ten, whose type is the tensors'."""
    if not x.dtype.is_floating_point:
        raise NotLowered("decimals of integers")
    if decimals == 0:
        return builders.pointwise("round", x)
    power = 10.0 ** abs(decimals)
    if decimals > 0:
        return computed(lambda v: (v * power).round() / power, [x], wide(x.dtype), node.meta["val"])
    return computed(lambda v: (v / power).round() * power, [x], wide(x.dtype), node.meta["val"])


@lowers(aten.logit.default)
def logit(lowering: Lowering, node: Node, x: Tensor, eps: float | None = None) -> Tensor:
    def odds(v: Value) -> Value:
        if eps is not None:
            v = where(v < eps, eps, where(v > 1 - eps, 1 - eps, v))
        return (v / (1 - v)).log()

    return computed(odds, [x], float_type(x.dtype), node.meta["val"])


@formula(aten.logit_backward.default, narrow=HALF_TYPES)
def logit_backward(grad: Value, x: Value, eps: float | None = None) -> Value:
    inside = grad / (x * (1 - x))
    if eps is None:
        return where((x < 0) | (x > 1), math.nan, inside)
    return where((x >= eps) & (x <= 1 - eps), inside, 0.0)
