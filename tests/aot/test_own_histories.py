"""Views whose place in autograd's graph is not that of their base: detached in place, or inside of subclasses."""

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

import kiln
from kiln.aot import aot_function


def reshaped_then_detached(a):
    out = a * 3
    out.t_()
    out.detach_()
    return out, a + 1


def reshaped_detached_and_viewed(a):
    out = a * 3
    out.squeeze_()
    out.unsqueeze_(0)
    out.detach_()
    return out.view(-1), a + 1


def view_of_what_is_then_detached(a):
    out = a * 3
    view = out.t()
    out.detach_()
    return view, out


def only_the_view_returned(a):
    out = a * 3
    view = out.t()
    out.detach_()
    return (view,)


def detached_and_changed(a):
    out = a * 3
    view = out.view(-1)
    used = view * 2
    out.detach_()
    out.mul_(2)
    return view, used, out


def view_of_what_was_detached(a):
    out = a * 3
    out.detach_()
    return out.t(), out, a + 1


def reshaped_viewed_and_detached(a):
    out = a * 3
    out.t_()
    view = out[0]
    out.detach_()
    return view, out


PROGRAMS = [value for value in list(globals().values()) if getattr(value, "__module__", None) == __name__]


def flags_and_gradient(program, x):
    results = program(x)
    flags = [(result.requires_grad, result.is_leaf, result._is_view()) for result in results]
    values = [result.detach().clone() for result in results]
    sum(result.sum() for result in results if result.requires_grad).backward()
    return flags, values, x.grad


@pytest.mark.parametrize("way", ["aot_function", "aot_eager", "kiln"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_detached_in_place(program, way):
    compiled = (
        aot_function(program, fw_compiler=lambda graph, inputs: graph)
        if way == "aot_function"
        else kiln.compile(program, backend=way)
    )
    for _ in range(2):
        flags, values, gradient = flags_and_gradient(program, torch.ones(2, 4, requires_grad=True))
        seen, seen_values, seen_gradient = flags_and_gradient(compiled, torch.ones(2, 4, requires_grad=True))
        assert seen == flags
        assert all(torch.equal(one, other) for one, other in zip(seen_values, values, strict=True))
        assert torch.equal(seen_gradient, gradient)


def view_of_a_reshaped_input(a, b):
    a.t_()
    return b.view(b.shape), a.view(a.shape)


def views_of_an_input_reshaped_twice(a, b):
    a.unsqueeze_(0)
    a.transpose_(1, 2)
    return a[0], a[0, 1], b[0]


def view_of_a_reshaped_result(a, b):
    out = a * b
    out.t_()
    return out[0], out


@pytest.mark.parametrize("way", ["aot_function", "aot_eager", "kiln"])
@pytest.mark.parametrize(
    "program", [view_of_a_reshaped_input, views_of_an_input_reshaped_twice, view_of_a_reshaped_result]
)
def test_views_of_what_was_reshaped_can_be_changed(program, way):
    """Views of a tensor that ``t_`` and the like changed have its history, and changes of them reach it."""
    compiled = (
        aot_function(program, fw_compiler=lambda graph, inputs: graph)
        if way == "aot_function"
        else kiln.compile(program, backend=way)
    )

    def story(function):
        leaves = [torch.full((3, 3), value, requires_grad=True) for value in (2.0, 3.0)]
        inputs = [leaf * 2 for leaf in leaves]
        results = function(*inputs)
        bases = [[result._base is value for value in inputs] for result in results]
        for result in results:
            result.mul_(5)
        sum((tensor * tensor).sum() for tensor in (*inputs, *results)).backward()
        return bases, [tensor.detach().clone() for tensor in (*inputs, *results)], [leaf.grad for leaf in leaves]

    bases, values, gradients = story(program)
    seen_bases, seen_values, seen_gradients = story(compiled)
    assert seen_bases == bases
    torch.testing.assert_close(seen_values, values)
    torch.testing.assert_close(seen_gradients, gradients)


def two(value):
    return TwoTensor(torch.full((2, 2), value), torch.full((2, 2), value + 1))


@pytest.mark.parametrize(
    "program",
    [
        lambda a: (a.view(a.shape),),
        lambda a: (a.t(), a + 1),
        lambda a: (a[0], a.view(-1), (a * 2).t()),
        lambda a: (a.t(), a.detach(), a.t().detach()),
    ],
)
@pytest.mark.parametrize("is_leaf", [True, False])
def test_views_of_subclasses_have_gradients(program, is_leaf):
    compiled = aot_function(program, fw_compiler=lambda graph, inputs: graph)
    gradients = []
    for function in (program, compiled):
        base = two(1.0).requires_grad_()
        results = function(base if is_leaf else base * 2)
        sum(result.sum() for result in results if result.requires_grad).backward()
        gradients.append((base.grad.a, base.grad.b, [result.requires_grad for result in results]))
    (a, b, flags), (seen_a, seen_b, seen_flags) = gradients
    assert torch.equal(seen_a, a) and torch.equal(seen_b, b) and seen_flags == flags
