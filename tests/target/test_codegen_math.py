"""Vector math: errors over the whole range of floats, what is particular about 0, infinities and NaN, other widths."""

import mpmath
import numpy as np
import pytest
import torch

from kiln.platform import cpu_info
from kiln.target.llvm.math import functions as vector_math
from tests.target.vector_functions import TYPES, floats, library_function, reference, ulps, vector_function

F32, F64 = torch.float32, torch.float64
TWO = ("pow", "atan2", "hypot", "fmod", "remainder", "nextafter", "copysign")

# The greatest error allowed, in units of the last place: of float32, of float64.
ERRORS = {
    "exp": (1, 1),
    "exp2": (1, 1),
    "expm1": (1.6, 1.5),
    "log": (1, 1),
    "log2": (0.51, 1.6),
    "log10": (0.51, 1.7),
    "log1p": (1, 1),
    "sin": (1.6, 1),
    "cos": (1.6, 1),
    "tan": (1.1, 1.2),
    "asin": (0.51, 1.3),
    "acos": (0.51, 1.3),
    "atan": (0.51, 1.8),
    "sinh": (0.51, 1.8),
    "cosh": (0.51, 1.6),
    "tanh": (1.5, 1.6),
    "asinh": (0.51, 1.8),
    "acosh": (0.51, 1.8),
    "atanh": (0.51, 1.8),
    "erf": (1.25, 1.1),
    "erfc": (0.51, 1.5),
    "sigmoid": (1.5, 1.5),
    "lgamma": (6, 7),  # the C library's
    "sqrt": (0.5, 0.51),
    "rsqrt": (1.5, 1.5),
    "floor": (0, 0),
    "ceil": (0, 0),
    "trunc": (0, 0),
    "round": (0, 0),
}


def ordinary(dtype, count=100_000):
    generator = np.random.default_rng(1)
    return [generator.uniform(-size, size, count).astype(TYPES[dtype]) for size in (1, 20, 110)]


def points(dtype):
    return np.concatenate([floats(dtype, 400 if dtype is F32 else 60), *ordinary(dtype)])


def signs_differ(got, expected):
    return (np.signbit(got) != np.signbit(expected)) & ~np.isnan(got) & ~np.isnan(expected)


