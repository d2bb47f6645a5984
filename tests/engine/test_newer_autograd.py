"""What torch's autograd has from torch 2.14 and 2.15 on: hooks on new nodes, and contexts that ask for more."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import Function
from torch.autograd.function import FunctionCtx
from torch.utils.checkpoint import checkpoint

import kiln
from tests.engine.observing import as_traced, compare, engine, observe, whole, with_breaks
from tests.engine.topics import leaf


class AddsInPlace(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return add_to_waiting(ctx, gradient)


def add_to_waiting(ctx, gradient):
    (waiting,) = ctx.input_grad_buffers
    if waiting is None:
        return gradient * 2
    waiting.add_(gradient, alpha=2)
    return None


def adds_to_gradients_that_wait():
    x = leaf(1.0, 2.0)
    (AddsInPlace.apply(x) + x.sin() + AddsInPlace.apply(x * 2)).sum().backward()
    return [x.grad]


@pytest.mark.skipif(not hasattr(FunctionCtx, "input_grad_buffers"), reason="torch has it from 2.15 on")
@pytest.mark.parametrize("compiler", [as_traced, with_breaks, whole])
def test_adding_to_gradients_that_wait_is_left_to_torch(compiler):
    expected = observe(adds_to_gradients_that_wait)
    with engine(compiler):
        for _ in range(2):
            assert compare(expected, observe(adds_to_gradients_that_wait)) == []


class WideGradients(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_output_grad_dtype(torch.float32, None)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, first, second):
        return (first.sin() if first.dtype is torch.float32 else first) + second * 2


def wide_gradients():
    x = torch.tensor([1.0, 2.0], dtype=torch.bfloat16, requires_grad=True)
    first, second = WideGradients.apply(x)
    (first.float().sum() + (second * 3).sum()).backward()
    return [x.grad]


@pytest.mark.skipif(not hasattr(FunctionCtx, "set_output_grad_dtype"), reason="torch has it from 2.15 on")
@pytest.mark.parametrize("compiler", [as_traced, with_breaks, whole])
def test_gradients_of_the_types_that_a_function_declares(compiler):
    expected = observe(wide_gradients)
    with engine(compiler):
        for _ in range(2):
            assert compare(expected, observe(wide_gradients)) == []


def hooks_on_new_nodes():
    x, names = leaf(1.0, 2.0), []
    with torch.autograd.graph.node_creation_hook(lambda node: names.append(node.name())):
        loss = checkpoint(lambda x: (x * 2).sin(), x, use_reentrant=False).sum()
        loss.backward()
    return [x.grad], names


@pytest.mark.skipif(not hasattr(torch.autograd.graph, "node_creation_hook"), reason="torch has it from 2.14 on")
@pytest.mark.parametrize("compiler", [as_traced, with_breaks, whole])
def test_hooks_on_new_nodes(compiler):
    expected = observe(hooks_on_new_nodes)
    with engine(compiler):
        for _ in range(2):
            assert compare(expected, observe(hooks_on_new_nodes)) == []


@pytest.mark.skipif(not hasattr(torch.autograd.graph, "node_creation_hook"), reason="torch has it from 2.14 on")
def test_hooks_on_new_nodes_see_those_of_eager():
    def program(x):
        return (x * 2).sin()

    def inside(x):
        with torch.autograd.graph.node_creation_hook(lambda node: inner.append(node.name())):
            y = x * 2
        return y.sin()

    def seen(function):
        names = []
        with torch.autograd.graph.node_creation_hook(lambda node: names.append(node.name())):
            function(leaf(1.0))
        return names

    compiled = kiln.compile(program, backend="kiln")
    compiled(leaf(1.0))
    for _ in range(2):
        assert seen(compiled) == seen(program)
        assert type(compiled(leaf(1.0)).grad_fn).__name__ == "KilnBackward"
    names = []
    for function in (inside, kiln.compile(inside)):
        inner: list[str] = []
        function(leaf(1.0))
        names.append(inner)
    assert names[0] == names[1]


@pytest.mark.skipif(not hasattr(torch.autograd.graph, "queue_callback"), reason="torch has it from 2.15 on")
def test_callbacks_by_the_public_function():
    def program():
        x, log = leaf(1.0), []
        y = x * 2
        y.register_hook(lambda gradient: torch.autograd.graph.queue_callback(lambda: log.append("done")))
        y.sin().sum().backward()
        return [x.grad], log

    expected = observe(program)
    for compiler in (as_traced, with_breaks, whole):
        with engine(compiler):
            assert compare(expected, observe(program)) == []
