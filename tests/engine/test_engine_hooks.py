"""Hooks that compiled functions register, run by the engine's compiled backward passes."""

import functools

import pytest
import torch

import kiln
from kiln.testing import same
from tests.engine.engine_counts import CountingCompiler

covers = pytest.mark.covers
DOCUMENT = "test_hooks"
ONES = torch.ones(4)


def leaf():
    return torch.ones(4, requires_grad=True)


class Holder:
    def __init__(self, value):
        self.value = value


def both_ways(program, backend="aot_eager", inner="eager"):
    """What a program gives in eager and with its forward and backward compiled, as whole graphs."""
    compiler = CountingCompiler(inner=inner)
    expected = program(lambda function: function)
    with kiln.compiled_autograd.enable(compiler):
        actual = program(lambda function: kiln.compile(function, backend=backend, fullgraph=True))
    assert same(actual, expected)
    return compiler


@covers(f"{DOCUMENT}::test_intermediary_hooks_same_on_inductor")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("inner", ["eager", "aot_eager"])
def test_partials_as_hooks_of_an_intermediate(backend, inner):
    def more(gradient, *, k=0):
        return gradient + k

    def forward(x):
        y = x.mul(2)
        y.register_hook(functools.partial(more, k=3))
        y.register_hook(functools.partial(more, k=4))
        return (y.mul(3),)

    def program(compiled):
        x = leaf()
        (z,) = compiled(forward)(x)
        z.backward(ONES)
        return z, x.grad

    compiler = both_ways(program, backend, inner)
    assert len(compiler.modules) == len(compiler.graphs) == 1


@covers(f"{DOCUMENT}::test_complex_state_mutation_in_intermediary_hooks_same_on_inductor")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_hooks_that_share_a_state(backend):
    class State:
        count = 0

        def work(self, gradient):
            result = gradient * gradient if self.count % 2 == 0 else gradient + gradient
            self.count += 1
            return result

    def hook(gradient, *, state):
        return state.work(gradient)

    def forward(x, state):
        y = x.mul(2)
        y.register_hook(functools.partial(hook, state=state))
        y.register_hook(functools.partial(hook, state=state))
        return (y.mul(3),)

    def program(compiled):
        xs, state = [leaf() for _ in range(3)], State()
        function = compiled(forward)
        for x in xs:
            (z,) = function(x, state)
            z.backward(ONES)
        return z, [x.grad for x in xs], state.count

    assert len(both_ways(program, backend).modules) == 1


def test_a_hook_with_a_break_after_it_changed_something(capsys):
    """Torch's own compiler gives up here; the state is eager's, and so are the lines."""

    class State:
        count = 0

    def hook(gradient, *, state):
        state.count += 1
        print("count", str(state.count))
        return gradient * state.count

    def forward(x, state):
        y = x.mul(2)
        y.register_hook(functools.partial(hook, state=state))
        y.register_hook(functools.partial(hook, state=state))
        return y.mul(3)

    def program(compiled):
        x, state = leaf(), State()
        compiled(forward)(x, state).backward(ONES)
        return x.grad, state.count, capsys.readouterr().out

    expected = program(lambda function: function)
    with kiln.compiled_autograd.enable(CountingCompiler(fullgraph=False)):
        assert same(program(kiln.compile), expected)


@covers(f"{DOCUMENT}::test_hook_with_closure")
@covers(f"{DOCUMENT}::test_intermediate_hook_with_closure_eager")
@covers(f"{DOCUMENT}::test_intermediate_hook_with_closure_aot")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("intermediate", [False, True])
def test_closures_are_inputs(backend, intermediate):
    """Another object in a hook's closure needs no other graph."""

    def forward(x, holder):
        y = x.sin()
        (y if intermediate else x).register_hook(lambda gradient: gradient + holder.value)
        return y.sin()

    def program(compiled):
        xs = [leaf() for _ in range(3)]
        function = compiled(forward)
        for x, value in zip(xs, (88, 99, 11), strict=True):
            function(x, Holder(torch.tensor(value))).sum().backward()
        return [x.grad for x in xs]

    compiler = both_ways(program, backend)
    assert len(compiler.modules) == len(compiler.graphs) == 1


@covers(f"{DOCUMENT}::test_recompile")
@pytest.mark.parametrize("inner", ["eager", "aot_eager"])
def test_the_same_backward_pass_again(inner):
    def hook(parameter):
        parameter.grad *= 2

    def program(compiled):
        x = torch.ones(10, requires_grad=True)
        x.register_post_accumulate_grad_hook(hook)
        gradients = []
        for factor in range(5):
            x.grad = None
            (x * factor).sum().backward()
            gradients.append(x.grad)
        return gradients

    before = kiln.report.counters["recompiles"]
    compiler = both_ways(program, inner=inner)
    assert len(compiler.graphs) <= 2, "once for the number, once for any number"
    assert kiln.report.counters["recompiles"] == before
