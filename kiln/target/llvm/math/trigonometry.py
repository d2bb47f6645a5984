"""sin, cos, tan and their inverses. exponential.py says how the coefficients were computed.

Arguments are reduced by multiples of π/2 in float64, also those of float32: with fused multiplication the first step
is exact, the second leaves an error of some 2^-107 times the multiple. Larger arguments are left to the C library; on
GPUs they are reduced in integers (`far_arguments`).
"""

from __future__ import annotations

import math

from . import far_arguments
from .vector import Vector

Parts = tuple[str, str]  # a number as a sum

HALF_PI = (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33)
TWO_OVER_PI = 0.6366197723675814
LARGEST = {"float": 2.0**50, "double": 2.0**30}
LARGEST_ON_GPU = 2.0**30
# (sin(r)/r - 1) / r² and (cos(r) - 1 + r²/2) / r⁴ as polynomials of r², |r| ≤ π/4
SIN = {
    "float": (-0.16666655242443085, 0.008332190103828907, -0.00019518405315466225),
    "double": (
        -0.16666666666666632, 0.008333333333322316, -0.00019841269829725278, 2.7557313662094105e-06,
        -2.505075327151328e-08, 1.5896505408850253e-10,
    ),
}  # fmt: skip
COS = {
    "float": (0.04166664555668831, -0.00138873013202101, 2.443066841806285e-05),
    "double": (
        0.0416666666666666, -0.001388888888887399, 2.4801587289394967e-05, -2.7557314326047803e-07,
        2.0875719561691476e-09, -1.1359448865126576e-11,
    ),
}  # fmt: skip
# (atan(t)/t - 1) / t² as a polynomial of t², |t| ≤ √2 - 1
ATAN = (
    -0.33333333333333326, 0.19999999999997684, -0.14285714285389867, 0.11111111088292941, -0.09090908148670852,
    0.07692282852177318, -0.06666228137274038, 0.05877035306798995, -0.05218491349904305, 0.04503903109331625,
    -0.033482694007259194, 0.015203522908061618,
)  # fmt: skip
# (asin(t)/t - 1) / t² as a polynomial of t², |t| ≤ 1/2
ASIN = (
    0.1666666666666666, 0.07500000000002559, 0.044642857139658605, 0.03038194464630834, 0.022372151549415197,
    0.017352946357874377, 0.01396185946907991, 0.01158610679952006, 0.009481105112965484, 0.010023593302945267,
    0.0006356701040092578, 0.02492872637919027, -0.02628217070986515, 0.0337206054721075,
)  # fmt: skip


def reduced(wide: Vector, a: str) -> tuple[str, str, str]:
    """A float64 argument less multiples of π/2: the remainder in two parts, and the multiple as an integer."""
    count, whole = wide.round_scaled(a, TWO_OVER_PI)
    first = wide.fma(count, -HALF_PI[0], a)
    r = wide.fma(count, -HALF_PI[1], first)
    rest = wide.fma(count, -HALF_PI[2], wide.fma(count, -HALF_PI[1], wide.sub(first, r)))
    return with_far_angles(wide, a, (r, rest, whole)) if wide.lines.is_for_gpu else (r, rest, whole)


def with_far_angles(wide: Vector, a: str, found: tuple[str, str, str]) -> tuple[str, str, str]:
    """What is left of angles, also of those that are too large for float64."""
    far = wide.mask_and(wide.compare("ogt", a, LARGEST_ON_GPU), wide.compare("olt", a, math.inf))

    def seldom() -> list[str]:
        r, rest, whole = far_arguments.far_angle(wide, wide.select(far, a, LARGEST_ON_GPU))
        return [
            wide.select(far, r, found[0]),
            wide.select(far, rest, found[1]),
            wide.select_integer(far, whole, found[2]),
        ]

    r, rest, whole = wide.branch_if_any(far, [wide.kind, wide.kind, wide.integers], list(found), seldom)
    return r, rest, whole


