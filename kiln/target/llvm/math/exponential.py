"""exp and functions of it, for vectors of float32 and float64.

Each of the functions works in the type of its `Vector`; where the two differ it is by the coefficients. They are
those of minimax polynomials (Remez, in 50 digits; those of float32 rounded one after another from the lowest, the rest
fitted again each time). Reductions are in two parts, whose first has trailing zeros, so that its product with a small
integer is exact.
"""

from __future__ import annotations

from .vector import Vector

LOG2_E = 1.4426950408889634
# ln 2 in two parts, by type: the first times an exponent is exact.
LN2 = {"float": (0.693145751953125, 1.4286068203094172e-06), "double": (0.6931471803691238, 1.9082149292705877e-10)}
# (exp(r) - 1 - r) / r² on |r| ≤ ln(2)/2
EXP = {
    "float": (0.5, 0.1666652113199234, 0.041666362434625626, 0.00836869701743126, 0.0013944756938144565),
    "double": (
        0.5, 0.16666666666666677, 0.0416666666666667, 0.008333333333321617, 0.0013888888888866717,
        0.00019841269886156833, 2.480158736077407e-05, 2.7557244183874193e-06, 2.7557242585074494e-07,
        2.5109044133186403e-08, 2.0924494405716535e-09,
    ),
}  # fmt: skip
# (2^r - 1) / r on |r| ≤ 1/2
EXP2 = {
    "float": (
        0.6931471824645996, 0.24022650718688965, 0.05550359562039375, 0.009618103504180908, 0.001339196925982833,
        0.00015446489851456136,
    ),
    "double": (
        0.6931471805599453, 0.24022650695910072, 0.0555041086648217, 0.009618129107628496, 0.001333355814639049,
        0.00015403530393340694, 1.5252733856185254e-05, 1.3215486833362393e-06, 1.0178051232077046e-07,
        7.054888145421759e-09, 4.456670063975449e-10, 2.5741944933309295e-11,
    ),
}  # fmt: skip
# Where exp is surely infinite or zero, by type: (least, greatest), for e and for 2.
EXP_RANGE = {"float": (-104.0, 89.0), "double": (-746.0, 710.0)}
EXP2_RANGE = {"float": (-151.0, 129.0), "double": (-1076.0, 1025.0)}
# (tanh(t)/t - 1) / t² as a polynomial of t², up to the bound.
TANH_BOUND = {"float": 0.625, "double": 0.55}
TANH = {
    "float": (
        -0.3333328366279602, 0.1333148330450058, -0.053742773830890656, 0.020648062229156494, -0.005714063532650471,
    ),
    "double": (
        -0.333333333333333, 0.13333333333326833, -0.053968253963878644, 0.02186948838910516, -0.008863232652828427,
        0.0035920925330014597, -0.0014555459872728892, 0.0005884570627833487, -0.00023341276431125844,
        8.336012158709486e-05, -1.95210603935216e-05,
    ),
}  # fmt: skip
# (sinh(t)/t - 1) / t² as a polynomial of t², up to 1 (float64)
SINH = (
    0.16666666666666666, 0.008333333333333333, 0.0001984126984126959, 2.755731922412024e-06, 2.5052108345642226e-08,
    1.6059050705771834e-10, 7.646476367596333e-13, 2.848398116996073e-15,
)  # fmt: skip


# ---- exp -------------------------------------------------------------------------------------------------------------


def exp_parts(v: Vector, x: str) -> tuple[str, str]:
    """exp(x) as m·2^n: m between √½ and √2, and n. For x in EXP_RANGE."""
    high, low = LN2[v.element]
    count, power = v.round_scaled(x, LOG2_E)
    r = v.fma(count, -low, v.fma(count, -high, x))
    return v.polynomial(r, (1.0, 1.0, *EXP[v.element])), power


def less_one(v: Vector, x: str) -> tuple[str, str, str]:
    """exp(x) as (1 + q)·2^n: q, what rounding lost of it, and n."""
    high, low = LN2[v.element]
    count, power = v.round_scaled(x, LOG2_E)
    first = v.fma(count, -high, x)
    r = v.fma(count, -low, first)
    rest = v.fma(count, -low, v.sub(first, r))
    tail = v.fma(v.mul(r, r), v.polynomial(r, EXP[v.element]), v.fma(rest, r, rest))
    q = v.add(r, tail)
    return q, v.sub(tail, v.sub(q, r)), power


