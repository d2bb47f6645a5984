"""Forward-mode derivatives around and inside compiled functions: tangents go where eager's go."""

import pytest
import torch
from torch.autograd import Function, forward_ad, grad

import kiln
from kiln.testing import check, same

BACKENDS = ["eager", "aot_eager", "kiln"]


class Sine(Function):
    """A function that has a forward-mode derivative of its own."""

    @staticmethod
    def forward(ctx, x):
        ctx.x = x
        return x.sin()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.x.cos()

    @staticmethod
    def jvp(ctx, tangent):
        return tangent * ctx.x.cos()


class DoubleInPlace(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2

    @staticmethod
    def jvp(ctx, tangent):
        return tangent.mul_(2)


class Second(Function):
    """A function that is differentiated forward over backward."""

    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * x.cos()

    @staticmethod
    def jvp(ctx, tangent):
        (x,) = ctx.saved_tensors
        return tangent * x.cos()


def of_a_custom_function(x, tangent):
    with forward_ad.dual_level():
        result = Sine.apply(forward_ad.make_dual(x, tangent) * 2)
        primal, moved = forward_ad.unpack_dual(result)
        return primal + 1, moved * 2


def of_a_custom_function_in_place(x, tangent):
    with forward_ad.dual_level():
        result = DoubleInPlace.apply(forward_ad.make_dual(x.clone(), tangent.clone()))
        primal, moved = forward_ad.unpack_dual(result * result)
        return primal.clone(), moved.clone()


def of_a_copy(x, tangent):
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, tangent)
        buffer = torch.zeros_like(x)
        buffer.copy_(dual * dual)
        primal, moved = forward_ad.unpack_dual(buffer)
        return primal.clone(), moved.clone()


def of_a_gradient(x, tangent):
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x.detach(), tangent.detach()).requires_grad_()
        (gradient,) = grad(Second.apply(dual).sum(), dual)
        return tuple(forward_ad.unpack_dual(gradient))


def by_hand(x, tangent):
    level = forward_ad.enter_dual_level()
    try:
        dual = forward_ad.make_dual(x, tangent, level=level)
        return forward_ad.unpack_dual(Sine.apply(dual), level=level).tangent * 2
    finally:
        forward_ad.exit_dual_level(level=level)


def by_a_transform(x, tangent):
    return torch.func.jvp(lambda x: Second.apply(x) * x, (x,), (tangent,))


def none_where_nothing_moves(x, tangent):
    with forward_ad.dual_level():
        still = forward_ad.unpack_dual(Sine.apply(x)).tangent
        moved = forward_ad.unpack_dual(Sine.apply(forward_ad.make_dual(x, tangent))).tangent
        return still is None, moved.clone()


PROGRAMS = [
    of_a_custom_function,
    of_a_custom_function_in_place,
    of_a_copy,
    of_a_gradient,
    by_hand,
    by_a_transform,
    none_where_nothing_moves,
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_inside(program, backend, requires_grad):
    x = torch.tensor([1.0, 2.0], requires_grad=requires_grad and program is not by_a_transform)
    tangent = torch.tensor([3.0, 4.0])
    program(x, tangent)  # the first dual level imports modules of torch's that warn
    check(program, x, tangent, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", [Sine, Second, DoubleInPlace])
def test_compiled_before_and_called_inside(function, backend):
    """An entry that was made for plain tensors meets tensors with tangents, and the other way round."""

    def program(x):
        return function.apply(x * 1) * 3

    compiled = kiln.compile(program, backend=backend)
    x, tangent = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])

    def tangents(called):
        with forward_ad.dual_level():
            return tuple(part.clone() for part in forward_ad.unpack_dual(called(forward_ad.make_dual(x, tangent))))

    for _ in range(2):
        assert same(compiled(x), program(x), rtol=1e-6, atol=1e-6)
        assert same(tangents(compiled), tangents(program), rtol=1e-6, atol=1e-6)
    kiln.reset()
    for _ in range(2):
        assert same(tangents(compiled), tangents(program), rtol=1e-6, atol=1e-6)
        assert same(compiled(x), program(x), rtol=1e-6, atol=1e-6)
