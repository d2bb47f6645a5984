"""Arithmetic, comparisons, logic and functions of one number: operators that are an operation of the IR, or nearly.

The tables say which operation an operator is and which type it computes in; functions below them do what is more.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from kiln.loops.ir import wide
from kiln.loops.tensor_views import Tensor
from kiln.program.operators.operator_table import operator_of

from ... import builders
from ...lowering import Lowering
from ...registry import NotLowered, lowers, lowers_dynamic_floats
from .formulas import Operand, Value, as_type, common_type, computed, copy_if_visible, float_type, where

aten = torch.ops.aten

# ---- one argument ----------------------------------------------------------------------------------------------------

# Functions of floats; integers become floats first.
FLOAT_FUNCTIONS = (
    "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc erfinv "
    "lgamma digamma sigmoid sqrt rsqrt reciprocal"
).split()
# Functions that keep the type. For integers, those of the second table are nothing.
KEEPING = {"neg": "neg", "abs": "abs", "sign": "sign", "sgn": "sign", "bitwise_not": "not", "relu": "relu"}
ROUNDING = ("floor", "ceil", "trunc", "round")


def float_function(name: str, lowering: Lowering, node: Node, x: Tensor) -> Tensor:
    return computed(lambda value: value.apply(name), [x], float_type(x.dtype), node.meta["val"])


def keeping(name: str, lowering: Lowering, node: Node, x: Tensor) -> Tensor:
    if x.dtype is torch.bool and name != "not":
        if name == "sign":
            return copy_if_visible(lowering, node, x)
        raise NotLowered(f"{name} of bool")
    return builders.pointwise(name, x)


def rounding(name: str, lowering: Lowering, node: Node, x: Tensor) -> Tensor:
    return builders.pointwise(name, x) if x.dtype.is_floating_point else copy_if_visible(lowering, node, x)


for _name in FLOAT_FUNCTIONS:
    lowers(getattr(aten, _name).default)(functools.partial(float_function, _name))
for _name, _operation in KEEPING.items():
    lowers(getattr(aten, _name).default)(functools.partial(keeping, _operation))
for _name in ROUNDING:
    lowers(getattr(aten, _name).default)(functools.partial(rounding, _name))


@lowers(aten.logical_not.default)
def logical_not(lowering: Lowering, node: Node, x: Tensor) -> Tensor:
    return builders.pointwise("not", builders.cast(x, torch.bool))


def is_what(test: Callable[[Value], Value], lowering: Lowering, node: Node, x: Tensor) -> Tensor:
    """A question about floats, whose answer is no for integers."""
    if not x.dtype.is_floating_point:
        return builders.full(x.shape, False, torch.bool)
    return computed(test, [x], x.dtype, node.meta["val"])


INFINITY = float("inf")
for _overload, _test in {
    aten.isnan.default: lambda x: x.isnan(),
    aten.isinf.default: lambda x: x.isinf(),
    aten.isposinf.default: lambda x: x.eq(INFINITY),
    aten.isneginf.default: lambda x: x.eq(-INFINITY),
}.items():
    lowers(_overload)(functools.partial(is_what, _test))


@lowers(aten.signbit.default)
def signbit(lowering: Lowering, node: Node, x: Tensor) -> Tensor:
    if x.dtype is torch.bool:
        return builders.full(x.shape, False, torch.bool)
    return computed(lambda v: v.signbit() if v.dtype.is_floating_point else v < 0, [x], x.dtype, node.meta["val"])


# ---- two arguments ---------------------------------------------------------------------------------------------------

# Operators that compute in the common type of their arguments, by how bools are combined (None: eager has none of it).
IN_COMMON_TYPE: dict[str, tuple[str, str | None]] = {
    "maximum": ("maximum", "or"),
    "minimum": ("minimum", "and"),
    "bitwise_and": ("and", "and"),
    "bitwise_or": ("or", "or"),
    "bitwise_xor": ("xor", "xor"),
}
FLOAT_PAIRS = {"atan2": "atan2", "copysign": "copysign", "nextafter": "nextafter", "hypot": "hypot"}
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
LOGICAL = {"logical_and": "and", "logical_or": "or", "logical_xor": "xor"}
OVERLOADS = ("default", "Tensor", "Scalar", "Tensor_Scalar", "Scalar_Tensor")


def overloads(name: str, allowed: tuple[str, ...] = OVERLOADS) -> list[Any]:
    packet = getattr(aten, name)
    return [getattr(packet, which) for which in packet.overloads() if which in allowed and takes_tensors(packet, which)]


def takes_tensors(packet: Any, which: str) -> bool:
    """TorchScript's operators on numbers have the same names."""
    return any(str(argument.type) == "Tensor" for argument in operator_of(getattr(packet, which)).arguments)


