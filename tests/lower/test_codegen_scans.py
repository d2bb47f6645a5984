"""Scans as machine code: to eager's bits, along any axis, in all types and layouts, fused with what is around them."""

from __future__ import annotations

import pytest
import torch

import kiln
from tests.support.codegen_programs import calls, check_meaning, launches, scheduled_of
from tests.support.compiled_programs import check, compiled

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.uint8, torch.bool)
EXACT = {"rtol": 0, "atol": 0}

LAYOUTS = {
    "contiguous": lambda made: made(4, 19, 33),
    "transposed": lambda made: made(33, 19, 4).transpose(0, 2),
    "sliced": lambda made: made(9, 20, 70)[1::2, 1:, 3:69:2],
    "channels last": lambda made: made(2, 19, 4, 5).to(memory_format=torch.channels_last),
    "one element": lambda made: made(1, 1, 1),
    "no element": lambda made: made(3, 0, 2),
    "a number": lambda made: made(),
}


def made_of(dtype):
    generator = torch.Generator().manual_seed(0)

    def made(*shape):
        return (torch.randn(shape, generator=generator, dtype=torch.float64) * 2).to(dtype)

    return made


def scans(x):
    return [scan(x, dim) for scan in (torch.cumsum, torch.cumprod) for dim in range(max(x.dim(), 1))]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", FLOATS + INTEGERS, ids=str)
def test_values_are_eagers(dtype, layout):
    x = LAYOUTS[layout](made_of(dtype))
    with kiln.config.patch(raise_internal_errors=True):
        results = compiled(scans)(x)
    for found, expected in zip(results, scans(x), strict=True):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert found.stride() == expected.stride() or found.numel() < 2
        torch.testing.assert_close(found, expected, equal_nan=True, **EXACT)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int64, torch.int8], ids=str)
def test_type_of_the_result(dtype):
    x = torch.tensor([[0.75, 300.5, -2.5], [1.5, 7.0, 90.0]])
    check(lambda x: [x.cumsum(1, dtype=dtype), x.cumprod(0, dtype=dtype)], x, **EXACT)


@pytest.mark.parametrize("special", [[0.0, -0.0], [-0.0], [1.0, float("inf"), -float("inf"), 2.0], [float("nan"), 1.0]])
def test_special_values(special):
    x = torch.tensor(special)
    check(lambda x: [torch.signbit(x.cumsum(0)), x.cumsum(0), x.cumprod(0), x[:1].cumsum(0)], x, **EXACT)


AROUND = {
    "before and after": lambda x, d: torch.cumsum(x * 3 + 1, d) * 2 - x,
    "after rows": lambda x, d: torch.cumsum(x - x.amax(d, keepdim=True), d),
    "twice": lambda x, d: x.cumsum(d).cumsum(d),
    "both axes": lambda x, d: x.cumsum(0).cumsum(1),
    "from the end": lambda x, d: x.flip(d).cumsum(d).flip(d),
    "read from the end": lambda x, d: x.cumsum(d).flip(d) + x,
    "turned": lambda x, d: x.t().cumsum(d),
    "in other axes": lambda x, d: x.cumsum(d).view(36, 7, 10) + x.view(36, 7, 10),
    "as one row": lambda x, d: x.view(-1).cumsum(0).view(36, 70).cumsum(d),
    "the last ones": lambda x, d: [x.cumsum(1)[:, -1], x.cumsum(0)[-1]],
    "one for two": lambda x, d: [x.cumsum(d), x.cumprod(d), x.cumsum(d) * x],
    "for a later phase": lambda x, d: [x.cumsum(d), x.cumsum(d) - x.cumsum(d).amax(d, keepdim=True)],
}


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("name", AROUND)
def test_fused_values_are_eagers(name, dim):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(36, 70, generator=generator)
    check(lambda x: AROUND[name](x, dim), x, **EXACT)
    check_meaning(lambda x: AROUND[name](x, dim), [x])


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("name", ["before and after", "from the end", "for a later phase"])
def test_varying_sizes(name, dim):
    check(lambda x: AROUND[name](x, dim), torch.randn(36, 70), dynamic=True, **EXACT)


@pytest.mark.parametrize("dim", [0, 1])
def test_shares_a_kernel_with_what_is_around(dim):
    x = torch.randn(37, 70)
    scheduled = scheduled_of(lambda x: torch.cumsum(torch.softmax(x, dim), dim).flip(dim) * 2, [x])
    assert len(launches(scheduled)) == 1 and not calls(scheduled)
    assert len(scheduled.kernels[0].outputs) == 1


@pytest.mark.parametrize("dim", [0, 1])
def test_gradients(dim):
    x = torch.randn(37, 70, dtype=torch.float64, requires_grad=True)
    check(lambda x: torch.cumsum(x.sin(), dim), x)
    check(lambda x: torch.cumsum(x.sin(), dim), x, dynamic=True)


def test_many_rows_on_threads():
    x = torch.randn(300, 1030)
    check(lambda x: [x.cumsum(0), x.cumsum(1)], x, **EXACT)


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8])
def test_few_rows_at_once(rows):
    x = torch.randn(rows, 21)
    check(lambda x: [x.cumsum(1), x.double().exp().cumprod(1).amax(1), (x * x.amax(1, keepdim=True)).cumsum(1)], x)
