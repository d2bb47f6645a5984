"""Functions compiled ahead of time, under the engine: their backward graphs are parts of its graph."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import kiln
from kiln.engine.calls import hook_calls, node_calls
from kiln.program import accumulation
from kiln.testing import same
from tests.engine.engine_counts import CountingCompiler, beside_eager


def compiled(function: Any, **options: Any) -> Any:
    return kiln.compile(function, backend="aot_eager", **options)


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Dropout(0.5), nn.Linear(8, 2))


def gradients(module: nn.Module) -> list[torch.Tensor | None]:
    return [parameter.grad for parameter in module.parameters()]


def run_both(program: Callable[[Any], Any], **options: Any) -> CountingCompiler:
    """The program gives the same in eager, and compiled under the engine; torch's own engine has no part in it."""
    kiln.reset()
    torch.manual_seed(3)
    expected = program(lambda function, **_: function)
    compiler, handed = CountingCompiler(**options), kiln.report.counters["engine handed over"]
    torch.manual_seed(3)
    with kiln.compiled_autograd.enable(compiler):
        actual = program(compiled)
    assert same(actual, expected, rtol=1e-5, atol=1e-6)
    assert kiln.report.counters["engine handed over"] == handed, "torch's engine did it"
    return compiler


def targets(module: torch.fx.GraphModule) -> list[str]:
    return [str(node.target) for node in module.graph.nodes if node.op == "call_function"]


def calls(module: torch.fx.GraphModule) -> list[Any]:
    """What the graph calls that is no operator."""
    found = [node.target for node in module.graph.nodes if node.op == "call_function"]
    return [target for target in found if not isinstance(target, torch._ops.OpOverload)]


def test_a_trained_model() -> None:
    def program(wrap: Any) -> Any:
        module = model()
        run = wrap(module)
        optimizer = torch.optim.SGD(module.parameters(), 0.1)
        seen = []
        for _ in range(3):
            optimizer.zero_grad()
            run(torch.randn(3, 4)).square().sum().backward()
            seen.append([gradient.clone() for gradient in gradients(module)])
            optimizer.step()
        return seen

    compiler = run_both(program)
    assert len(compiler.modules) == 1
    found = targets(compiler.modules[0])
    assert "aten.native_layer_norm_backward.default" in found and "aten.gelu_backward.default" in found
    others = {target for target in calls(compiler.modules[0]) if target is not operator.getitem}
    assert others == {accumulation.accumulate_grad_}


def test_hooks_inside() -> None:
    def program(wrap: Any) -> Any:
        log: list[Any] = []

        def hook(gradient: torch.Tensor) -> torch.Tensor:
            log.append(gradient.sum())
            return gradient * 2

        def function(x: torch.Tensor) -> torch.Tensor:
            y = x.sin()
            y.register_hook(hook)
            return y.cos()

        run, grads = wrap(function), []
        for _ in range(2):
            x = torch.linspace(0, 1, 4, requires_grad=True)
            run(x).sum().backward()
            grads.append(x.grad)
        return log, grads

    compiler = run_both(program)
    assert len(compiler.modules) == 1
    assert sum(target is hook_calls.call_inner_hook for target in calls(compiler.modules[0])) == 1


def test_another_hook_each_time() -> None:
    def program(wrap: Any) -> Any:
        seen = []

        def function(x: torch.Tensor, factor: float) -> torch.Tensor:
            y = x.sin()
            y.register_hook(lambda gradient: gradient * factor)
            return y.cos()

        run = wrap(function)
        for factor in (2.0, 3.0, 4.0):
            x = torch.linspace(0, 1, 4, requires_grad=True)
            run(x, factor).sum().backward()
            seen.append(x.grad)
        return seen

    assert len(run_both(program).modules) == 1


def test_a_hook_that_removes_another_inside() -> None:
    def program(wrap: Any) -> Any:
        log: list[str] = []
        handles: list[Any] = []

        def first(gradient: torch.Tensor) -> None:
            log.append("first")
            handles[0].remove()

        def function(x: torch.Tensor) -> tuple[torch.Tensor, Any]:
            y = x.sin()
            handle = y.register_hook(lambda gradient: log.append("second"))
            z = y.cos()
            z.register_hook(first)
            return z.exp(), handle

        x = torch.linspace(0, 1, 4, requires_grad=True)
        result, handle = wrap(function)(x)
        handles.append(handle)
        result.sum().backward()
        return log, x.grad

    run_both(program, fullgraph=False)