def in_common_type(names: tuple[str, str | None], lowering: Lowering, node: Node, a: Operand, b: Operand) -> Tensor:
    dtype = common_type([a, b])
    name, of_bools = names
    if dtype is torch.bool:
        if of_bools is None:
            raise NotLowered(f"{name} of bools")
        name = of_bools
    return computed(lambda x, y: x.apply(name, y), [a, b], dtype, node.meta["val"])


def float_pair(name: str, lowering: Lowering, node: Node, a: Operand, b: Operand) -> Tensor:
    dtype = float_type(common_type([a, b]))
    if name == "nextafter" and wide(dtype) is not dtype:
        raise NotLowered("the next number of a low type")
    return computed(lambda x, y: x.apply(name, y), [a, b], dtype, node.meta["val"])


def logical(name: str, lowering: Lowering, node: Node, a: Operand, b: Operand) -> Tensor:
    return computed(lambda x, y: x.apply(name, y), [a, b], torch.bool, node.meta["val"])


for _name, _operations in IN_COMMON_TYPE.items():
    lowers(*overloads(_name))(functools.partial(in_common_type, _operations))
for _name in COMPARISONS:
    lowers(*overloads(_name))(functools.partial(in_common_type, (_name, _name)))
for _name, _operation in FLOAT_PAIRS.items():
    lowers(*overloads(_name))(functools.partial(float_pair, _operation))
for _name, _operation in LOGICAL.items():
    lowers(*overloads(_name))(functools.partial(logical, _operation))


# ---- sums and products -----------------------------------------------------------------------------------------------


def scaled_sum(x: Value, y: Value, alpha: Any) -> Value:
    """x + alpha * y as ATen's vectors do it: rounded once for floats."""
    dtype = x.dtype
    if dtype is torch.bool:
        return x | y if alpha else x
    if not isinstance(alpha, Value):
        if alpha == 1:
            return x + y
        alpha = Value(as_type(alpha, dtype).expr)
    factor: Value = alpha
    if not dtype.is_floating_point:
        return x + y * factor
    inside = wide(dtype)  # the factor is rounded to the type of the tensors, then used wide
    return y.cast(inside).fma(factor.cast(inside), x.cast(inside)).cast(dtype)


@lowers(aten.add.Tensor, aten.add.Scalar)
def add(lowering: Lowering, node: Node, a: Operand, b: Operand, alpha: Any = 1) -> Tensor:
    dtype = common_type([a, b])
    if isinstance(alpha, Tensor):
        return computed(scaled_sum, [a, b, alpha], dtype, node.meta["val"])
    if not isinstance(alpha, (bool, int, float)):
        raise NotLowered("a factor that is a size")
    return computed(lambda x, y: scaled_sum(x, y, alpha), [a, b], dtype, node.meta["val"])


@lowers(aten.sub.Tensor, aten.sub.Scalar)
def sub(lowering: Lowering, node: Node, a: Operand, b: Operand, alpha: Any = 1) -> Tensor:
    if any(isinstance(one, bool) or (isinstance(one, Tensor) and one.dtype is torch.bool) for one in (a, b)):
        raise NotLowered("a difference of bools")
    if isinstance(alpha, Tensor):
        return computed(lambda x, y, z: scaled_sum(x, y, -z), [a, b, alpha], common_type([a, b]), node.meta["val"])
    if alpha == 1:
        return computed(lambda x, y: x - y, [a, b], common_type([a, b]), node.meta["val"])
    return add(lowering, node, a, b, -alpha)


