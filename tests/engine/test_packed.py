"""Saved-tensor hooks and checkpoints under the engine: what is packed and unpacked, how often, when, as in eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from tests.engine.observing import as_traced, compare, engine, observe, whole, with_breaks

PROGRAMS: list[Any] = []


def program(function: Any) -> Any:
    PROGRAMS.append(pytest.param(function, id=function.__name__))
    return function


@pytest.mark.parametrize("function", PROGRAMS)
@pytest.mark.parametrize("compiler", [as_traced, with_breaks, whole])
def test_as_in_eager(function: Any, compiler: Any) -> None:
    expected = observe(function)
    assert expected.raised is None
    with engine(compiler):
        for _ in range(2):
            assert compare(expected, observe(function)) == []


def leaf(*size: int) -> torch.Tensor:
    return torch.randn(*size, requires_grad=True)


def logging_hooks(log: list[Any]) -> Any:
    def pack(tensor: torch.Tensor) -> Any:
        log.append(("pack", tuple(tensor.shape)))
        return tensor.detach().clone(), len(log)

    def unpack(packed: Any) -> torch.Tensor:
        log.append(("unpack", packed[1], torch.is_grad_enabled()))
        return packed[0]

    return saved_tensors_hooks(pack, unpack)


@program
def unpacked_at_the_nodes_place() -> Any:
    log: list[Any] = []
    x, w = leaf(3, 3), leaf(3, 3)
    with logging_hooks(log):
        y = (x @ w).sin()
        y.register_hook(lambda gradient: log.append("hook"))
        z = y.exp() * w
    z.register_hook(lambda gradient: log.append("hook of the result"))
    w.register_hook(lambda gradient: log.append("hook of the leaf"))
    z.sum().backward()
    return log, x.grad, w.grad


@program
def some_packed_and_some_not() -> Any:
    log: list[Any] = []
    x = leaf(4)
    y = x.sin()
    with logging_hooks(log):
        y = y.cos() * x
    y = y.exp().sum()
    y.backward(retain_graph=True)
    y.backward()
    return log, x.grad


@program
def packed_by_functions() -> Any:
    log: list[Any] = []

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x, x * 2)
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            log.append("backward")
            first, second = ctx.saved_tensors
            return gradient * second / first

    x = leaf(4)
    with logging_hooks(log):
        y = Double.apply(x.sin()).cos()
    y.sum().backward()
    return log, x.grad


@program
def only_what_runs_is_unpacked() -> Any:
    log: list[Any] = []
    x, w = leaf(3), leaf(3)
    with logging_hooks(log):
        y = x.sin() * w.cos()
    (gradient,) = torch.autograd.grad(y.sum(), [x])
    return log, gradient


@program
def other_sizes() -> Any:
    log: list[Any] = []
    found = []
    for size in (2, 3, 5):
        x = leaf(size, 2)
        with logging_hooks(log):
            y = x.sin().softmax(0)
        (y * y).sum().backward()
        found.append(x.grad)
    return log, found


@program
def kept_on_the_cpu() -> Any:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    with save_on_cpu():
        loss = model(torch.ones(3, 4)).square().sum()
    loss.backward()
    return [parameter.grad for parameter in model.parameters()]


def block(log: list[Any]) -> Any:
    layers = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.GELU())

    def run(x: torch.Tensor) -> torch.Tensor:
        log.append(("run", torch.is_grad_enabled()))
        return layers(x)

    return run, layers


def checkpointed(use_reentrant: bool, **options: Any) -> Any:
    log: list[Any] = []
    first, one = block(log)
    second, two = block(log)
    x = leaf(3, 4)
    for _ in range(2):
        y = checkpoint(first, x * 1, use_reentrant=use_reentrant, **options)
        y.register_hook(lambda gradient: log.append("between"))
        z = checkpoint(second, y.sin(), use_reentrant=use_reentrant, **options)
        z.square().sum().backward()
    return log, x.grad, [p.grad for layer in (one, two) for p in layer.parameters()], torch.rand(1)


@program
def checkpoints() -> Any:
    return checkpointed(False)


@program
def checkpoints_to_their_end() -> Any:
    return checkpointed(False, preserve_rng_state=True, determinism_check="default")


@program
def reentrant_checkpoints() -> Any:
    return checkpointed(True)


@program
def nested_checkpoints() -> Any:
    log: list[Any] = []
    inner, layers = block(log)

    def outer(x: torch.Tensor) -> torch.Tensor:
        log.append("outer")
        return checkpoint(inner, x.sin(), use_reentrant=False) * x

    x = leaf(3, 4)
    checkpoint(outer, x * 2, use_reentrant=False).sum().backward()
    return log, x.grad, [p.grad for p in layers.parameters()]


@program
def nested_reentrant_checkpoints() -> Any:
    log: list[Any] = []
    inner, layers = block(log)

    def outer(x: torch.Tensor) -> torch.Tensor:
        log.append("outer")
        return checkpoint(inner, x.sin(), use_reentrant=True) * x

    x = leaf(3, 4)
    checkpoint(outer, x * 2, use_reentrant=True).sum().backward()
    return log, x.grad, [p.grad for p in layers.parameters()]


@program
def a_packed_tensor_that_comes_back_as_another() -> Any:
    x = leaf(3)
    with saved_tensors_hooks(lambda tensor: tensor.detach() * 2, lambda packed: packed.clone()):
        y = x * x
    y.sum().backward()
    return x.grad


@pytest.mark.parametrize("compiler", [as_traced, with_breaks])
def test_an_unpack_hook_that_raises(compiler: Any) -> None:
    def run() -> Any:
        x = leaf(3)
        with saved_tensors_hooks(lambda tensor: tensor, lambda packed: 1 / 0):
            y = x.sin().exp()
        y.sum().backward()

    expected = observe(run)
    with engine(compiler):
        assert compare(expected, observe(run)) == []
    assert isinstance(expected.raised, ZeroDivisionError)