def clamped(v: Vector, x: str, limits: dict[str, tuple[float, float]] = EXP_RANGE) -> str:
    least, greatest = limits[v.element]
    return v.at_most(v.at_least(x, least), greatest)


def exp(v: Vector, x: str) -> str:
    return v.scale(*exp_parts(v, clamped(v, x)))


def half_exp(v: Vector, x: str) -> str:
    """exp(x)/2, finite where exp(x) is a little too large."""
    least, greatest = EXP_RANGE[v.element]
    m, power = exp_parts(v, v.at_most(v.at_least(x, least), greatest + 1.0))
    return v.scale(m, v.integer_op("sub", power, 1))


def exp_of_nonpositive(v: Vector, x: str) -> str:
    return v.scale(*exp_parts(v, v.at_least(x, EXP_RANGE[v.element][0])))


def exp2(v: Vector, x: str) -> str:
    x = clamped(v, x, EXP2_RANGE)
    count, power = v.round_scaled(x, 1.0)
    r = v.sub(x, count)
    return v.scale(v.fma(v.polynomial(r, EXP2[v.element]), r, 1.0), power)


def expm1(v: Vector, x: str) -> str:
    """exp(x) - 1 = 2^n·q + (2^n - 1)."""
    bound = 60.0 if v.is_double else 30.0
    q, _, power = less_one(v, v.at_least(v.at_most(x, EXP_RANGE[v.element][1]), -bound))
    scale = v.power_of_two(v.select_integer(v.integer_compare("sgt", power, v.bias), v.bias, power))
    result = v.fma(scale, q, v.sub(scale, 1.0))
    huge = v.scale(v.add(q, 1.0), power)
    result = v.select(v.integer_compare("sgt", power, v.bias - 1), huge, result)
    # Of zeros and tiny numbers x itself: -0 has a sign, and denormals do not survive the reduction.
    return v.select(v.compare("olt", v.abs(x), 2.0 ** -(v.fraction_bits + 3)), x, result)


def sigmoid(v: Vector, x: str) -> str:
    """With t = exp(-|x|), which does not overflow: 1/(1 + t), or t/(1 + t) for negative x. What rounding lost of the
    sum and the quotient is put back, or it would come to more than 2 ULP."""
    t = exp_of_nonpositive(v, v.neg(v.abs(x)))
    above = v.select(v.compare("olt", x, 0.0), t, 1.0)
    sum_ = v.add(t, 1.0)
    lost = v.sub(t, v.sub(sum_, 1.0))
    inverse = v.div(1.0, sum_)
    quotient = v.mul(above, inverse)
    minus = v.neg(quotient)
    return v.fma(v.fma(minus, lost, v.fma(minus, sum_, above)), inverse, quotient)


def tanh(v: Vector, x: str) -> str:
    """1 - 2/(exp(2t) + 1), or an odd polynomial where t = |x| is small."""
    t = v.abs(x)
    s = v.mul(t, t)
    small = v.fma(v.mul(t, s), v.polynomial(s, TANH[v.element]), t)
    # Beyond 9 (20) the result is 1 and the exponential need not grow.
    doubled = v.at_most(v.add(t, t), 40.0 if v.is_double else 20.0)
    large = v.sub(1.0, v.div(2.0, v.add(v.scale(*exp_parts(v, doubled)), 1.0)))
    return v.copysign(v.select(v.compare("olt", t, TANH_BOUND[v.element]), small, large), x)


def sinh(v: Vector, x: str) -> str:
    """(float64)"""
    t = v.abs(x)
    s = v.mul(t, t)
    small = v.fma(v.mul(t, s), v.polynomial(s, SINH), t)
    half = half_exp(v, t)
    large = v.sub(half, v.div(0.25, half))
    return v.copysign(v.select(v.compare("olt", t, 1.0), small, large), x)


def cosh(v: Vector, x: str) -> str:
    half = half_exp(v, v.abs(x))
    return v.add(half, v.div(0.25, half))