@lowers(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(lowering: Lowering, node: Node, a: Operand, b: Operand, alpha: Any = 1) -> Tensor:
    return sub(lowering, node, b, a, alpha)


def is_single(operand: Operand) -> bool:
    return not isinstance(operand, Tensor) or operand.rank == 0


def product_type(a: Operand, b: Operand, dtype: torch.dtype) -> torch.dtype:
    """The type that products and quotients compute in: a single number on the right is not rounded to the type."""
    return wide(dtype) if is_single(b) else dtype


@lowers(aten.mul.Tensor, aten.mul.Scalar)
def mul(lowering: Lowering, node: Node, a: Operand, b: Operand) -> Tensor:
    dtype = common_type([a, b])
    if dtype is torch.bool:
        return computed(lambda x, y: x & y, [a, b], dtype, node.meta["val"])
    return computed(lambda x, y: x * y, [a, b], product_type(a, b, dtype), node.meta["val"])


@lowers(aten.div.Tensor, aten.div.Scalar)
def div(lowering: Lowering, node: Node, a: Operand, b: Operand) -> Tensor:
    dtype = product_type(a, b, float_type(common_type([a, b])))
    return computed(lambda x, y: x / y, [a, b], dtype, node.meta["val"])


def whole_divisor(dtype: torch.dtype, b: Operand) -> None:
    """Integers are divided here only by numbers that are known: eager raises for zeros."""
    if not dtype.is_floating_point and (dtype is torch.bool or not isinstance(b, int) or b == 0):
        raise NotLowered("a divisor that may be zero")


def toward_zero(x: Value, y: Value) -> Value:
    return (x / y).trunc() if x.dtype.is_floating_point else x.truncdiv(y)


def downward(x: Value, y: Value, rounded: Callable[[Value], Value] = lambda value: value) -> Value:
    """The quotient is found step by step, as ATen does; ``rounded`` is what it makes of the whole number."""
    left = x.fmod(y)
    quotient = (x - left) / y
    quotient = where(left.ne(0.0) & (y < 0.0).xor(left < 0.0), quotient - 1.0, quotient)
    below = rounded(quotient.floor())
    below = where(quotient - below > 0.5, below + 1.0, below)
    return where(y.eq(0.0), x / y, where(quotient.eq(0.0), Value(x.like(0.0)).copysign(x / y), below))


def downward_on_gpu(x: Value, y: Value) -> Value:
    """Of float16 and bfloat16, ATen computes the quotient in float32, but has the whole number in the type."""
    kind, exact = x.dtype, wide(x.dtype)
    return downward(x.cast(exact), y.cast(exact), lambda value: value.cast(kind).cast(exact)).cast(kind)


def floor_of(lowering: Lowering) -> Callable[[Value, Value], Value]:
    """How eager rounds quotients down. Float16 and bfloat16 are rounded after each operation on the CPU."""
    narrow = downward if lowering.device.type == "cpu" else downward_on_gpu
    return lambda x, y: x.floordiv(y) if wide(x.dtype) is x.dtype else narrow(x, y)


def rounded_quotient(node: Any, a: Operand, b: Operand, function: Callable[..., Value]) -> Tensor:
    dtype = common_type([a, b])
    whole_divisor(dtype, b)
    if b == -1 and not dtype.is_floating_point:
        return computed(lambda x: -x, [a], dtype, node.meta["val"])
    return computed(function, [a, b], product_type(a, b, dtype), node.meta["val"])


@lowers(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_mode(lowering: Lowering, node: Node, a: Operand, b: Operand, rounding_mode: str | None = None) -> Tensor:
    if rounding_mode is None:
        return div(lowering, node, a, b)
    return rounded_quotient(node, a, b, {"floor": floor_of(lowering), "trunc": toward_zero}[rounding_mode])


@lowers(aten.floor_divide.default, aten.floor_divide.Scalar)
def floor_divide(lowering: Lowering, node: Node, a: Operand, b: Operand) -> Tensor:
    return rounded_quotient(node, a, b, floor_of(lowering))


def rest(name: str, lowering: Lowering, node: Node, a: Operand, b: Operand) -> Tensor:
    dtype = common_type([a, b])
    whole_divisor(dtype, b)
    if not dtype.is_floating_point and b == -1:
        return computed(lambda x: x * 0, [a], dtype, node.meta["val"])
    return computed(lambda x, y: x.apply(name, y), [a, b], dtype, node.meta["val"])


for _name in ("remainder", "fmod"):
    lowers(*overloads(_name))(functools.partial(rest, _name))


# ---- shifts ----------------------------------------------------------------------------------------------------------


def shift_left(x: Value, by: Value, bits: int) -> Value:
    fits = (by >= 0) & (by < bits)
    return where(fits, x.shl(where(fits, by, 0)), 0)


def shift_right(x: Value, by: Value, bits: int) -> Value:
    """By as many places as there are at most: what is left of that is the sign."""
    most = bits - 1 if x.dtype.is_signed else bits
    fits = (by >= 0) & (by < most)
    if x.dtype.is_signed:
        return x.shr(where(fits, by, most))
    return where(fits, x.shr(where(fits, by, 0)), 0)


def shift(function: Callable[..., Value], lowering: Lowering, node: Node, a: Operand, b: Operand) -> Tensor:
    dtype = common_type([a, b])
    if dtype.is_floating_point or dtype is torch.bool:
        raise NotLowered(f"a shift of {dtype}")
    bits = torch.iinfo(dtype).bits
    return computed(lambda x, y: function(x, y, bits), [a, b], dtype, node.meta["val"])


for _name, _function in {"left": shift_left, "right": shift_right}.items():
    lowers(
        *overloads(f"bitwise_{_name}_shift"),
        *overloads(f"__{_name[0]}shift__"),
    )(functools.partial(shift, _function))


# ---- choices ---------------------------------------------------------------------------------------------------------


@lowers(aten.where.self)
def where_self(lowering: Lowering, node: Node, condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    dtype = node.meta["val"].dtype
    return builders.where(builders.cast(condition, torch.bool), builders.cast(a, dtype), builders.cast(b, dtype))


@lowers(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(lowering: Lowering, node: Node, x: Tensor, mask: Tensor, value: Operand) -> Tensor:
    return builders.where(builders.cast(mask, torch.bool), as_type(value, x.dtype), x)


def at_least(x: Value, bound: Value | float | None) -> Value:
    if bound is None:
        return x
    return x.maximum(bound) if isinstance(bound, Value) else where(x < bound, bound, x)  # keeps NaN and -0


def at_most(x: Value, bound: Value | float | None) -> Value:
    if bound is None:
        return x
    return x.minimum(bound) if isinstance(bound, Value) else where(x > bound, bound, x)


@lowers(aten.clamp.default, aten.clamp.Tensor)
def clamp(lowering: Lowering, node: Node, x: Tensor, low: Any = None, high: Any = None) -> Tensor:
    dtype = node.meta["val"].dtype
    if dtype is torch.bool:
        raise NotLowered("bounds of bools")
    bounds = [low, high]
    if any(bound != bound for bound in bounds if isinstance(bound, float)):
        raise NotLowered("a bound that is NaN, of which releases of torch make something else")
    for place, bound in enumerate(bounds):
        if bound is not None and not isinstance(bound, Tensor):
            bounds[place] = as_type(bound, dtype) if not isinstance(bound, (int, float)) else bound
    tensors = [x, *(bound for bound in bounds if isinstance(bound, Tensor))]

    def bounded(value: Value, *others: Value) -> Value:
        left = iter(others)
        lower, upper = (next(left) if isinstance(bound, Tensor) else bound for bound in bounds)
        return at_most(at_least(value, lower), upper)

    return computed(bounded, tensors, dtype, node.meta["val"])


@lowers(aten.clamp_min.default, aten.clamp_min.Tensor)
def clamp_min(lowering: Lowering, node: Node, x: Tensor, low: Any) -> Tensor:
    return clamp(lowering, node, x, low, None)


@lowers(aten.clamp_max.default, aten.clamp_max.Tensor)
def clamp_max(lowering: Lowering, node: Node, x: Tensor, high: Any) -> Tensor:
    return clamp(lowering, node, x, None, high)


@lowers(aten.fmax.default)
def fmax(lowering: Lowering, node: Node, a: Tensor, b: Tensor) -> Tensor:
    return ignoring_nan(lowering, node, a, b, lambda x, y: where(x >= y, x, y), "maximum")


@lowers(aten.fmin.default)
def fmin(lowering: Lowering, node: Node, a: Tensor, b: Tensor) -> Tensor:
    return ignoring_nan(lowering, node, a, b, lambda x, y: where(x <= y, x, y), "minimum")


def ignoring_nan(
    lowering: Lowering, node: Node, a: Tensor, b: Tensor, choose: Callable[..., Value], name: str
) -> Tensor:
    dtype = common_type([a, b])
    if not dtype.is_floating_point:
        return in_common_type(IN_COMMON_TYPE[name], lowering, node, a, b)
    return computed(lambda x, y: where(y.isnan(), x, choose(x, y)), [a, b], dtype, node.meta["val"])


@lowers(aten.heaviside.default)
def heaviside(lowering: Lowering, node: Node, x: Tensor, values: Tensor) -> Tensor:
    dtype = node.meta["val"].dtype
    if x.dtype is not values.dtype:
        raise NotLowered("two types")
    if dtype is torch.bool:
        return builders.pointwise("or", x, values)
    return computed(
        lambda v, at_zero: where(v.eq(0), at_zero, (v > 0).cast(dtype)), [x, values], dtype, node.meta["val"]
    )


@lowers(aten.nan_to_num.default)
def nan_to_num(
    lowering: Lowering,
    node: Node,
    x: Tensor,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
) -> Tensor:
    if not x.dtype.is_floating_point:
        return copy_if_visible(lowering, node, x)
    limits = torch.finfo(x.dtype)
    top = limits.max if posinf is None else posinf
    bottom = limits.min if neginf is None else neginf

    def finite(v: Value) -> Value:
        return where(v.isnan(), nan or 0.0, where(v.eq(INFINITY), top, where(v.eq(-INFINITY), bottom, v)))

    return computed(finite, [x], x.dtype, node.meta["val"])


# ---- powers ----------------------------------------------------------------------------------------------------------

# The exponents that ATen treats apart. The square and the cube of bfloat16 are rounded after each product; roots of
# float16 are powers like any other.
SPECIAL_POWERS: dict[float, Callable[[Value], Value]] = {
    0.5: lambda x: x.sqrt(),
    2: lambda x: x * x,
    3: lambda x: x * x * x,
    -0.5: lambda x: x.rsqrt(),
    -1: lambda x: x.reciprocal(),
    -2: lambda x: (x * x).reciprocal(),
}


def whole_power(x: Value, exponent: int) -> Value:
    """By squaring: integers wrap around in any order."""
    found: Value | None = None
    while exponent:
        if exponent % 2:
            found = x if found is None else found * x
        exponent //= 2
        x = x * x if exponent else x
    return found if found is not None else x * 0 + 1


@lowers(aten.pow.Tensor_Scalar)
def pow_number(lowering: Lowering, node: Node, x: Tensor, exponent: Any) -> Tensor:
    result = node.meta["val"]
    dtype = result.dtype
    if not isinstance(exponent, (int, float)):
        return pow_any(lowering, node, x, exponent)
    if exponent == 0 and dtype is not torch.bool:
        return builders.full(x.shape, 1, dtype)
    if exponent == 1:
        return copy_if_visible(lowering, node, builders.cast(x, dtype))
    if dtype is torch.bool or (not dtype.is_floating_point and (exponent < 0 or not isinstance(exponent, int))):
        raise NotLowered("a power that eager does not have, or gives as a bool")
    if not dtype.is_floating_point:
        return computed(lambda v: whole_power(v, int(exponent)), [x], dtype, result)
    special = SPECIAL_POWERS.get(float(exponent))
    if special is None or (dtype is torch.float16 and abs(exponent) == 0.5):
        return computed(lambda v, by: v.pow(by), [x, exponent], dtype, result)
    return computed(special, [x], dtype if dtype is torch.bfloat16 else wide(dtype), result)


@lowers(aten.pow.Tensor_Tensor, aten.pow.Scalar)
def pow_any(lowering: Lowering, node: Node, x: Operand, exponent: Operand) -> Tensor:
    dtype = node.meta["val"].dtype
    if not dtype.is_floating_point:
        raise NotLowered("a power of integers")
    if isinstance(x, (int, float)) and x == 1:
        assert isinstance(exponent, Tensor)
        return builders.full(exponent.shape, 1, dtype)
    return computed(lambda v, by: v.pow(by), [x, exponent], dtype, node.meta["val"])


lowers_dynamic_floats(
    target for name in ("add", "sub", "rsub", "mul", "div", "pow", *COMPARISONS) for target in overloads(name)
)
lowers_dynamic_floats((aten.clamp.default, aten.clamp_min.default, aten.clamp_max.default, aten.masked_fill.Scalar))
