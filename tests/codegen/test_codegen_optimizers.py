"""Optimizer steps, compiled: the same weights as eager's after several steps, one graph a step, one kernel a tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import optim

import kiln
from kiln.codegen import pipeline
from kiln.loops.steps import Launch

SHAPES = ((37, 16), (37,), (8, 37), (8,), ())
OPTIMIZERS: dict[str, Callable[..., optim.Optimizer]] = {
    "sgd": lambda p: optim.SGD(p, lr=0.1, foreach=False),
    "sgd momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, foreach=False),
    "sgd lists": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, foreach=True),
    "sgd fused": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, fused=True),
    "adam": lambda p: optim.Adam(p, lr=0.1, foreach=False),
    "adam lists": lambda p: optim.Adam(p, lr=0.1, weight_decay=0.01, foreach=True),
    "adam amsgrad": lambda p: optim.Adam(p, lr=0.1, amsgrad=True, maximize=True, foreach=True),
    "adam fused": lambda p: optim.Adam(p, lr=0.1, amsgrad=True, weight_decay=0.01, fused=True),
    "adamw": lambda p: optim.AdamW(p, lr=0.1, foreach=False),
    "adamw lists": lambda p: optim.AdamW(p, lr=0.1, foreach=True),
    "adamw fused": lambda p: optim.AdamW(p, lr=0.1, fused=True),
    "rmsprop": lambda p: optim.RMSprop(p, lr=0.1, momentum=0.5, foreach=True),
}


class Pair:
    """The same weights twice: with an optimizer in eager, and with a compiled one."""

    def __init__(self, make: Callable[..., optim.Optimizer], dtype: torch.dtype = torch.float32) -> None:
        torch.manual_seed(0)
        self.weights = [torch.nn.Parameter(torch.randn(shape, dtype=dtype)) for shape in SHAPES]
        self.twins = [torch.nn.Parameter(weight.detach().clone()) for weight in self.weights]
        self.eager, self.compiled = make(self.weights), make(self.twins)
        self.step = kiln.compile(self.compiled.step, backend="kiln")

    def take_step(self) -> None:
        for weight, twin in zip(self.weights, self.twins, strict=True):
            weight.grad = torch.randn_like(weight)
            twin.grad = weight.grad.clone()
        self.eager.step()
        self.step()

    def assert_alike(self, tolerance: float) -> None:
        states = [
            [value for state in optimizer.state.values() for value in state.values() if isinstance(value, torch.Tensor)]
            for optimizer in (self.eager, self.compiled)
        ]
        for wanted, found in zip([*self.weights, *states[0]], [*self.twins, *states[1]], strict=True):
            torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)
        for weight, twin in zip(self.weights, self.twins, strict=True):
            assert torch.equal(weight.grad, twin.grad)


@pytest.fixture(autouse=True)
def strict():
    kiln.reset()
    with kiln.config.patch(raise_internal_errors=True):
        yield


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_as_eager(name):
    pair = Pair(OPTIMIZERS[name])
    for _ in range(4):
        pair.take_step()
        pair.assert_alike(0 if name in ("sgd", "sgd momentum", "sgd lists") else 2e-6)


def test_float64():
    pair = Pair(OPTIMIZERS["adam lists"], torch.float64)
    for _ in range(3):
        pair.take_step()
        pair.assert_alike(1e-14)


@pytest.mark.parametrize("name", ["sgd lists", "adam lists", "adamw", "adamw fused"])
def test_rates_that_vary(name):
    pair = Pair(OPTIMIZERS[name])
    for number in range(5):
        for optimizer in (pair.eager, pair.compiled):
            optimizer.param_groups[0]["lr"] = 0.1 / (number + 1)
        pair.take_step()
        pair.assert_alike(2e-6)


@pytest.mark.parametrize(
    "name", ["sgd", "sgd lists", "sgd fused", "adam lists", "adam fused", "adamw fused", "rmsprop"]
)
def test_a_scheduler_compiles_nothing_again(name):
    pair = Pair(OPTIMIZERS[name])
    schedulers = [optim.lr_scheduler.ExponentialLR(one, 0.7) for one in (pair.eager, pair.compiled)]
    pair.step = kiln.compile(pair.compiled.step, backend="kiln")  # which a scheduler has wrapped
    frames = []
    for _ in range(7):
        pair.take_step()
        for scheduler in schedulers:
            scheduler.step()
        pair.assert_alike(2e-6)
        frames.append(kiln.report.counters["frames"])
    assert frames[3:] == frames[3:4] * 4  # the state is new in the first, and the rate has varied in the second


@pytest.mark.parametrize("name", ["adam", "adam lists", "adamw lists", "adamw fused", "sgd lists"])
def test_a_kernel_for_each_tensor(name, monkeypatch):
    seen: list[Any] = []
    schedule = pipeline.schedule

    def noted(lowered: Any, device: str) -> Any:
        seen.append(schedule(lowered, device))
        return seen[-1]

    monkeypatch.setattr(pipeline, "schedule", noted)
    pair = Pair(OPTIMIZERS[name])
    with kiln.config.patch(cache=False):
        for _ in range(3):
            pair.take_step()
    launches = [step for step in seen[-1].steps if isinstance(step, Launch)]
    updates = [launch for launch in launches if any(loop.size != 1 for loop in launch.kernel.loops)]
    assert not [step for step in seen[-1].steps if not isinstance(step, Launch)]
    assert len(updates) <= len(SHAPES)


def test_gradients_are_clipped():
    torch.manual_seed(1)
    weights = [torch.nn.Parameter(torch.randn(shape)) for shape in SHAPES]
    twins = [torch.nn.Parameter(weight.detach().clone()) for weight in weights]
    for weight, twin in zip(weights, twins, strict=True):
        weight.grad = torch.randn_like(weight)
        twin.grad = weight.grad.clone()
    clip = kiln.compile(lambda parameters: torch.nn.utils.clip_grad_norm_(parameters, 1.0), backend="kiln")
    torch.testing.assert_close(clip(twins), torch.nn.utils.clip_grad_norm_(weights, 1.0))
    for weight, twin in zip(weights, twins, strict=True):
        torch.testing.assert_close(twin.grad, weight.grad)
