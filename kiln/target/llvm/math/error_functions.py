"""The error function and functions of it. exponential.py says how the coefficients were computed."""

from __future__ import annotations

import math

from . import gpu_functions
from .exponential import EXP2, exp_of_nonpositive, less_one
from .logarithm import finite_log1p
from .vector import Vector

# erf(x)/x = 1 + FIRST + x²·P(x²), up to the bound
FIRST = 2.0 / math.sqrt(math.pi) - 1.0
ROOT_HALF = (0.7071067811865476, -4.833646656726457e-17)  # √½
BOUND = {"float": 0.9277, "double": 1.0}
ERF = {
    "float": (
        -0.37612634897232056, 0.11283701658248901, -0.026859432458877563, 0.005200663115829229, -0.000813509919680655,
        8.327776595251635e-05,
    ),
    "double": (
        -0.3761263890318375, 0.1128379167095493, -0.026866170645084498, 0.005223977624882113, -0.0008548326984106252,
        0.00012055331220209523, -1.4925597678120471e-05, 1.6461036643777747e-06, -1.6350674084440169e-07,
        1.4662081471780694e-08, -1.1381349036489946e-09, 5.970942431902534e-11,
    ),
}  # fmt: skip
# log2(erfc(t)) between 0.92 and 4, as close as 1 - 2^P needs (float32)
LOG_ERFC = (
    0.0002537368854973465, -1.6295541524887085, -0.913708508014679, -0.15623562037944794, 0.0362534299492836,
    -0.006023011635988951, 0.0006279688095673919, -3.0539773433702067e-05,
)  # fmt: skip
# exp(x²)·erfc(x)·(1 + 2x) as a polynomial of (x - 4)/(x + 4), up to x = 27.3 (float64)
SCALED_ERFC = (
    1.2329951186255526, -0.13962111684056286, 0.015379652102620137, 0.06809705425473356, -0.1010390660363235,
    0.09373283499691444, -0.06633036581203977, 0.03716751556070139, -0.016197734054712885, 0.005031969770617127,
    -0.0007577733614682142, -0.0001992555795981908, 0.0001506222902948324, -2.4402953646330965e-05,
    -1.122482174477022e-05, 5.717498022121264e-06, 3.012735867183592e-07, -8.347654076907195e-07,
    6.288812066010355e-08, 1.1515977031477786e-07, -7.842056617002969e-09, -1.3649825785398681e-08,
    -1.800110997470556e-09,
)  # fmt: skip
# log2(erfc(t/√2)/2), up to 6.2 (float32)
LOG_NORMAL_TAIL = (
    -1.0, -1.1511050462722778, -0.45921429991722107, -0.05245474725961685, 0.006951834540814161, 1.3844251043337863e-05,
    -0.0002989141212310642, 8.760159835219383e-05, -1.446881469746586e-05, 1.4803647445660317e-06,
    -8.744657264969646e-08, 2.2843320568455283e-09,
)  # fmt: skip


def small_erf(v: Vector, x: str) -> str:
    z = v.mul(x, x)
    return v.fma(x, v.fma(z, v.polynomial(z, ERF[v.element]), FIRST), x)


def power_of_two(v: Vector, x: str) -> str:
    """2^x where it is a normal number (of NaN, NaN)."""
    if v.lines.is_for_gpu and not v.is_double:
        return gpu_functions.exp2(v, x)
    count, power = v.round_scaled(x, 1.0)
    r = v.sub(x, count)
    return v.mul(v.fma(v.polynomial(r, EXP2[v.element]), r, 1.0), v.power_of_two(power))


def tail_of_erf(v: Vector, t: str) -> str:
    """erfc(t) for t ≥ 0 (float64)."""
    t = v.at_most(t, 27.5)
    square = v.mul(t, t)
    return v.scale(*scaled_tail(v, t, v.const(0.0), square, v.fma(t, v.neg(t), square)))


def scaled_tail(v: Vector, t: str, rest: str, square: str, lost: str) -> tuple[str, str]:
    """erfc(t + rest) as m·2^n, for arguments between 0 and 28 whose square is square - lost: exp(-square) times a
    fraction. What rounding lost of either is put back in the end (float64)."""
    ratio = v.div(v.sub(t, 4.0), v.add(t, 4.0))
    series = v.polynomial(ratio, SCALED_ERFC[1:])
    above = v.fma(series, ratio, SCALED_ERFC[0])
    above_rest = v.fma(series, ratio, v.sub(SCALED_ERFC[0], above))
    below = v.fma(t, 2.0, 1.0)
    below_rest = v.fma(rest, 2.0, v.fma(t, 2.0, v.sub(1.0, below)))
    inverse = v.div(1.0, below)
    quotient = v.mul(above, inverse)
    minus = v.neg(quotient)
    lost_above = v.add(v.fma(minus, below, above), v.fma(minus, below_rest, above_rest))
    quotient_rest = v.fma(lost_above, inverse, v.mul(quotient, lost))  # exp(lost - square) = (1 + lost)·exp(-square)
    q, q_rest, power = less_one(v, v.neg(v.at_most(square, 746.0)))
    whole = v.add(q, 1.0)
    whole_rest = v.add(v.sub(q, v.sub(whole, 1.0)), q_rest)
    return v.fma(whole, quotient, v.fma(whole, quotient_rest, v.mul(whole_rest, quotient))), power


