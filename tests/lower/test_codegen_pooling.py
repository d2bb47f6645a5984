"""Pooling as machine code: values and places as in eager, for windows with and without padding, steps and dilation."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.support.codegen_programs import calls, scheduled_of
from tests.support.compiled_programs import check

nan, inf = float("nan"), float("inf")
WINDOWS = {
    "2x2": {"kernel_size": 2},
    "3x3 by 2, padded": {"kernel_size": 3, "stride": 2, "padding": 1},
    "overlapping": {"kernel_size": (3, 2), "stride": 1},
    "dilated": {"kernel_size": 2, "stride": (1, 2), "dilation": (2, 3)},
    "ceiling": {"kernel_size": 3, "stride": 2, "ceil_mode": True},
    "padded to the ceiling": {"kernel_size": (3, 2), "stride": 2, "padding": (1, 1), "ceil_mode": True},
}


def made(*shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_max_pool(windows, dtype):
    def function(x):
        return F.max_pool2d(x, return_indices=True, **WINDOWS[windows])

    x = made(2, 3, 11, 18, dtype=dtype)
    check(function, x.detach().requires_grad_())
    check(function, x[0])
    check(function, x.to(memory_format=torch.channels_last))
    check(function, x[:, :, 1:, ::2])
    check(lambda x: F.max_pool2d(x.relu(), **WINDOWS[windows]), x)


@pytest.mark.parametrize("windows", WINDOWS)
def test_max_pool_of_special_values(windows):
    x = made(1, 2, 12, 20)
    x[0, 0, :5] = -inf
    x[0, 0, 7, 3:9] = nan
    x[0, 1, 3:8] = inf
    x[0, 1, 9:] = 0.5
    check(lambda x: F.max_pool2d(x, return_indices=True, **WINDOWS[windows]), x)


def test_average_pool():
    x = made(2, 3, 12, 18)
    for more in ({"kernel_size": 2}, {"kernel_size": 3, "stride": 2}, {"kernel_size": 2, "divisor_override": 3}):
        check(lambda x, more=more: F.avg_pool2d(x, **more), x.detach().requires_grad_())
        check(lambda x, more=more: F.avg_pool2d(x, **more), x.to(torch.bfloat16))
    for more in ({"kernel_size": 3, "padding": 1}, {"kernel_size": 5, "ceil_mode": True}):
        check(lambda x, more=more: F.avg_pool2d(x, **more), x)


@pytest.mark.parametrize("parts", [1, 3, (2, 6), (12, 18), 5], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_adaptive_average_pool(parts, dtype):
    x = made(2, 3, 12, 18, dtype=dtype)
    for one in (x, x[0], x.to(memory_format=torch.channels_last), made(2, 3, 18, 12).to(dtype).transpose(2, 3)):
        check(lambda x: F.adaptive_avg_pool2d(x, parts), one.detach().requires_grad_())
    check(lambda x: F.adaptive_avg_pool2d(x, parts), x[:0])


def test_adaptive_average_pool_of_a_varying_batch():
    check(lambda x: F.adaptive_avg_pool2d(x * 2, 3), made(2, 3, 12, 18).requires_grad_(), dynamic=True)


def test_pools_are_kernels():
    x = made(2, 3, 12, 18)
    assert not calls(scheduled_of(lambda x: F.adaptive_avg_pool2d(x, 3), (x,)))
    backward = torch.ops.aten._adaptive_avg_pool2d_backward
    assert not calls(scheduled_of(lambda x, gradient: backward(gradient, x), (x, made(2, 3, 3, 3))))
    assert not calls(scheduled_of(lambda x: F.max_pool2d(x, 2, return_indices=True), (x,)))
    assert not calls(scheduled_of(lambda x: F.avg_pool2d(x, 2), (x,)))
