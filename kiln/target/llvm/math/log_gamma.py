"""The logarithm of the gamma function's size, in float64, for targets without a C library.

From 1 to 3 it is (x - 1)(x - 2) times a polynomial, so that it is exact about its zeros; up to 10 the argument is moved
there by Γ(x + 1) = x·Γ(x), beyond it is Stirling's series. Below 0 it is reflected: Γ(x)·Γ(-x) = -π/(x·sin(πx)).
"""

from __future__ import annotations

import math

from .logarithm import log
from .trigonometry import HALF_PI, sine_and_cosine
from .vector import Vector

# log Γ(2 + t) / (t·(1 + t)) as a polynomial of t, |t| ≤ 1
NEAR_TWO = (
    0.42278433509846713, -0.10031730167435392, 0.03296500062115691, -0.012384192193371805, 0.004998641164627129,
    -0.0021081308339216706, 0.0009153769240386907, -0.0004057073983775151, 0.0001825526153982638,
    -8.309511477709561e-05, 3.816907658276081e-05, -1.7661767658452517e-05, 8.221234475942905e-06,
    -3.846858091533014e-06, 1.8113906873056685e-06, -8.54560908975883e-07, 3.958940459367468e-07,
    -1.878442644643758e-07, 1.042041826608264e-07, -4.9827532071170234e-08, 5.910565853507869e-09,
    -2.7296358592514825e-09, 1.6194359237484174e-08, -7.842557720538356e-09, -4.312495770350818e-09,
    2.0986002157033107e-09, 1.5746606982777302e-09, -7.639292345836201e-10,
)  # fmt: skip
FAR = 10  # from where Stirling's series is good
STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)  # B(2k)/(2k·(2k - 1))
TINY = 2.0**-60  # below it, log Γ(±x) is -log x


def lgamma(v: Vector, x: str) -> str:
    z = v.abs(x)
    positive = of_positive(v, z)
    negative = v.mask_and(v.compare("olt", x, 0.0), v.compare("ogt", z, TINY))
    result = v.if_any(negative, positive, lambda: reflected(v, x, z, positive))
    return v.select(v.compare("oeq", z, math.inf), math.inf, result)


def of_positive(v: Vector, z: str) -> str:
    small, large = v.compare("olt", z, 1.0), v.compare("oge", z, float(FAR))
    y, product = z, v.const(1.0)
    for _ in range(FAR - 3):
        above = v.compare("oge", y, 3.0)
        y = v.select(above, v.sub(y, 1.0), y)
        product = v.select(above, v.mul(product, y), product)
    t = v.select(small, v.sub(z, 1.0), v.sub(y, 2.0))
    near = v.mul(v.mul(t, v.add(t, 1.0)), v.polynomial(t, NEAR_TWO))
    logarithm = log(v, v.select(small, z, v.select(large, z, product)))
    near = v.add(near, v.select(small, v.neg(logarithm), logarithm))
    inverse = v.div(1.0, z)
    series = v.mul(inverse, v.polynomial(v.mul(inverse, inverse), STIRLING))
    first = v.mul(v.sub(z, 0.5), v.sub(logarithm, 1.0))
    far = v.add(first, v.add(series, 0.5 * math.log(2.0 * math.pi) - 0.5))
    return v.select(large, far, near)


def reflected(v: Vector, x: str, z: str, positive: str) -> str:
    """Of negative numbers; infinite where they are integers."""
    f = v.abs(v.sub(x, v.intrinsic("rint", x)))
    outer = v.compare("ogt", f, 0.25)
    angle = v.mul(v.select(outer, v.sub(0.5, f), f), 2.0 * HALF_PI[0])
    sine, cosine = (v.add(*parts) for parts in sine_and_cosine(v, angle, None))
    size = v.mul(z, v.select(outer, cosine, sine))
    result = v.sub(log(v, v.div(2.0 * HALF_PI[0], size)), positive)
    return v.select(v.compare("oeq", f, 0.0), math.inf, result)