def erf(v: Vector, x: str) -> str:
    t = v.abs(x)
    if v.is_double:
        rest = tail_of_erf(v, t)
    else:
        rest = power_of_two(v, v.polynomial(v.at_most(t, 4.0), LOG_ERFC))
    large = v.copysign(v.sub(1.0, rest), x)
    return v.select(v.compare("olt", t, BOUND[v.element]), small_erf(v, x), large)


def erfc(v: Vector, x: str) -> str:
    """(float64)"""
    t = v.abs(x)
    rest = tail_of_erf(v, t)
    large = v.select(v.compare("olt", x, 0.0), v.sub(2.0, rest), rest)
    return v.select(v.compare("olt", t, 0.5), v.sub(1.0, small_erf(v, x)), large)


def gelu_erf(v: Vector, x: str) -> str:
    """x times the normal distribution of x: relu(x) - t·Q(t) with t = |x|, where Q is the distribution's tail (of
    float32 2^P(t)). Small results are good where those of eager's 1 + erf have cancelled. Of -infinity NaN, as eager.
    """
    t = v.abs(x)
    if v.is_double:
        tail = normal_tail(v, v.at_most(t, 39.0))
    else:
        tail = v.mul(t, power_of_two(v, v.polynomial(v.at_most(t, 6.2), LOG_NORMAL_TAIL)))
        tail = v.select(v.compare("ogt", t, 6.2), 0.0, tail)
    result = v.sub(v.select(v.compare("olt", x, 0.0), 0.0, x), tail)
    if v.is_double:
        half = v.mul(x, 0.5)
        near = v.fma(half, small_erf(v, v.mul(x, ROOT_HALF[0])), half)
        is_near = v.mask_and(v.compare("ogt", x, -0.5), v.compare("olt", x, 0.75))
        result = v.select(is_near, near, result)
    return v.select(v.compare("oeq", x, -math.inf), math.nan, v.copysign(result, x))


def normal_tail(v: Vector, t: str) -> str:
    """t·erfc(t·√½)/2, for t between 0 and 39 (float64)."""
    square = v.mul(t, t)
    lost = v.fma(t, v.neg(t), square)
    scaled = v.mul(t, ROOT_HALF[0])
    rest = v.fma(t, ROOT_HALF[1], v.fma(t, ROOT_HALF[0], v.neg(scaled)))
    tail, power = scaled_tail(v, scaled, rest, v.mul(square, 0.5), v.mul(lost, 0.5))
    return v.scale(v.mul(v.mul(t, 0.5), tail), power)


def erfinv(v: Vector, x: str) -> str:
    """Winitzki's approximation, made better twice by four terms of the series about it. The error is that of erf or,
    close to 1, of erfc (float64)."""
    a = v.abs(x)
    inside = v.select(v.compare("olt", a, 1.0), a, 0.5)
    log = finite_log1p(v, v.mul(inside, v.neg(inside)))  # log(1 - a²)
    b = v.fma(log, 0.5, 2.0 / (math.pi * 0.147))
    c = v.mul(log, -1.0 / 0.147)
    y = v.sqrt(v.div(c, v.add(v.sqrt(v.fma(b, b, c)), b)))
    rest = v.sub(1.0, inside)
    for _ in range(2):
        tail = tail_of_erf(v, y)
        near = v.compare("olt", y, BOUND["double"])
        value = v.select(near, small_erf(v, y), v.sub(1.0, tail))
        middle = v.compare("olt", inside, 0.5)
        error = v.select(middle, v.sub(value, inside), v.sub(rest, v.select(near, v.sub(1.0, value), tail)))
        slope = v.mul(exp_of_nonpositive(v, v.mul(y, v.neg(y))), 2.0 / math.sqrt(math.pi))
        step = v.neg(v.div(error, slope))
        square = v.mul(y, y)
        fourth = v.mul(y, v.fma(square, 2.0, 7.0 / 6.0))
        third = v.fma(square, 4.0 / 3.0, 1.0 / 3.0)
        series = v.fma(v.fma(v.fma(fourth, step, third), step, y), step, 1.0)
        y = v.fma(step, series, y)
    result = v.select(v.compare("olt", a, 2.0**-27), v.mul(a, math.sqrt(math.pi) / 2.0), y)
    result = v.select(v.compare("oeq", a, 1.0), math.inf, result)
    return v.copysign(v.select(v.compare("ole", a, 1.0), result, math.nan), x)
