"""Powers: of float32 in float64, which has digits to spare; of float64 in numbers that are sums of two.

exponential.py says how the coefficients were computed.
"""

from __future__ import annotations

import math

from .exponential import LN2, less_one
from .logarithm import log_ends, split
from .vector import Vector

# log2(1 + f)/f for 1 + f between √½ and √2, and (2^r - 1)/r for |r| ≤ 1/2: in float64, to 38 bits
POW_LOG2 = (
    1.4426950408865726, -0.7213475203275451, 0.48089834880278864, -0.3606737931376418, 0.2885387957711922,
    -0.2404464335846033, 0.20610712066829368, -0.18043674914889987, 0.16021671897796433, -0.14249869088091544,
    0.13027512460035465, -0.13462861796367925, 0.13251374061819599, -0.06974203388773405,
)  # fmt: skip
POW_EXP2 = (
    0.6931471805461537, 0.24022650695554282, 0.055504109406948304, 0.009618129219443775, 0.0013333450911770547,
    0.00015403415445421574, 1.5310008966573927e-05, 1.3263505904767256e-06,
)  # fmt: skip
# atanh(s)/s = 1 + s²·(THIRD + s²·P(s²)) for s up to (√2 - 1)/(√2 + 1)
THIRD = (0.3333333333333333, 1.850371707708594e-17)
ATANH = (
    0.2, 0.14285714285714685, 0.11111111110826383, 0.09090909168049927, 0.07692297443503356, 0.06667404399416602,
    0.058530632320455425, 0.05862163532561505,
)  # fmt: skip

Sum = tuple[str, str]  # of two numbers, the second beyond the digits of the first


def pow(v: Vector, x: str, y: str) -> str:
    a = v.abs(x)
    result = wide_power(v, a, y) if v.is_double else narrow_power(v, a, y)
    # Negative bases: the sign of odd powers, NaN for broken ones (of finite numbers but 0).
    broken = v.compare("one", v.intrinsic("trunc", y), y)
    half = v.mul(y, 0.5)
    odd = v.compare("one", v.intrinsic("trunc", half), half)
    result = v.select(odd, v.select(broken, result, v.exclusive_sign(result, x)), result)
    below = v.mask_and(v.compare("olt", x, 0.0), v.compare("ogt", x, -math.inf))
    result = v.select(v.mask_and(below, broken), math.nan, result)
    # x^0 and 1^y are 1 whatever the other is, and so is (-1)^±infinity.
    ends = v.mask_and(v.compare("oeq", v.abs(y), math.inf), v.compare("oeq", a, 1.0))
    one = v.mask_or(v.mask_or(v.compare("oeq", y, 0.0), v.compare("oeq", x, 1.0)), ends)
    return v.select(one, 1.0, result)


def narrow_power(v: Vector, a: str, y: str) -> str:
    """2^(y·log2(a)) for a ≥ 0 (float32)."""
    wide = v.doubled()
    f, exponent = map(v.widen, split(v, a))
    base = log_ends(wide, v.widen(a), wide.fma(f, wide.polynomial(f, POW_LOG2), exponent))
    product = wide.mul(v.widen(y), base)
    product = wide.at_most(wide.at_least(product, -200.0), 200.0)
    count, power = wide.round_scaled(product, 1.0)
    r = wide.sub(product, count)
    fraction = wide.fma(wide.polynomial(r, POW_EXP2), r, 1.0)
    return v.narrow(wide.mul(fraction, wide.power_of_two(power)))


def wide_power(v: Vector, a: str, y: str) -> str:
    """exp(y·log(a)) for a ≥ 0 (float64)."""
    log, log_rest = long_log(v, a)
    log = log_ends(v, a, log)
    product = v.mul(y, log)
    rest = v.fma(y, log_rest, v.fma(y, log, v.neg(product)))
    rest = v.select(v.compare("olt", v.abs(product), 760.0), rest, 0.0)
    q, q_rest, power = less_one(v, v.at_most(v.at_least(product, -760.0), 760.0))
    whole = v.add(q, 1.0)
    whole_rest = v.add(v.sub(q, v.sub(whole, 1.0)), q_rest)
    return v.scale(v.add(whole, v.fma(whole, rest, whole_rest)), power)


def long_log(v: Vector, a: str) -> Sum:
    """log of a positive finite number, to some 65 bits: k·ln 2 + 2·atanh(f/(2 + f))."""
    f, count = split(v, a)
    below = v.add(f, 2.0)
    below_rest = v.sub(f, v.sub(below, 2.0))
    inverse = v.div(1.0, below)
    s = v.mul(f, inverse)
    minus = v.neg(s)
    s_rest = v.mul(v.fma(minus, below_rest, v.fma(minus, below, f)), inverse)
    square = product_of(v, (s, s_rest), (s, s_rest))
    tail = v.mul(square[0], v.polynomial(square[0], ATANH))
    third = v.add(tail, THIRD[0])
    third_rest = v.add(v.add(v.sub(THIRD[0], third), tail), THIRD[1])
    cubic = product_of(v, (s, s_rest), product_of(v, square, (third, third_rest)))
    atanh = v.add(s, cubic[0])
    atanh_rest = v.add(v.add(v.sub(s, atanh), cubic[0]), v.add(s_rest, cubic[1]))
    high = v.mul(count, LN2["double"][0])
    twice = v.add(atanh, atanh)
    log = v.add(high, twice)
    low = v.fma(count, LN2["double"][1], v.add(atanh_rest, atanh_rest))
    rest = v.add(v.add(v.sub(high, log), twice), low)
    total = v.add(log, rest)
    return total, v.add(v.sub(log, total), rest)


def product_of(v: Vector, a: Sum, b: Sum) -> Sum:
    product = v.mul(a[0], b[0])
    lost = v.fma(a[0], b[0], v.neg(product))
    return product, v.fma(a[0], b[1], v.fma(a[1], b[0], lost))
