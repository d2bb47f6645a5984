"""Backward passes started by backward passes, many deep."""

import pytest
import torch

import kiln
from kiln.report.events import counters

COMPILERS = {"graph": lambda graph: graph, "eager": lambda graph: kiln.compile(graph, backend="eager")}


class Countdown(torch.autograd.Function):
    """Its backward starts that of another one, until zero."""

    @staticmethod
    def forward(ctx, x):
        with torch.enable_grad():
            ctx.less = x.detach().requires_grad_() - 1
        return ctx.less.detach()

    @staticmethod
    def backward(ctx, gradient):
        if ctx.less >= 0:
            with torch.enable_grad():
                Countdown.apply(ctx.less).sum().backward()
        return gradient


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("depth", [3, 300])
def test_passes_inside_one_another(compiler, depth):
    """Torch's engine goes on in another thread before Python's stack is full; Kiln leaves the deep ones to it."""
    x = torch.tensor(float(depth), requires_grad=True)
    before = counters["engine handed over"]
    with kiln.compiled_autograd.enable(COMPILERS[compiler]):
        Countdown.apply(x).sum().backward()
    assert x.grad.item() == 1
    assert (counters["engine handed over"] > before) == (depth > 3)