def sine_and_cosine(v: Vector, r: str, rest: str | None) -> tuple[Parts, Parts]:
    """Of r + rest, between -π/4 and π/4: each in two parts, the second at most as large."""
    z = v.mul(r, r)
    tail = v.mul(v.mul(z, r), v.polynomial(z, SIN[v.element]))
    if rest is not None:
        tail = v.add(tail, v.fma(v.mul(rest, z), -0.5, rest))
    first = v.fma(z, -0.5, 1.0)
    series = v.mul(v.mul(z, z), v.polynomial(z, COS[v.element]))
    if rest is not None:
        series = v.sub(series, v.mul(r, rest))
    lost = v.fma(z, -0.5, v.sub(1.0, first))
    return (r, tail), (first, v.add(lost, series))


def both(v: Vector, x: str) -> tuple[Parts, Parts, str]:
    """sin and cos of |x| less a multiple of π/2, in parts, and the multiple (integers of the Vector's own width)."""
    a = v.abs(x)
    if v.is_double:
        r, rest, whole = reduced(v, a)
        return (*sine_and_cosine(v, r, rest), whole)
    wide = v.doubled()
    r, _, whole = reduced(wide, v.widen(a))
    whole = v.lines.new(f"trunc {wide.integers} {whole} to {v.integers}")
    return (*sine_and_cosine(v, v.narrow(r), None), whole)


def circular(v: Vector, x: str, quarter: int, library: str) -> str:
    """sin (quarter 0) or cos (1): of each multiple of π/2, which of the two it is, and with which sign."""
    sine, cosine, whole = both(v, x)
    if quarter:
        whole = v.integer_op("add", whole, quarter)
    odd = v.integer_compare("ne", v.integer_op("and", whole, 1), 0)
    result = v.select(odd, v.add(*cosine), v.add(*sine))
    sign = v.integer_op("shl", v.integer_op("lshr", whole, 1), 63 if v.is_double else 31)
    if not quarter:  # sin is odd
        sign = v.integer_op("xor", sign, v.integer_op("and", v.bits(x), v.bits_of(-0.0)))
    result = v.from_bits(v.integer_op("xor", v.bits(result), sign))
    return beyond(v, x, result, library)


def beyond(v: Vector, x: str, result: str, library: str) -> str:
    """The result, or the C library's where arguments are too large for the reduction."""
    if v.lines.is_for_gpu:
        return result
    far = v.compare("ogt", v.abs(x), LARGEST[v.element])
    return v.if_any(far, result, lambda: v.each_lane(library, [x]))


def sin(v: Vector, x: str) -> str:
    return circular(v, x, 0, "sin" if v.is_double else "sinf")


def cos(v: Vector, x: str) -> str:
    return circular(v, x, 1, "cos" if v.is_double else "cosf")


def tan(v: Vector, x: str) -> str:
    """In float64, rounded at the end: the quotient of two results of float32 would be off by too much."""
    wide = v if v.is_double else v.doubled()
    sine, cosine, whole = both(wide, x if v.is_double else v.widen(x))
    odd = wide.integer_compare("ne", wide.integer_op("and", whole, 1), 0)
    (sine_sum, sine_rest), (cosine_sum, cosine_rest) = rounded_sum(wide, sine), rounded_sum(wide, cosine)
    above, above_rest = wide.select(odd, cosine_sum, sine_sum), wide.select(odd, cosine_rest, sine_rest)
    below, below_rest = wide.select(odd, sine_sum, cosine_sum), wide.select(odd, sine_rest, cosine_rest)
    inverse = wide.div(1.0, below)
    result = wide.mul(above, inverse)
    minus = wide.neg(result)
    lost = wide.add(wide.fma(minus, below, above), wide.fma(minus, below_rest, above_rest))
    result = wide.fma(lost, inverse, result)
    result = wide.select(odd, wide.neg(result), result)
    if not v.is_double:
        result = v.narrow(result)
    return beyond(v, x, v.exclusive_sign(result, x), "tan" if v.is_double else "tanf")


def rounded_sum(v: Vector, parts: Parts) -> Parts:
    """The sum of two parts, and what rounding lost of it."""
    total = v.add(*parts)
    return total, v.sub(parts[1], v.sub(total, parts[0]))


# ---- inverses (float64) ----------------------------------------------------------------------------------------------


