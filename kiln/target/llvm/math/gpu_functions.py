"""Functions of float32 for which GPUs have instructions: powers of two, reciprocals, reciprocal roots.

Their errors are about 2 ULP, as those of the functions that CUDA's own kernels call.
"""

from __future__ import annotations

from collections.abc import Callable

from .exponential import EXP_RANGE, LOG2_E, TANH, TANH_BOUND
from .vector import Vector

LOG2_E_HIGH = 1.4426950216293335  # log2(e) in float32
LOG2_E_LOW = LOG2_E - LOG2_E_HIGH
LN2 = 0.6931471805599453


def exp2(v: Vector, x: str) -> str:
    return v.each_lane("llvm.nvvm.ex2.approx.f", [x])


def reciprocal(v: Vector, x: str) -> str:
    """1/x; 0 where that would be denormal."""
    return v.each_lane("llvm.nvvm.rcp.approx.ftz.f", [x])


def rsqrt(v: Vector, x: str) -> str:
    return v.each_lane("llvm.nvvm.rsqrt.approx.f", [x])


def exp(v: Vector, x: str) -> str:
    """2^h·(1 + l·ln 2), where h + l is x·log2(e) to twice the precision."""
    least, greatest = EXP_RANGE["float"]
    x = v.at_most(v.at_least(x, least), greatest)
    high = v.mul(x, LOG2_E_HIGH)
    low = v.fma(x, LOG2_E_LOW, v.fma(x, LOG2_E_HIGH, v.neg(high)))
    return v.mul(exp2(v, high), v.fma(low, LN2, 1.0))


def sigmoid(v: Vector, x: str) -> str:
    return reciprocal(v, v.add(exp(v, v.neg(x)), 1.0))


def tanh(v: Vector, x: str) -> str:
    """1 - 2/(exp(2t) + 1), or an odd polynomial where t = |x| is small."""
    t = v.abs(x)
    s = v.mul(t, t)
    small = v.fma(v.mul(t, s), v.polynomial(s, TANH["float"]), t)
    power = exp2(v, v.mul(t, 2.0 * LOG2_E_HIGH))
    large = v.fma(reciprocal(v, v.add(power, 1.0)), -2.0, 1.0)
    return v.copysign(v.select(v.compare("olt", t, TANH_BOUND["float"]), small, large), x)


# Where larger errors do not matter (`target.cuda.relaxed_functions`).


def exp2_or_zero(v: Vector, x: str) -> str:
    """Powers of two; 0 instead of denormals."""
    return v.each_lane("llvm.nvvm.ex2.approx.ftz.f", [x])


def relaxed_exp(v: Vector, x: str) -> str:
    return exp2_or_zero(v, v.mul(x, LOG2_E_HIGH))


def relaxed_exp_with_denormals(v: Vector, x: str) -> str:
    return exp2(v, v.mul(x, LOG2_E_HIGH))


def relaxed_div(v: Vector, a: str, b: str) -> str:
    return v.each_lane("llvm.nvvm.div.full", [a, b])


def relaxed_sigmoid(v: Vector, x: str) -> str:
    return reciprocal(v, v.add(exp2_or_zero(v, v.mul(x, -LOG2_E_HIGH)), 1.0))


def relaxed_tanh(v: Vector, x: str) -> str:
    """1 - 2/(exp(2x) + 1), with an absolute error."""
    power = exp2_or_zero(v, v.mul(x, 2.0 * LOG2_E_HIGH))
    return v.fma(reciprocal(v, v.add(power, 1.0)), -2.0, 1.0)


RELAXED: dict[str, Callable[..., str]] = {
    "exp": relaxed_exp,
    "exp with denormals": relaxed_exp_with_denormals,
    "sigmoid": relaxed_sigmoid,
    "tanh": relaxed_tanh,
    "div": relaxed_div,
}
FUNCTIONS: dict[str, Callable[..., str]] = {
    "exp": exp,
    "exp2": exp2,
    "rsqrt": rsqrt,
    "sigmoid": sigmoid,
    "tanh": tanh,
}