def test_node_hooks_inside() -> None:
    def program(wrap: Any) -> Any:
        log: list[Any] = []

        def before(grad_outputs: Any) -> Any:
            log.append(grad_outputs[0].sum())
            return (grad_outputs[0] * 3,)

        def after(grad_inputs: Any, grad_outputs: Any) -> Any:
            log.append(grad_inputs[0].sum())
            return (None,) if len(log) > 3 else (grad_inputs[0] * 2,)

        def function(x: torch.Tensor) -> torch.Tensor:
            y = x.sin()
            y.grad_fn.register_prehook(before)
            y.grad_fn.register_hook(after)
            return y.cos()

        run, grads = wrap(function), []
        for _ in range(2):
            x = torch.linspace(0, 1, 4, requires_grad=True)
            run(x * 1).sum().backward()
            grads.append(x.grad if x.grad is not None else torch.zeros(4))
        return log, grads

    run_both(program, fullgraph=False)


def test_graph_breaks_and_eager_parts() -> None:
    def program(wrap: Any) -> Any:
        def broken(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            y = (x @ w).relu()
            print("", end="")
            return torch.softmax(y @ w, -1)

        run = wrap(broken)
        x, w = torch.randn(3, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
        for _ in range(2):
            (run(x.sin(), w) * run(x, w.t()).exp()).square().mean().backward()
        return x.grad, w.grad

    assert len(run_both(program).modules) <= 2  # the first accumulation finds no gradient


@pytest.mark.parametrize("dynamic", [None, True])
def test_sizes_that_vary(dynamic: bool | None) -> None:
    def program(wrap: Any) -> Any:
        def function(x: torch.Tensor) -> torch.Tensor:
            return (x.sum(0) * x / x.shape[0]).tanh()

        run, seen = wrap(function, dynamic=dynamic), []
        for size in (2, 5, 7, 8, 9):
            x = torch.linspace(0, 1, size * 3).reshape(size, 3).requires_grad_()
            run(x).sum().backward()
            seen.append(x.grad)
        return seen

    assert len(run_both(program).modules) <= 3


def test_undefined_and_unwanted_gradients() -> None:
    def program(wrap: Any) -> Any:
        def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return (x * w).sin(), w.exp()

        run, seen = wrap(function), []
        for outputs in ([0], [1], [0, 1]):
            x, w = torch.ones(3, requires_grad=True), torch.full((3,), 2.0, requires_grad=True)
            results = run(x, w)
            sum(results[place].sum() for place in outputs).backward()  # type: ignore[union-attr]
            seen.append((x.grad, w.grad))
        x, w = torch.ones(3, requires_grad=True), torch.full((3,), 2.0, requires_grad=True)
        seen.append(torch.autograd.grad(run(x, w)[0].sum(), [x]))
        return seen

    run_both(program)


def test_stages() -> None:
    """Tensors that the caller sees and that depend on each other are nodes of their own, which share what was saved."""

    def program(wrap: Any) -> Any:
        log: list[Any] = []

        def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = (x @ w).sin()
            return y, (y * w).exp()

        x, w = torch.randn(3, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
        first, second = wrap(function)(x, w)
        first.register_hook(lambda gradient: log.append(gradient.clone()))
        first.retain_grad()
        (first.sum() + second.square().sum()).backward()
        return log, first.grad, x.grad, w.grad

    run_both(program)


def test_inputs_changed_in_place() -> None:
    def program(wrap: Any) -> Any:
        def function(buffer: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            buffer.mul_(x)
            buffer[0].add_(1)
            return buffer.sin()

        x = torch.linspace(1, 2, 4, requires_grad=True)
        buffer = x * 2
        view = (x * 3).view(2, 2)
        result = wrap(function)(buffer, x)
        inner = wrap(function)(view[1], x[:2])
        (result.sum() + buffer.sum() + inner.sum() + view.square().sum()).backward()
        return x.grad

    run_both(program)


def test_autocast_around_backward() -> None:
    def program(wrap: Any) -> Any:
        def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            return (x @ w).float().sin()

        run, seen = wrap(function), []
        for inside in (False, True):
            x, w = torch.randn(3, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
            with torch.autocast("cpu", torch.bfloat16):
                loss = run(x, w).sum()
                if inside:
                    loss.backward()
            if not inside:
                loss.backward()
            seen.append((x.grad, w.grad))
        return seen

    run_both(program)


def test_saved_tensors_are_the_graphs_alone() -> None:
    """While the graph runs, nothing but its list of inputs holds what the compiled function saved."""
    alive: list[list[bool]] = []

    def compiler(module: Any) -> Any:
        def run(inputs: list[Any], sizes: Any, hooks: Any) -> tuple[()]:
            for _ in range(2):
                alive.append([reference() is not None for reference in saved])
                inputs.clear()
            return ()

        return run

    x = torch.randn(4, 4, requires_grad=True)
    function = compiled(lambda x: (x @ x).sin().exp())
    with kiln.compiled_autograd.enable(compiler):
        for _ in range(2):  # until a graph has run once, torch's engine may have to do it after all
            alive.clear()
            result = function(x)
            saved = [weakref.ref(tensor) for tensor in result.grad_fn.saved_tensors if not tensor.requires_grad]
            assert saved
            result.sum().backward()
    assert alive == [[True] * len(saved), [False] * len(saved)]


def test_higher_derivatives_are_torchs() -> None:
    run = compiled(lambda x: x.sin() * x)
    x = torch.linspace(0, 1, 4, requires_grad=True)
    with kiln.compiled_autograd.enable(lambda module: module):
        (first,) = torch.autograd.grad(run(x).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
    (expected,) = torch.autograd.grad((x.sin() * x).sum(), x, create_graph=True)
    assert same(second, torch.autograd.grad(expected.sum(), x)[0])


def test_a_second_backward() -> None:
    run = compiled(lambda x: x.sin().exp())
    x = torch.linspace(0, 1, 4, requires_grad=True)
    with kiln.compiled_autograd.enable(lambda module: module):
        loss = run(x).sum()
        loss.backward(retain_graph=True)
        loss.backward()
        with pytest.raises(RuntimeError, match="a second time"):
            loss.backward()
    assert same(x.grad, 2 * torch.autograd.grad(x.sin().exp().sum(), x)[0])


def test_compiled_functions_among_eager_ones_count_once() -> None:
    run = compiled(lambda x, w: (x @ w).relu())

    def program() -> Any:
        for _ in range(3):
            x, w = torch.randn(3, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
            run(run(x, w).tanh(), w).sum().backward()
            yield x.grad
            yield w.grad

    assert beside_eager(program) == (1, 1)


def test_inputs_that_were_not_used_count() -> None:
    """Two passes that are alike but for inputs which nothing leads to have results of their own lengths."""
    x, y, z = (torch.ones(2, requires_grad=True) for _ in range(3))
    with kiln.compiled_autograd.enable(lambda module: module):
        for wanted in ([x, y, z], [x, y], [x]):
            found = torch.autograd.grad((x * 2).sum(), wanted, allow_unused=True)
            assert same(found, (torch.full((2,), 2.0), None, None)[: len(wanted)])


@pytest.mark.parametrize("fullgraph", [True, False])
def test_random_numbers_drawn_again(fullgraph: bool) -> None:
    """A checkpointed region of a compiled function draws the forward's numbers in its backward."""

    def region(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x.sin(), 0.5) * torch.rand_like(x)

    def program(wrap: Any) -> Any:
        run = wrap(lambda x: checkpoint(region, x, use_reentrant=False).exp())
        x = torch.linspace(0, 1, 64, requires_grad=True)
        run(x).sum().backward()
        return x.grad, torch.rand(1)

    compiler = run_both(program, fullgraph=fullgraph)
    assert node_calls.replay in calls(compiler.modules[0])


def test_constants_of_compiled_functions() -> None:
    def program(wrap: Any) -> Any:
        run = wrap(lambda x: ((torch.tensor([1.0, 2.0]) * x).sin() * torch.tensor([[3.0], [4.0]])).sum())
        other = wrap(lambda x: (torch.tensor([5.0, 6.0]) * x).cos().sum())
        x = torch.ones(2, requires_grad=True)
        (run(x) + other(x)).backward()
        return x.grad

    run_both(program)


@pytest.mark.parametrize("fullgraph", [True, False])
@pytest.mark.parametrize("inside", [True, False])
def test_leaving_half_way(fullgraph: bool, inside: bool) -> None:
    """A hook that puts another one on what is still to come: torch's engine runs the rest, compiled functions too."""

    def program(wrap: Any) -> Any:
        log: list[Any] = []
        tensors: list[torch.Tensor] = []

        def adds(gradient: torch.Tensor) -> None:
            log.append("adds")
            tensors[0].register_hook(lambda gradient: log.append(gradient.sum()))

        def last(x: torch.Tensor) -> torch.Tensor:
            y = x.cos() * 2
            if inside:
                y.register_hook(adds)
            return y.exp()

        first, second = wrap(lambda x, w: (x @ w).sin()), wrap(last)
        x, w = torch.randn(3, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
        tensors.append(first(x, w))
        middle = tensors[0] * 2
        if not inside:
            middle.register_hook(adds)
        second(middle).sum().backward()
        return log, x.grad, w.grad

    kiln.reset()
    torch.manual_seed(3)
    expected = program(lambda function: function)
    for _ in range(2):
        torch.manual_seed(3)
        with kiln.compiled_autograd.enable(CountingCompiler(fullgraph=fullgraph)):
            assert same(program(compiled), expected, rtol=1e-5, atol=1e-6)
