"""Roots, remainders, the gamma functions and what handles bits: for vectors of float32 and float64."""

from __future__ import annotations

import math

from . import far_arguments, log_gamma
from .logarithm import finite_log, log_ends
from .trigonometry import HALF_PI, sine_and_cosine
from .vector import Vector

# B(2k)/2k, of the asymptotic series of digamma
DIGAMMA = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)
DIGAMMA_FROM = 10  # where that series is good


def rsqrt(v: Vector, x: str) -> str:
    return v.div(1.0, v.sqrt(x))


def hypot(v: Vector, x: str, y: str) -> str:
    """√(x² + y²), scaled by a power of two so that squares neither overflow nor vanish (float64)."""
    a, b = v.abs(x), v.abs(y)
    swap = v.compare("olt", a, b)
    greatest, least = v.select(swap, b, a), v.select(swap, a, b)
    large, small = v.compare("ogt", greatest, 2.0**500), v.compare("olt", greatest, 2.0**-450)
    factor = v.select(large, 2.0**-600, v.select(small, 2.0**600, 1.0))
    back = v.select(large, 2.0**600, v.select(small, 2.0**-600, 1.0))
    greatest, least = v.mul(greatest, factor), v.mul(least, factor)
    result = v.mul(v.sqrt(v.fma(greatest, greatest, v.mul(least, least))), back)
    infinite = v.mask_or(v.compare("oeq", a, math.inf), v.compare("oeq", b, math.inf))
    return v.select(infinite, math.inf, result)


def fmod(v: Vector, x: str, y: str) -> str:
    """Exact: the quotient is off by one at most where it is below 2^23 (2^52), and the remainder has no more digits
    than the divisor. Else the C library's, on GPUs that of integers."""
    a, b = v.abs(x), v.abs(y)
    quotient = v.div(a, b)
    rest = v.fma(v.neg(v.intrinsic("trunc", quotient)), b, a)
    rest = v.select(v.compare("olt", rest, 0.0), v.add(rest, b), rest)
    endless = v.mask_and(v.compare("oeq", b, math.inf), v.compare("olt", a, math.inf))
    result = v.copysign(v.select(endless, a, rest), x)
    far = v.compare("uge", quotient, 2.0**v.fraction_bits)
    if v.lines.is_for_gpu:
        return v.if_any(far, result, lambda: v.copysign(far_arguments.far_fmod(v, a, b), x))
    return v.if_any(far, result, lambda: v.each_lane("fmod" if v.is_double else "fmodf", [x, y]))


def remainder(v: Vector, x: str, y: str) -> str:
    """fmod, moved to the divisor's sign."""
    rest = fmod(v, x, y)
    return v.select(differ_in_sign(v, rest, y), v.add(rest, y), rest)


def differ_in_sign(v: Vector, rest: str, y: str) -> str:
    """Whether a remainder that is not 0 has another sign than the divisor."""
    other = v.lines.new(f"xor {v.masks} {v.compare('olt', y, 0.0)}, {v.compare('olt', rest, 0.0)}")
    return v.mask_and(v.compare("une", rest, 0.0), other)


def nextafter(v: Vector, x: str, y: str) -> str:
    bits = v.bits(x)
    # Away from zero is one more, whatever the sign.
    away = v.lines.new(f"xor {v.masks} {v.compare('olt', x, y)}, {v.integer_compare('slt', bits, 0)}")
    moved = v.from_bits(v.integer_op("add", bits, v.select_integer(away, 1, -1)))
    least = v.copysign(v.from_bits(v.integer_op("or", v.int_const(1), 0)), y)
    result = v.select(v.compare("oeq", x, 0.0), least, moved)
    result = v.select(v.compare("oeq", x, y), y, result)
    return v.select(v.compare("uno", x, y), v.add(x, y), result)


def lgamma(v: Vector, x: str) -> str:
    if v.lines.is_for_gpu:
        wide = log_gamma.lgamma(v.doubled(), x if v.is_double else v.widen(x))
        return wide if v.is_double else v.narrow(wide)
    return v.each_lane("lgamma" if v.is_double else "lgammaf", [x])


def digamma(v: Vector, x: str) -> str:
    """The asymptotic series at x, moved to DIGAMMA_FROM or more by ψ(x) = ψ(x + 1) - 1/x and, below 0, reflected:
    ψ(x) = ψ(1 - x) - π/tan(πx) (float64)."""
    negative = v.compare("olt", x, 0.0)
    z = v.select(negative, v.sub(1.0, x), x)
    far = v.compare("ogt", z, float(DIGAMMA_FROM))
    above, below = v.const(1.0), z  # the sum of 1/(z + i) as one fraction
    for step in range(1, DIGAMMA_FROM):
        factor = v.add(z, float(step))
        above, below = v.fma(above, factor, below), v.mul(below, factor)
    sum_ = v.select(far, 0.0, v.div(above, below))
    z = v.select(far, z, v.add(z, float(DIGAMMA_FROM)))
    inverse = v.div(1.0, z)
    square = v.mul(inverse, inverse)
    series = v.mul(square, v.polynomial(square, DIGAMMA))
    result = v.sub(v.sub(v.sub(log_ends(v, z, finite_log(v, z)), v.mul(inverse, 0.5)), series), sum_)
    # π/tan(πf) for f between -1/2 and 1/2, by sin and cos within π/4.
    fraction = v.sub(x, v.intrinsic("rint", x))
    f = v.abs(fraction)
    outer = v.compare("ogt", f, 0.25)
    angle = v.mul(v.select(outer, v.sub(0.5, f), f), 2.0 * HALF_PI[0])
    sine, cosine = (v.add(*parts) for parts in sine_and_cosine(v, angle, None))
    cotangent = v.div(v.select(outer, sine, cosine), v.select(outer, cosine, sine))
    reflected = v.sub(result, v.copysign(v.mul(cotangent, 2.0 * HALF_PI[0]), fraction))
    whole = v.compare("oeq", fraction, 0.0)
    reflected = v.select(whole, math.nan, reflected)
    result = v.select(negative, reflected, result)
    return v.select(v.compare("oeq", x, 0.0), v.copysign(math.inf, v.neg(x)), result)
