"""Elementwise programs whose sizes, numbers or draws vary from call to call."""

from __future__ import annotations

import pytest
import torch

import kiln

F = torch.nn.functional


def test_sizes_that_vary():
    def function(x, target):
        rows, columns = x.shape
        mask = torch.ones(rows, columns, dtype=torch.bool).tril(-1)
        counted = torch.arange(columns, dtype=torch.float32) / columns + torch.full((rows, 1), 1 / rows)
        loss = (
            F.mse_loss(x, target)
            + F.smooth_l1_loss(x, target)
            + F.binary_cross_entropy_with_logits(x, target.sigmoid())
        )
        return x.masked_fill(mask, 0.5) + counted, loss / rows, torch.eye(rows, columns) + F.gelu(x) / columns

    call = kiln.compile(function, backend="kiln", dynamic=True)
    with kiln.config.patch(raise_internal_errors=True):
        for shape in ((5, 7), (33, 20), (8, 130)):
            torch.manual_seed(0)
            x, target = (torch.randn(shape, requires_grad=True) for _ in range(2))
            x_twin, target_twin = (tensor.detach().clone().requires_grad_() for tensor in (x, target))
            wanted, found = function(x, target), call(x_twin, target_twin)
            for one, other in zip(found, wanted, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-4)
            for results in (wanted, found):
                sum((result * result).sum() for result in results).backward()
            torch.testing.assert_close(x_twin.grad, x.grad, rtol=1e-5, atol=1e-4)
            torch.testing.assert_close(target_twin.grad, target.grad, rtol=1e-5, atol=1e-4)


NUMBERS_OF_SIZES = {
    "threshold": lambda x: F.threshold(x, x.shape[0] - 5, x.shape[1]),
    "leaky_relu": lambda x: F.leaky_relu(x, x.shape[0]),
    "softplus": lambda x: F.softplus(x, x.shape[0], x.shape[1]),
    "hardtanh": lambda x: F.hardtanh(x, -x.shape[0], x.shape[0]),
    "elu": lambda x: F.elu(x, x.shape[0]),
    "addcmul": lambda x: torch.addcmul(x, x, x, value=x.shape[0]),
    "lerp": lambda x: torch.lerp(x, -x, x.shape[0]),
    "variance": lambda x: x.var(correction=x.shape[0]),
    "label smoothing": lambda x: F.cross_entropy(x, x.softmax(-1), label_smoothing=0.1),  # a fraction of a size
}


@pytest.mark.parametrize("name", NUMBERS_OF_SIZES)
def test_numbers_that_are_sizes(name):
    function = NUMBERS_OF_SIZES[name]
    compiled = kiln.compile(function, backend="kiln", dynamic=True)
    before = kiln.report.counters["codegen eager"]
    for shape in ((6, 9), (4, 5)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), function(x), rtol=1e-5, atol=1e-6)
    assert kiln.report.counters["codegen eager"] == before


def test_numbers_that_vary():
    def function(x, y, number):
        total = torch.add(x, y, alpha=number) * number - y / number
        return torch.lerp(total, x, number) + torch.addcmul(x, x, y, value=number).clamp(min=number) + x**number

    call = kiln.compile(function, backend="kiln")
    x, y = torch.rand(40), torch.rand(40)
    with kiln.config.patch(raise_internal_errors=True):
        for number in (0.3, 0.7, 1.5, 0.25, -0.5):
            torch.testing.assert_close(call(x, y, number), function(x, y, number), rtol=1e-6, atol=1e-6)


# ---- random numbers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "channels last"])
def test_dropout_draws_as_eager(layout):
    torch.manual_seed(7)
    x = {
        "contiguous": lambda: torch.randn(24, 33),
        "transposed": lambda: torch.randn(24, 33).t(),
        "channels last": lambda: torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    }[layout]()

    def function(x):
        return F.dropout(torch.relu(F.dropout(x, 0.5) * 2), 0.3) + torch.rand_like(x)

    seen = []
    for call in (function, kiln.compile(function, backend="kiln")):
        torch.manual_seed(11)
        leaf = x.detach().clone().requires_grad_()
        result = call(leaf)
        (result * result).sum().backward()
        seen.append((result.detach(), leaf.grad, torch.get_rng_state()))
    for found, wanted in zip(*seen, strict=True):
        assert torch.equal(found, wanted)