@pytest.mark.parametrize("dtype", [F32, F64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", ERRORS)
def test_errors_over_the_range(name, dtype):
    x = points(dtype)
    with np.errstate(all="ignore"):
        expected = reference(name, dtype)(x)
    got = vector_function(name, 1, dtype)(x)
    errors = ulps(got, expected)
    worst = int(np.argmax(errors))
    allowed = ERRORS[name][dtype is F64]
    assert errors[worst] <= allowed, (x[worst], got[worst], expected[worst])
    assert not signs_differ(got, expected).any()


def test_names_are_those_of_the_operations():
    tested = {*ERRORS, *TWO, "erfinv", "digamma", "gelu_erf", "abs", "fma"}
    assert tested == vector_math.NAMES


PAIRS = {"pow": (0.51, 1), "atan2": (0.51, 1.8), "hypot": (0.51, 1.1), "fmod": (0, 0), "copysign": (0, 0)}


def pairs(dtype):
    generator = np.random.default_rng(2)
    kind = TYPES[dtype]
    x = floats(dtype, 150 if dtype is F32 else 20)
    small = [generator.uniform(-size, size, 50_000).astype(kind) for size in (3, 10, 30)]
    numbers = [0.0, 1.0, 2.0, 3.0, 0.5, np.inf, 1e-40, 3e38, 2.0**25]
    particular = np.array([*numbers, *[-number for number in numbers], np.nan], kind)
    a, b = np.meshgrid(particular, particular)
    left = np.concatenate([x, small[1], np.abs(small[0]), small[0], a.ravel()])
    right = np.concatenate([generator.permutation(x), small[0], small[2], np.round(small[2]), b.ravel()])
    return left, right


@pytest.mark.parametrize("dtype", [F32, F64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", PAIRS)
def test_errors_of_two_arguments(name, dtype):
    x, y = pairs(dtype)
    expected = library_function(name, 2, dtype)(x, y)
    got = vector_function(name, 2, dtype)(x, y)
    errors = ulps(got, expected)
    worst = int(np.argmax(errors))
    assert errors[worst] <= PAIRS[name][dtype is F64], (x[worst], y[worst], got[worst], expected[worst])
    assert not signs_differ(got, expected).any()


@pytest.mark.parametrize("dtype", [F32, F64], ids=["float32", "float64"])
def test_powers_up_to_the_largest_and_the_smallest(dtype):
    """Where an error of the logarithm counts most: a result of any size, from bases of any size or close to 1."""
    generator = np.random.default_rng(3)
    most, kind = (88, np.float32) if dtype is F32 else (709, np.float64)
    x = np.concatenate([np.exp(generator.uniform(-most, most, 20_000)), generator.uniform(0.6, 1.6, 20_000)]).astype(
        kind
    )
    y = (generator.uniform(-1.05, 1, x.size) * most / np.log(x)).astype(kind)
    errors = ulps(vector_function("pow", 2, dtype)(x, y), library_function("pow", 2, dtype)(x, y))
    assert errors.max() <= PAIRS["pow"][dtype is F64]


@pytest.mark.parametrize("dtype", [F32, F64], ids=["float32", "float64"])
def test_nextafter_is_exact(dtype):
    x, y = pairs(dtype)
    with np.errstate(all="ignore"):
        expected = np.nextafter(x, y)
    got = vector_function("nextafter", 2, dtype)(x, y)
    np.testing.assert_array_equal(got, expected)
    assert not signs_differ(got, expected).any()


@pytest.mark.parametrize("dtype", [F32, F64], ids=["float32", "float64"])
def test_remainder_is_eagers(dtype):
    x, y = pairs(dtype)
    expected = torch.remainder(torch.from_numpy(x), torch.from_numpy(y)).numpy()
    got = vector_function("remainder", 2, dtype)(x, y)
    # Where the quotient overflows, eager's vectors give NaN and its scalars the remainder.
    with np.errstate(all="ignore"):
        known = ~np.isnan(expected) | np.isfinite(x / y) | np.isnan(x) | np.isnan(y) | np.isinf(x) | (y == 0)
    np.testing.assert_array_equal(got[known], expected[known])
    assert not signs_differ(got, expected).any()


def test_inverse_of_erf():
    x = np.concatenate([floats(F32, 100), *ordinary(F32, 50_000)])
    errors = ulps(vector_function("erfinv", 1, F32)(x), torch.erfinv(torch.from_numpy(x).double()).numpy())
    assert errors.max() <= 0.51
    few = np.concatenate([np.random.default_rng(4).uniform(-1, 1, 100), 1 - 2.0 ** -np.arange(1.0, 54), [1e-300, 1e-8]])
    with mpmath.workdps(40):
        expected = np.array([np.longdouble(mpmath.nstr(mpmath.erfinv(mpmath.mpf(one)), 25)) for one in few])
    assert ulps(vector_function("erfinv", 1, F64)(few), expected).max() <= 1.7
    ends = np.array([1, -1, 1.5, np.inf, np.nan, 0.0, -0.0])
    np.testing.assert_array_equal(vector_function("erfinv", 1, F64)(ends), torch.erfinv(torch.tensor(ends)).numpy())


def test_digamma():
    x = np.concatenate([floats(F32, 60), *ordinary(F32, 30_000)])
    errors = ulps(vector_function("digamma", 1, F32)(x), torch.digamma(torch.from_numpy(x).double()).numpy())
    assert errors.max() <= 0.6
    few = np.concatenate([np.random.default_rng(4).uniform(-10, 30, 200), [1e-300, 1e-8, -1e-8, 1e15, 1e300]])
    with mpmath.workdps(40):
        expected = np.array([np.longdouble(mpmath.nstr(mpmath.digamma(mpmath.mpf(one)), 25)) for one in few])
    got = vector_function("digamma", 1, F64)(few)
    np.testing.assert_allclose(got, expected.astype(np.float64), rtol=4e-15, atol=4e-15)
    ends = np.array([0.0, -0.0, -1, -7, np.inf, -np.inf, np.nan, -1e17])
    np.testing.assert_array_equal(vector_function("digamma", 1, F64)(ends), torch.digamma(torch.tensor(ends)).numpy())


@pytest.mark.parametrize("dtype", [F32, F64], ids=["float32", "float64"])
def test_gelu_is_at_least_as_good_as_eager(dtype):
    x = np.concatenate([floats(dtype, 20), *ordinary(dtype)])
    x = x[np.abs(x) < 1e30]
    got = vector_function("gelu_erf", 1, dtype)(x)
    tail = library_function("erfc", 1, F64)((-x.astype(np.float64)) * np.sqrt(0.5))
    expected = x.astype(np.longdouble) * tail / 2
    eager = torch.nn.functional.gelu(torch.from_numpy(x)).numpy()
    assert np.abs(got - expected).max() <= np.abs(eager - expected).max()
    in_reach = np.abs(x) < 5.5
    in_reach &= expected != 0
    errors, eagers = (np.abs(value - expected)[in_reach] / np.abs(expected[in_reach]) for value in (got, eager))
    assert errors.max() <= eagers.max()
    assert not signs_differ(got, eager).any()
    ends = np.array([0.0, -0.0, np.inf, -np.inf, np.nan], TYPES[dtype])
    np.testing.assert_array_equal(vector_function("gelu_erf", 1, dtype)(ends), [0, 0, np.inf, np.nan, np.nan])


def test_gelu_of_float64():
    """Down to where it vanishes: its error is that of the exponential of x², not of a rounded argument of erfc."""
    x = np.concatenate([np.random.default_rng(6).uniform(-38.5, 9, 600), np.linspace(-1, 1, 101), [-37.6, -24.32]])
    with mpmath.workdps(40):
        exact = [mpmath.mpf(one) / 2 * mpmath.erfc(-mpmath.mpf(one) * mpmath.sqrt(0.5)) for one in x]
        expected = np.array([np.longdouble(mpmath.nstr(one, 25)) for one in exact])
    assert ulps(vector_function("gelu_erf", 1, F64)(x), expected).max() <= 2


@pytest.mark.parametrize("lanes", [1, 4, 8, 32])
@pytest.mark.parametrize("dtype", [F32, F64], ids=["float32", "float64"])
def test_any_number_of_lanes_gives_the_same(dtype, lanes):
    x = np.concatenate([floats(dtype, 3), *ordinary(dtype, 500)])
    y = np.random.default_rng(5).permutation(x)
    for name in sorted(vector_math.NAMES):
        given = (x, y, x) if name == "fma" else (x, y) if name in TWO else (x,)
        expected = vector_function(name, len(given), dtype)(*given)
        got = vector_function(name, len(given), dtype, lanes)(*given)
        np.testing.assert_array_equal(got, expected, err_msg=name)


@pytest.mark.parametrize("dtype", [F32, F64], ids=["float32", "float64"])
def test_without_avx512_the_same(dtype, monkeypatch):
    x = np.concatenate([floats(dtype, 3), *ordinary(dtype, 500)])
    for name in ("exp", "exp2", "expm1", "sigmoid", "tanh", "sinh", "cosh", "erfc", "log", "sin", "gelu_erf", "erfinv"):
        expected = vector_function(name, 1, dtype)(x)
        with monkeypatch.context() as patch:
            patch.setattr(cpu_info, "flags", lambda: frozenset(["avx2", "fma"]))
            function = vector_function(name, 1, dtype, cpu="haswell", features="+avx2,+fma")
        assert "ldexp" not in function.text
        np.testing.assert_array_equal(function(x), expected, err_msg=name)


# ---- for GPUs, which have no C library -------------------------------------------------------------------------------


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("dtype", [F32, F64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_angles_of_any_size_without_a_library(name, dtype, lanes):
    x = points(dtype)
    with np.errstate(all="ignore"):
        expected = reference(name, dtype)(x)
    function = vector_function(name, 1, dtype, lanes, is_for_gpu=True)
    got = function(x)
    assert ulps(got, expected).max() <= ERRORS[name][dtype is F64]
    assert not signs_differ(got, expected).any()
    assert f"declare double @{name}(" not in function.text and f"declare float @{name}f(" not in function.text


def test_angles_close_to_multiples_of_half_pi():
    """The float64 that is closest to such a multiple, and others."""
    x = np.array([6381956970095103.0 * 2.0**797, 2.0**1023, 1e300, 5.0 * 2.0**200, 2.0**31 + 0.5, 1.7e308])
    with mpmath.workprec(3000):
        expected = np.array([np.longdouble(mpmath.nstr(mpmath.cos(mpmath.mpf(one)), 25)) for one in x])
    assert ulps(vector_function("cos", 1, F64, 1, is_for_gpu=True)(x), expected).max() <= 1


@pytest.mark.parametrize("dtype", [F32, F64], ids=["float32", "float64"])
def test_remainders_of_any_quotient_without_a_library(dtype):
    x, y = pairs(dtype)
    expected = library_function("fmod", 2, dtype)(x, y)
    got = vector_function("fmod", 2, dtype, 2, is_for_gpu=True)(x, y)
    assert ulps(got, expected).max() == 0
    assert not signs_differ(got, expected).any()


def test_logarithm_of_gamma_without_a_library():
    x = np.concatenate([floats(F32, 100), *ordinary(F32, 30_000)])
    errors = ulps(vector_function("lgamma", 1, F32, 2, is_for_gpu=True)(x), library_function("lgamma", 1, F32)(x))
    assert errors.max() <= 0.51
    generator = np.random.default_rng(4)
    near = [1e-300, 1e-8, 1e15, 1e300, 5e-324, 1 + 2.0**-50, 2 - 2.0**-50, 1 - 2.0**-51, 0.99, 1.01, 2.01]
    few = np.concatenate([generator.uniform(0.5, 3, 300), generator.uniform(0, 30, 300), near])
    below = np.concatenate([generator.uniform(-10, 0, 200), [-1e-8, -1e-300]])
    function = vector_function("lgamma", 1, F64, 2, is_for_gpu=True)
    with mpmath.workdps(40):
        wanted = [mpmath.re(mpmath.loggamma(mpmath.mpf(one))) for one in np.concatenate([few, below])]
        expected = np.array([np.longdouble(mpmath.nstr(one, 25)) for one in wanted])
    assert ulps(function(few), expected[: few.size]).max() <= 2
    np.testing.assert_allclose(function(below), expected[few.size :].astype(np.float64), rtol=4e-15, atol=4e-15)
    ends = np.array([0.0, -0.0, -1, -7, np.inf, -np.inf, np.nan, -1e17, 1, 2])
    np.testing.assert_array_equal(function(ends), torch.lgamma(torch.tensor(ends)).numpy())
