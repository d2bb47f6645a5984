"""Gradients that are kept as they were at a point of the pass, while hooks go on to change them in place."""

import contextlib

import pytest
import torch

import kiln

COMPILERS = {
    "graph": lambda graph: graph,
    "eager": lambda graph: kiln.compile(graph, backend="eager", fullgraph=True),
    "aot_eager": lambda graph: kiln.compile(graph, backend="aot_eager", fullgraph=True),
}


def double(gradient):
    gradient.mul_(2)


def forget(leaf):
    leaf.grad.zero_()


def retained_before_a_hook_on_the_node(block):
    a = torch.tensor([1.0, 2.0], requires_grad=True)
    b = a * 3
    b.retain_grad()
    b.grad_fn.register_prehook(lambda gradients: double(gradients[0]))
    with block:
        (b * b).sum().backward()
    return [a.grad, b.grad]


def retained_after_a_hook_on_the_tensor(block):
    a = torch.tensor([1.0, 2.0], requires_grad=True)
    b = a * 3
    b.retain_grad()
    b.register_hook(double)
    with block:
        (b * b).sum().backward()
    return [a.grad, b.grad]


def one_gradient_for_two(block):
    """The hook of one leaf changes what the other gets, if it was not copied: in eager, too."""
    a, b = (torch.ones(2, requires_grad=True) for _ in range(2))
    c = a + b
    c.retain_grad()
    a.register_hook(lambda gradient: gradient * 5)
    b.register_post_accumulate_grad_hook(forget)
    with block:
        (c * c).sum().backward()
    return [a.grad, b.grad, c.grad]


def asked_for_and_changed(block):
    a = torch.tensor([1.0, 2.0], requires_grad=True)
    b = a * 3
    b.register_hook(lambda gradient: gradient * 2)
    with block:
        return list(torch.autograd.grad((b * b).sum(), [a, b]))


PROGRAMS = [
    retained_before_a_hook_on_the_node,
    retained_after_a_hook_on_the_tensor,
    one_gradient_for_two,
    asked_for_and_changed,
]


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_as_in_eager(program, compiler):
    expected = program(contextlib.nullcontext())
    actual = program(kiln.compiled_autograd.enable(COMPILERS[compiler]))
    for value, wanted in zip(actual, expected, strict=True):
        assert torch.equal(value, wanted)
