"""log and what is made of it, for vectors of float32 and float64.

exponential.py says how the coefficients were computed.
"""

from __future__ import annotations

import math

from .exponential import LN2
from .vector import Vector

# float32: (log(1 + f) - f + f²/2) / f³. float64: (2·atanh(s) - 2·s) / s³ as a polynomial of s², s = f / (2 + f).
# For 1 + f between √½ and √2.
LOG = {
    "float": (
        0.3333331048488617, -0.24999986588954926, 0.20002223551273346, -0.1666926145553589, 0.1421888768672943,
        -0.12384124845266342, 0.11872798949480057, -0.1178833395242691, 0.0690130963921547,
    ),
    "double": (
        0.6666666666666734, 0.3999999999941439, 0.28571428742461213, 0.22222198564797332, 0.1818356480166269,
        0.15314037450835735, 0.14796089501333692,
    ),
}  # fmt: skip
# log2(e) and log10(e) in two parts.
LOG2_E = (1.4426950408889634, 2.0355273740931033e-17)
LOG10_E = (0.4342944819032518, 1.098319650216765e-17)
LOG10_2 = (0.3010292053222656, 7.903417155702138e-07)  # the first part times an exponent is exact


def split(v: Vector, x: str) -> tuple[str, str]:
    """A positive finite number as m·2^k, m between √½ and √2: m - 1, and k as a float. Denormals included."""
    shift = v.fraction_bits + 1
    tiny = v.compare("olt", x, 2.0 ** (1 - v.bias))
    bits = v.bits(v.select(tiny, v.mul(x, 2.0**shift), x))
    k = v.integer_op("ashr", v.integer_op("sub", bits, v.bits_of(math.sqrt(0.5))), v.fraction_bits)
    m = v.from_bits(v.integer_op("sub", bits, v.integer_op("shl", k, v.fraction_bits)))
    count = v.to_float(k)
    return v.sub(m, 1.0), v.select(tiny, v.sub(count, float(shift)), count)


def log_of_one_plus(v: Vector, f: str, correction: str | None = None) -> str:
    """log(1 + f) + correction, for 1 + f between √½ and √2; the correction is small."""
    square = v.mul(f, f)
    if v.is_double:
        s = v.div(f, v.add(f, 2.0))
        z = v.mul(s, s)
        half = v.mul(square, 0.5)
        sum_ = v.fma(z, v.polynomial(z, LOG["double"]), half)
        inner = v.mul(s, sum_) if correction is None else v.fma(s, sum_, correction)
        return v.sub(f, v.sub(half, inner))
    cubic = v.mul(square, f)
    series = v.polynomial(f, LOG["float"])
    inner = v.mul(cubic, series) if correction is None else v.fma(cubic, series, correction)
    return v.add(f, v.fma(square, -0.5, inner))


def log_ends(v: Vector, x: str, result: str) -> str:
    """What logarithms are at 0, below it, at infinity and of NaN."""
    result = v.select(v.compare("olt", x, 0.0), math.nan, result)
    result = v.select(v.compare("oeq", x, 0.0), -math.inf, result)
    return v.select(v.compare("olt", x, math.inf), result, x)


def finite_log(v: Vector, x: str) -> str:
    """log of a positive finite number."""
    high, low = LN2[v.element]
    f, count = split(v, x)
    return v.fma(count, high, log_of_one_plus(v, f, v.mul(count, low)))


def log(v: Vector, x: str) -> str:
    return log_ends(v, x, finite_log(v, x))


def finite_log2(v: Vector, x: str) -> str:
    """log2 of a positive finite number, exact for powers of two (float64)."""
    f, count = split(v, x)
    y = log_of_one_plus(v, f)
    return v.fma(y, LOG2_E[0], v.fma(y, LOG2_E[1], count))


def log2(v: Vector, x: str) -> str:
    return log_ends(v, x, finite_log2(v, x))


def log10(v: Vector, x: str) -> str:
    f, count = split(v, x)
    y = log_of_one_plus(v, f)
    rest = v.fma(y, LOG10_E[0], v.fma(y, LOG10_E[1], v.mul(count, LOG10_2[1])))
    return log_ends(v, x, v.fma(count, LOG10_2[0], rest))


def finite_log1p(v: Vector, x: str) -> str:
    """log(1 + x), for finite x above -1: the log of the rounded sum, and what rounding lost divided by it."""
    high, low = LN2[v.element]
    u = v.add(x, 1.0)
    back = v.sub(u, 1.0)
    lost = v.add(v.sub(1.0, v.sub(u, back)), v.sub(x, back))
    f, count = split(v, u)
    result = v.fma(count, high, log_of_one_plus(v, f, v.fma(count, low, v.div(lost, u))))
    return v.select(v.compare("olt", v.abs(x), 2.0 ** -(v.fraction_bits + 2)), x, result)


def log1p(v: Vector, x: str) -> str:
    result = v.select(v.compare("olt", x, -1.0), math.nan, finite_log1p(v, x))
    result = v.select(v.compare("oeq", x, -1.0), -math.inf, result)
    return v.select(v.compare("olt", x, math.inf), result, x)


def asinh(v: Vector, x: str) -> str:
    """log1p(t + t²/(1 + √(1 + t²))), and log(t) + log(2) where t = |x| is large."""
    t = v.abs(x)
    square = v.mul(t, t)
    small = v.add(t, v.div(square, v.add(v.sqrt(v.add(square, 1.0)), 1.0)))
    large = v.compare("ogt", t, 2.0**28)
    result = finite_log1p(v, v.select(large, v.sub(t, 1.0), small))
    result = v.select(large, v.add(result, math.log(2.0)), result)
    return v.copysign(v.select(v.compare("olt", t, math.inf), result, t), x)


def acosh(v: Vector, x: str) -> str:
    """log1p(t + √(2t + t²)) with t = x - 1."""
    t = v.sub(x, 1.0)
    small = v.add(t, v.sqrt(v.fma(t, t, v.add(t, t))))
    large = v.compare("ogt", x, 2.0**28)
    result = finite_log1p(v, v.select(large, t, small))
    result = v.select(large, v.add(result, math.log(2.0)), result)
    result = v.select(v.compare("olt", x, math.inf), result, x)
    return v.select(v.compare("olt", x, 1.0), math.nan, result)


def atanh(v: Vector, x: str) -> str:
    """log1p(2t / (1 - t)) / 2 with t = |x|."""
    t = v.abs(x)
    inside = v.select(v.compare("olt", t, 1.0), t, 0.5)
    result = v.mul(finite_log1p(v, v.div(v.add(inside, inside), v.sub(1.0, inside))), 0.5)
    # Halving what was doubled loses the last bit of the smallest denormals.
    result = v.select(v.compare("olt", t, 2.0**-30), v.fma(v.mul(t, v.mul(t, t)), 1.0 / 3.0, t), result)
    result = v.select(v.compare("oeq", t, 1.0), math.inf, result)
    return v.copysign(v.select(v.compare("ule", t, 1.0), v.select(v.compare("uno", t, t), t, result), math.nan), x)
