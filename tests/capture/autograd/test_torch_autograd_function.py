"""``torch.autograd.Function``: one node that calls the real ``apply``."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

import kiln
from kiln.testing import check

SCALE = 2.0
CALLS: list[str] = []


class Square(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * grad


class Scaled(Function):
    """Arguments that are no tensors, and attributes of the context."""

    @staticmethod
    def forward(ctx, x, factor, names, flag=True):
        ctx.factor = factor if flag else 1
        ctx.count = len(names)
        return x * ctx.factor + ctx.count

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.factor, None, None, None


class Doubled(Square):
    @classmethod
    def apply(cls, x):
        return super().apply(x) * 2


class Tripled(Square):
    @classmethod
    def apply(cls, x, times):
        return super().apply(x) * times


class Wide(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_output_grad_dtype(torch.float32)
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        assert grad.dtype is torch.float32
        return (grad * 2).to(torch.bfloat16)


class AddsInPlace(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        (waiting,) = ctx.input_grad_buffers
        if waiting is None:
            return grad * 2
        waiting.add_(grad, alpha=2)
        return None


class TwoOutputs(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y, x + y

    @staticmethod
    def backward(ctx, first, second):
        x, y = ctx.saved_tensors
        return first * y + second, first * x + second


class Ranked(Function):
    """One output is not differentiable."""

    @staticmethod
    def forward(ctx, x):
        values, order = x.sort()
        ctx.mark_non_differentiable(order)
        ctx.save_for_backward(order)
        ctx.set_materialize_grads(False)
        return values, order, 3, None

    @staticmethod
    def backward(ctx, grad, *rest):
        (order,) = ctx.saved_tensors
        return torch.zeros_like(grad).scatter(0, order, grad)


class InPlace(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        x.add_(1)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad * 3


class Identity(Function):
    """Returns its argument: eager gives an alias."""

    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad * 5


class NewStyle(Function):
    @staticmethod
    def forward(x, factor=3):
        return x * factor

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, ctx.factor = inputs
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, grad):
        (output,) = ctx.saved_tensors
        return grad * ctx.factor + output * 0, None


class Needs(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.needs = ctx.needs_input_grad
        return x * (2 if ctx.needs_input_grad[1] else 3) + y

    @staticmethod
    def backward(ctx, grad):
        return grad if ctx.needs[0] else None, grad if ctx.needs[1] else None


class GlobalScale(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.scale = SCALE
        return helper(x) * SCALE

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.scale


def helper(x):
    return x + 1


class Once(Square):
    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * grad


class SideEffect(Square):
    @staticmethod
    def forward(ctx, x):
        CALLS.append("forward")
        ctx.save_for_backward(x)
        return x * x


class Raising(Square):
    @staticmethod
    def forward(ctx, x):
        raise ValueError("from forward")


class Stopping(Function):
    """A straight-through estimator with a branch on a size."""

    @staticmethod
    def forward(ctx, x):
        if x.shape[0] > 2:
            return x.round()
        return x.floor()

    @staticmethod
    def backward(ctx, grad):
        return grad


def leaf(*sizes):
    return (torch.arange(float(torch.Size(sizes).numel())).reshape(sizes) / 3 + 0.2).requires_grad_()


def square(x):
    y = Square.apply(x * 2)
    return y + 1, y.requires_grad, y.is_leaf


def scaled(x):
    return Scaled.apply(x, 4.0, ["a", "b"]) + Scaled.apply(x, 3, ("a",), False)


def two_outputs(x):
    first, second = TwoOutputs.apply(x, x + 1)
    return first - second


def one_of_two_outputs(x):
    return TwoOutputs.apply(x, x + 1)[1]


def ranked(x):
    values, order, three, nothing = Ranked.apply(x)
    return values * three, order, nothing, values.requires_grad, order.requires_grad


def in_place(x):
    y = x * 2
    z = InPlace.apply(y)
    return z, z is y, y + 1


def identity(x):
    y = Identity.apply(x)
    return y, y is x, Identity.apply(x.detach()).requires_grad


def new_style(x):
    return NewStyle.apply(x), NewStyle.apply(x, 5)


def needs(x):
    return Needs.apply(x, torch.ones(3)), Needs.apply(x.detach(), x)


def with_globals(x):
    return GlobalScale.apply(x)


def once(x):
    return Once.apply(x).sum()


def without_grad(x):
    with torch.no_grad():
        y = Square.apply(x)
    return y.requires_grad, y, Square.apply(x.detach()).requires_grad


def in_a_loop(x):
    for _ in range(3):
        x = Square.apply(x) / 2
    return x


def chained(x):
    return Square.apply(Scaled.apply(Stopping.apply(x) + x, 2, [])).sum()


PROGRAMS = [square, scaled, two_outputs, one_of_two_outputs, ranked, in_place, identity, new_style, needs, with_globals]
PROGRAMS += [once, without_grad, in_a_loop, chained]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_captured(program):
    check(program, leaf(3), fullgraph=True, calls=2, breaks_every=(None, "line"))


def test_one_node():
    report = check(square, leaf(3), graphs=1, ops=3)
    targets = [node.target for node in report.graphs[0].graph.nodes if node.op == "call_function"]
    assert [getattr(target, "autograd_function", None) for target in targets].count(Square) == 1


def test_double_backward():
    def program(x):
        return Square.apply(x) * x

    x = leaf(3)
    compiled = kiln.compile(program, fullgraph=True)
    grads = []
    for function in (program, compiled):
        (first,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
        grads.append(torch.autograd.grad(first.sum(), x)[0])
    assert torch.equal(*grads)


def test_changed_global_is_noticed():
    def program(x):
        return GlobalScale.apply(x)

    compiled = kiln.compile(program, fullgraph=True)
    global SCALE
    x = leaf(3)
    for SCALE in (2.0, 7.0):
        assert torch.equal(compiled(x), program(x))
    SCALE = 2.0


def test_global_written_before():
    def program(x):
        global SCALE
        SCALE = 11.0
        y = GlobalScale.apply(x)
        SCALE = 2.0
        return y

    check(program, leaf(3))


def test_apply_itself():
    check(Square.apply, leaf(3), graphs=1, breaks=0, calls=2)
    check(Scaled.apply, leaf(3), 2.0, ["n"], graphs=1, breaks=0)


def test_side_effects_break():
    def program(x):
        y = x * 2
        z = SideEffect.apply(y)
        return z + 1

    check(program, leaf(3), breaks=1, calls=2, breaks_every=(None, "line"))


def test_error_in_forward():
    def program(x):
        try:
            return Raising.apply(x * 2)
        except ValueError as error:
            return str(error)

    def unhandled(x):
        return Raising.apply(x * 2)

    check(program, leaf(3))
    check(unhandled, leaf(3))


def test_dynamic_sizes():
    def program(x):
        return Stopping.apply(x * 2) + Square.apply(x)

    check(program, calls=[(leaf(n),) for n in (3, 5, 8, 2)], dynamic=None)


def test_passed_as_argument():
    def program(function, x):
        return function(x) * 2

    check(program, Square.apply, leaf(3), fullgraph=True)
    check(program, calls=[(function, leaf(3)) for function in (Square.apply, Square.apply, Doubled.apply)], graphs=2)


def test_class_methods_of_builtins_passed_as_arguments():
    def program(make, x):
        return make("a", x * 2)["a"]

    check(program, calls=[(dict.fromkeys, leaf(3)) for _ in range(3)], graphs=1)


def test_an_apply_of_its_own():
    def program(x):
        return Doubled.apply(x) + Tripled.apply(x, 3)

    check(program, leaf(3), fullgraph=True)


def test_apply_of_the_base():
    def program(x):
        return torch.autograd.Function.__dict__["apply"].__get__(None, Square)(x), Square.apply == Square.apply

    check(program, leaf(3))


@pytest.mark.skipif(
    not hasattr(torch.autograd.function.FunctionCtx, "set_output_grad_dtype"), reason="torch has it from 2.15 on"
)
def test_types_of_gradients():
    def program(x):
        return Wide.apply(x) * 3

    check(program, torch.ones(3, dtype=torch.bfloat16, requires_grad=True))
    breaks = kiln.explain(program)(torch.ones(3, dtype=torch.bfloat16, requires_grad=True)).breaks
    assert any("set_output_grad_dtype" in str(each) for each in breaks)


@pytest.mark.skipif(
    not hasattr(torch.autograd.function.FunctionCtx, "input_grad_buffers"), reason="torch has it from 2.15 on"
)
def test_adding_to_gradients_that_wait():
    def program(x):
        return AddsInPlace.apply(x * 2) * 3 + x.sin()

    check(program, leaf(3))
    check(lambda x: AddsInPlace.apply(x) + x.sin() + AddsInPlace.apply(x * 2), leaf(3))
