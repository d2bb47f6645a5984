"""Reductions as machine code: values, types and strides as in eager, in all types and layouts."""

from __future__ import annotations

import re

import pytest
import torch

import kiln
from tests.support.codegen_programs import calls, launches, scheduled_of
from tests.support.compiled_programs import check, check_accuracy

nan, inf = float("nan"), float("inf")
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)

LAYOUTS = {
    "contiguous": lambda made: made(4, 19, 33),
    "transposed": lambda made: made(33, 19, 4).transpose(0, 2),
    "expanded": lambda made: made(4, 1, 33).expand(4, 19, 33),
    "sliced": lambda made: made(9, 20, 70)[1::2, 1:, 3:69:2],
    "channels last": lambda made: made(2, 19, 4, 5).to(memory_format=torch.channels_last),
    "one element": lambda made: made(1, 1, 1),
    "a number": lambda made: made(),
}


def made_of(dtype):
    """Tensors of small numbers of a type: products of them do not overflow where sums do not."""
    generator = torch.Generator().manual_seed(0)

    def made(*shape):
        if dtype.is_floating_point:
            return (torch.rand(shape, generator=generator, dtype=torch.float64) * 2 - 1).to(dtype)
        return torch.randint(0 if dtype in (torch.uint8, torch.bool) else -3, 4, shape, generator=generator).to(dtype)

    return made


def reductions(x):
    dim = min(1, max(x.dim() - 1, 0))
    return [
        x.sum(),
        x.sum(dim),
        x.sum(-1, keepdim=True),
        x.sum(dtype=torch.float64),
        x.prod(dim),
        x.amax(),
        x.amax(-1),
        x.amin(dim, keepdim=True),
        x.max(),
        x.min(),
        x.any(),
        x.any(dim),
        x.all(),
        x.all(-1, keepdim=True),
        *x.max(-1),
        *x.min(dim, keepdim=True),
        *torch.aminmax(x),
        torch.count_nonzero(x, dim),
        torch.nansum(x, dim),
    ]


def places(x):
    return [x.argmax(), x.argmin(), x.argmax(-1), x.argmin(-1, keepdim=True)]


def of_floats(x):
    dim = min(1, max(x.dim() - 1, 0))
    return [
        x.mean(),
        x.mean(dim),
        x.mean(-1, keepdim=True),
        x.var(-1),
        x.std(),
        *torch.var_mean(x, dim, correction=0, keepdim=True),
        *torch.std_mean(x, correction=3),
        x.norm(),
        *(torch.linalg.vector_norm(x, order, dim) for order in (0, 1, 2, 3, inf, -inf)),
        torch.logsumexp(x, -1),
        torch.logsumexp(x, dim, keepdim=True),
    ]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
def test_reductions(dtype, layout):
    x = LAYOUTS[layout](made_of(dtype))
    check(reductions, x)
    if dtype is not torch.bool:
        check(places, x)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_means_variances_norms(dtype, layout):
    tolerance = {torch.float32: {"rtol": 5e-6, "atol": 1e-5}}.get(dtype, {})  # eager adds up norms one by one
    check(of_floats, LAYOUTS[layout](made_of(dtype)), **tolerance)


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (3, 0, 5)], ids=str)
def test_of_no_elements(shape):
    def function(x):
        return x.sum(), x.sum(0), x.sum(-1), x.prod(), x.mean(), x.mean(-1), x.any(), x.all(-1), x.norm(), x.var(-1)

    check(function, torch.randn(shape))


def test_special_values():
    rows = torch.tensor(
        [[1.0, nan, 3.0], [inf, 1.0, -inf], [-inf, -inf, -inf], [0.0, -0.0, 0.0], [nan, nan, inf], [5.0, 5.0, 5.0]]
    )

    def function(x):
        found = [x.amax(-1), x.amin(-1), x.argmax(-1), x.argmin(-1), x.sum(-1), x.nansum(-1), x.logsumexp(-1)]
        return [*found, x.any(-1), x.all(-1), x.mean(-1), x.var(-1), *x.max(-1), *x.min(0), x.norm(dim=-1)]

    check(function, rows)
    check(function, torch.cat([rows] * 20, 1))
    check(function, torch.cat([rows] * 20, 0))