def atan_of_ratio(v: Vector, above: str, below: str) -> str:
    """atan(above/below) for 0 ≤ above ≤ below: about 0, or about π/4 by (above - below)/(above + below)."""
    far = v.compare("ogt", above, v.mul(below, math.sqrt(2.0) - 1.0))
    t = v.div(v.select(far, v.sub(above, below), above), v.select(far, v.add(above, below), below))
    z = v.mul(t, t)
    tail = v.mul(v.mul(t, z), v.polynomial(z, ATAN))
    about = v.add(v.add(t, v.add(tail, HALF_PI[1] / 2.0)), HALF_PI[0] / 2.0)
    return v.select(far, about, v.add(t, tail))


def atan(v: Vector, x: str) -> str:
    t = v.abs(x)
    inverse = v.compare("ogt", t, 1.0)
    result = atan_of_ratio(v, v.select(inverse, v.div(1.0, t), t), v.const(1.0))
    rest = v.add(v.sub(HALF_PI[0], result), HALF_PI[1])
    return v.copysign(v.select(inverse, rest, result), x)


def atan2(v: Vector, y: str, x: str) -> str:
    a, b = v.abs(y), v.abs(x)
    steep = v.compare("ogt", a, b)
    least, greatest = v.select(steep, b, a), v.select(steep, a, b)
    # Sums of the largest numbers would be infinite, products with the smallest zero.
    factor = v.select(v.compare("ogt", greatest, 2.0**1000), 2.0**-100, 1.0)
    factor = v.select(v.compare("olt", greatest, 2.0**-900), 2.0**100, factor)
    least, greatest = v.mul(least, factor), v.mul(greatest, factor)
    alike = v.compare("oeq", a, b)  # infinities and zeros among them
    zero = v.compare("oeq", greatest, 0.0)
    least = v.select(alike, v.select(zero, 0.0, 1.0), least)
    greatest = v.select(alike, 1.0, greatest)
    result = atan_of_ratio(v, least, greatest)
    result = v.select(steep, v.add(v.sub(HALF_PI[0], result), HALF_PI[1]), result)
    turned = v.add(v.sub(2.0 * HALF_PI[0], result), 2.0 * HALF_PI[1])
    result = v.copysign(v.select(v.is_negative(x), turned, result), y)
    return v.select(v.compare("uno", x, y), v.add(x, y), result)


def arcsine_parts(v: Vector, t: str) -> tuple[str, str, str, str]:
    """For 0 ≤ t ≤ 1: whether t > 1/2; the root s of (1 - t)/2 or t itself, what rounding lost of it, asin(s) - s."""
    high = v.compare("ogt", t, 0.5)
    z = v.select(high, v.mul(v.sub(1.0, t), 0.5), v.mul(t, t))
    root = v.sqrt(z)
    lost = v.div(v.fma(root, v.neg(root), z), v.select(v.compare("ogt", root, 0.0), v.add(root, root), 1.0))
    s = v.select(high, root, t)
    lost = v.select(high, lost, 0.0)
    return high, s, lost, v.mul(v.mul(s, z), v.polynomial(z, ASIN))


def asin(v: Vector, x: str) -> str:
    t = v.abs(x)
    high, s, lost, tail = arcsine_parts(v, t)
    twice = v.mul(v.sub(v.add(lost, tail), HALF_PI[1] / 2.0), 2.0)
    far = v.sub(HALF_PI[0], v.add(v.add(s, s), twice))
    result = v.copysign(v.select(high, far, v.add(s, tail)), x)
    return v.select(v.compare("ogt", t, 1.0), math.nan, result)


def acos(v: Vector, x: str) -> str:
    t = v.abs(x)
    high, s, lost, tail = arcsine_parts(v, t)
    double = v.mul(v.add(s, v.add(lost, tail)), 2.0)
    turned = v.sub(2.0 * HALF_PI[0], v.sub(double, 2.0 * HALF_PI[1]))
    far = v.select(v.compare("olt", x, 0.0), turned, double)
    signed = v.exclusive_sign(tail, x)
    near = v.sub(HALF_PI[0], v.sub(v.add(x, signed), HALF_PI[1]))
    return v.select(v.compare("ogt", t, 1.0), math.nan, v.select(high, far, near))
