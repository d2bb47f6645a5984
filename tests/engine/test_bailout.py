"""Leaving a compiled backward pass half-way: hooks that come and go while it runs, gradients not predicted."""

import contextlib

import pytest
import torch

import kiln
from kiln.engine.walk import gradient_patterns
from kiln.report.events import counters

COMPILERS = {
    "graph": lambda graph: graph,
    "compiled": lambda graph: kiln.compile(graph, backend="eager", dynamic=True),
    "aot": lambda graph: kiln.compile(graph, backend="aot_eager", dynamic=True),
}


@pytest.fixture(params=COMPILERS)
def compiler(request):
    kiln.reset()
    gradient_patterns.reset()
    yield COMPILERS[request.param]
    kiln.reset()


def run(program, compiler=None, times=3):
    """What the program gives, several times, in eager or with the engine."""
    torch.manual_seed(3)
    seen = []
    for _ in range(times):
        block = kiln.compiled_autograd.enable(compiler) if compiler is not None else contextlib.nullcontext()
        seen.append(program(block))
    return seen


def agree(program, compiler):
    expected, actual = run(program), run(program, compiler)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def leaves():
    return [torch.randn(3, requires_grad=True) for _ in range(2)]


def hook_registers_a_hook_on_what_is_to_run(block):
    a, b = leaves()
    c = a * b
    d = c.exp()
    log = []

    def late(gradient):
        log.append(1)
        return gradient * 10

    def early(gradient):
        log.append(2)
        c.register_hook(late)

    d.register_hook(early)
    with block:
        d.sum().backward()
    return [a.grad, b.grad, log]


def hook_removes_a_hook_that_is_to_run(block):
    a, b = leaves()
    c = a * b
    d = c.exp()
    log = []
    handle = a.register_hook(lambda gradient: log.append(3) or gradient * 10)

    def early(gradient):
        handle.remove()
        return gradient * 3

    d.register_hook(early)
    with block:
        d.sum().backward()
    return [a.grad, b.grad, log]


def hook_removes_itself(block):
    a, b = leaves()
    log = []

    def once(gradient):
        log.append(4)
        handle.remove()
        return gradient * 2

    handle = a.register_hook(once)
    a.register_hook(lambda gradient: log.append(5))
    for _ in range(2):
        with block:
            (a * b).sum().backward()
    return [a.grad, b.grad, log]


def accumulate_hook_adds_a_hook_elsewhere(block):
    a, b = leaves()
    log = []

    def stepped(leaf):
        log.append(6)
        a.register_hook(lambda gradient: log.append(7) or gradient * 5)

    b.register_post_accumulate_grad_hook(stepped)
    with block:
        (a.exp() * b).sum().backward()
    return [a.grad, b.grad, log]


def accumulate_hook_adds_a_hook_and_the_node_has_hooks(block):
    """Those after the node run, though the pass is left before them: with what was accumulated, once."""
    a, b = leaves()
    c = a.exp()
    log = []
    node = b.view_as(b).grad_fn.next_functions[0][0]
    node.register_hook(lambda given, gradients: log.append(gradients[0].clone()))
    b.register_post_accumulate_grad_hook(lambda leaf: log.append(2) or c.register_hook(lambda g: g * 5) and None)
    with block:
        (c * b).sum().backward()
    return [a.grad, b.grad, log]


class Moody(torch.autograd.Function):
    """Gives no gradient for its first argument, in a way that the code does not tell."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(b)
        return a * b

    @staticmethod
    def backward(ctx, gradient):
        (b,) = ctx.saved_tensors
        gradients = [None, gradient * b]
        return tuple(gradients)


def backward_gives_none(block):
    a, b = leaves()
    c = a.sin()
    log = []
    a.register_hook(lambda gradient: log.append(gradient is None))
    with block:
        (Moody.apply(c, b) + b.exp()).sum().backward()
    return [a.grad, b.grad, log]


def gradients_of_inputs(block):
    a, b = leaves()
    c = a.sin()
    with block:
        return list(torch.autograd.grad((Moody.apply(c, b) * b).sum(), [a, b, c], allow_unused=True))


def pre_hook_takes_a_gradient_away(block):
    a, b = leaves()
    c = a * b
    c.grad_fn.register_prehook(lambda gradients: (None,))
    with block:
        (c.exp() + b).sum().backward()
    return [a.grad, b.grad]


def post_hook_takes_a_gradient_away(block):
    a, b = leaves()
    c = a * b
    c.grad_fn.register_hook(lambda given, gradients: (None, given[1] * 2))
    with block:
        (c.exp() + b).sum().backward()
    return [a.grad, b.grad]


PROGRAMS = [
    hook_registers_a_hook_on_what_is_to_run,
    hook_removes_a_hook_that_is_to_run,
    hook_removes_itself,
    accumulate_hook_adds_a_hook_elsewhere,
    accumulate_hook_adds_a_hook_and_the_node_has_hooks,
    backward_gives_none,
    gradients_of_inputs,
    pre_hook_takes_a_gradient_away,
    post_hook_takes_a_gradient_away,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_the_rest_is_as_in_eager(program, compiler):
    before = counters["engine captures"]
    agree(program, compiler)
    assert counters["engine captures"] > before


def test_a_surprise_is_remembered(compiler):
    """The second trace foretells what the first could not."""
    before = counters["engine handed over"]
    run(backward_gives_none, compiler, times=1)
    assert counters["engine handed over"] == before + 1
    kiln.compiled_autograd.reset()
    gradient_patterns.learn(type(Moody.apply(*leaves()).grad_fn), (False, True))
    agree(backward_gives_none, compiler)
    assert counters["engine handed over"] == before + 1