def test_the_first_of_equals_is_found_in_long_rows():
    x = torch.zeros(5, 1000)
    x[0, 777] = x[0, 999] = 1
    x[1, 3] = x[1, 500] = -1
    x[2, 640] = x[2, 641] = nan
    check(lambda x: (x.argmax(-1), x.argmin(-1), x.argmax(), x.argmax(0)), x)


def test_integers_wrap_around():
    x = torch.full((3, 40), 2**62, dtype=torch.int64)
    check(lambda x: (x.sum(), x.sum(-1), x.prod(-1)), x)


def test_types_that_are_asked_for():
    x = torch.arange(12.0).reshape(3, 4)

    def function(x):
        return (
            x.sum(dtype=torch.int32),
            x.sum(0, dtype=torch.float64),
            x.mean(1, dtype=torch.bfloat16),
            x.prod(dtype=torch.float64),
        )

    check(function, x)
    check(lambda x: (x.sum(0, dtype=torch.uint8), torch.mean(x, dtype=torch.float32)), x.to(torch.int64))


def test_gradients():
    def function(x):
        found = [x.sum(1), x.mean(), x.amax(-1), x.max(0)[0], x.std(1), torch.var_mean(x, 0)[0], x.norm(dim=1)]
        return [*found, x.logsumexp(1), x.prod(2), x.nansum(0)]

    for layout in ("contiguous", "transposed", "sliced"):
        check(function, LAYOUTS[layout](made_of(torch.float64)).detach().clone().requires_grad_())


@pytest.mark.parametrize("dtype", INTEGERS)
def test_means_of_integers(dtype):
    x = torch.arange(35, dtype=torch.int64).reshape(5, 7).to(dtype)
    check(lambda x: [x.mean(dtype=to) for to in FLOATS] + [x.mean(0, dtype=to) for to in FLOATS], x)


def test_products_of_float16():
    """Eager rounds them at each step: what overflows on the way stays infinite."""
    check(lambda x: x.prod(0), torch.tensor([[300.0], [300.0], [0.001], [3.0]], dtype=torch.float16))


def test_sizes_that_vary():
    def function(x):
        return x.sum(-1), x.mean(0), x.std(), x.argmax(-1), x.softmax(-1), x.amax((0, 1))

    check(function, torch.randn(7, 18, 5), dynamic=True)


@pytest.mark.parametrize(
    "function", [lambda x: x.max(), lambda x: x.min(0), lambda x: x[2:].min(), lambda x: x[2:].max(0)]
)
def test_extremes_of_nothing_raise(function):
    compiled = kiln.compile(function, backend="kiln", dynamic=True)
    torch.testing.assert_close(compiled(torch.ones(5, 3)), function(torch.ones(5, 3)))
    for shape in ((2, 3), (0, 3)):  # (sizes of 2 and more are one program)
        try:
            expected = function(torch.ones(shape))
        except (RuntimeError, IndexError) as error:
            with pytest.raises(type(error), match=re.escape(str(error))):
                compiled(torch.ones(shape))
        else:
            torch.testing.assert_close(compiled(torch.ones(shape)), expected)


@pytest.mark.parametrize("shape", [(1_000_003,), (300, 2000), (20_000, 40)], ids=str)
def test_accuracy(shape):
    x = torch.rand(shape)
    check_accuracy(lambda x: (x.sum(), x.mean(-1), x.var(0), x.norm(), x.sum(0)), x)
    check_accuracy(lambda x: (x.var(), x.std(-1)), x + 1000)


def test_all_of_them_are_kernels():
    x = torch.randn(4, 19, 33)
    for function in (reductions, places, of_floats):
        assert calls(scheduled_of(function, (x,))) == []


def test_siblings_share_a_kernel():
    found = scheduled_of(lambda x: (x.sum(-1), x.amax(-1), x.mean(-1) + 1), (torch.randn(64, 100),))
    assert len(launches(found)) == 1
