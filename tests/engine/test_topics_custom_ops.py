"""Topics: operators made with `torch.library`, and their backwards: saved inputs, dictionaries, lists, errors."""

from typing import Optional

import torch
from torch import Tensor
from torch.autograd import grad, gradcheck
from torch.library import custom_op

from tests.engine.topics import error_of, leaf, topics

topic, test_topic = topics()


@custom_op("kiln_topics::square", mutates_args=())
def square(x: Tensor) -> Tensor:
    return x * x


@square.register_fake
def _(x):
    return torch.empty_like(x)


square.register_autograd(
    lambda ctx, gradient: gradient * 2 * ctx.saved_tensors[0],
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


@custom_op("kiln_topics::scaled", mutates_args=())
def scaled(x: Tensor, factor: float, name: str = "mul") -> Tensor:
    return x * factor if name == "mul" else x / factor


@custom_op("kiln_topics::total", mutates_args=())
def total(xs: list[Tensor], weight: Tensor) -> Tensor:
    return sum(xs) * weight


@custom_op("kiln_topics::two", mutates_args=())
def two(x: Tensor, y: Optional[Tensor]) -> tuple[Tensor, Tensor]:  # noqa: UP045
    return x * 2, x * (3 if y is None else y)


def _scaled_setup(ctx, inputs, output):
    ctx.factor, ctx.name = inputs[1], inputs[2]


def _scaled_backward(ctx, gradient):
    return gradient * ctx.factor if ctx.name == "mul" else gradient / ctx.factor, None, None


scaled.register_autograd(_scaled_backward, setup_context=_scaled_setup)


def _total_setup(ctx, inputs, output):
    xs, weight = inputs
    ctx.save_for_backward(weight, *xs)


def _total_backward(ctx, gradient):
    weight, *xs = ctx.saved_tensors
    return [gradient * weight for _ in xs], gradient * sum(xs)


total.register_autograd(_total_backward, setup_context=_total_setup)


def _two_setup(ctx, inputs, output):
    x, y = inputs
    ctx.has = y is not None
    ctx.save_for_backward(x, *([y] if ctx.has else []))


def _two_backward(ctx, first, second):
    x, *rest = ctx.saved_tensors
    if not ctx.has:
        return first * 2 + second * 3, None
    return first * 2 + second * rest[0], second * x


two.register_autograd(_two_backward, setup_context=_two_setup)


@topic
def an_operator():
    x = leaf(1.0, 2.0)
    for _ in range(2):
        square(x).sum().backward()
    return x.grad


@topic
def second_derivative_of_an_operator():
    x = leaf(1.0, 2.0)
    (first,) = grad((square(x) * x).sum(), x, create_graph=True)
    return first, grad(first.sum(), x)


@topic
def an_operator_with_numbers():
    x = leaf(1.0, 2.0)
    for factor, name in ((2.0, "mul"), (3.0, "mul"), (4.0, "div")):
        scaled(x, factor, name).sum().backward()
    return x.grad


@topic
def an_operator_of_lists():
    xs, weight = [leaf(1.0, 2.0), leaf(3.0, 4.0)], leaf(5.0, 6.0)
    total(xs, weight).sum().backward()
    total([*xs, xs[0]], weight).sum().backward()
    return [x.grad for x in xs], weight.grad


@topic
def an_operator_of_two_results():
    x, y = leaf(1.0, 2.0), leaf(3.0, 4.0)
    first, second = two(x, y)
    (first * second).sum().backward()
    two(x, None)[1].sum().backward()
    two(x, y)[0].sum().backward()
    return x.grad, y.grad


@topic
def hooks_on_operators():
    log = []
    x = leaf(1.0, 2.0)
    y = square(x * 2)
    y.register_hook(lambda gradient: gradient * 3)
    y.grad_fn.register_prehook(lambda gradients: log.append(gradients[0].clone()))
    y.sum().backward()
    return x.grad, log


@topic
def gradcheck_of_an_operator():
    return gradcheck(square, (torch.rand(3, dtype=torch.double, requires_grad=True),))


@topic
def an_operator_without_a_formula():
    @custom_op("kiln_topics::none", mutates_args=())
    def none(x: Tensor) -> Tensor:
        return x.clone()

    return error_of(none(leaf(1.0)).sum().backward)


@topic
def wrong_results_of_a_backward():
    log = []
    for number, result in enumerate(((1,), ("text", None), (torch.ones(1), torch.ones(1)), torch.ones(3), None)):

        @custom_op(f"kiln_topics::wrong{number}", mutates_args=())
        def wrong(x: Tensor) -> Tensor:
            return x.clone()

        wrong.register_autograd(lambda ctx, gradient, result=result: result)
        x = leaf(1.0)
        log.append((error_of(wrong(x).sum().backward), x.grad))
    return log


@topic
def wrong_results_for_lists():
    log = []
    one = torch.ones(2)
    for number, result in enumerate(([one], [one, 3], one, [one, None], (one, one), None, [one, one, one])):

        @custom_op(f"kiln_topics::listed{number}", mutates_args=())
        def listed(xs: list[Tensor]) -> Tensor:
            return xs[0] + xs[1]

        listed.register_autograd(lambda ctx, gradient, result=result: result)
        xs = [leaf(1.0, 2.0), leaf(3.0, 4.0)]
        log.append((error_of(listed(xs).sum().backward), [x.grad for x in xs]))
    return log


@topic
def errors_in_an_operators_backward():
    @custom_op("kiln_topics::boom", mutates_args=())
    def boom(x: Tensor) -> Tensor:
        return x.clone()

    def backward(ctx, gradient):
        raise ValueError("in the operator's backward")

    boom.register_autograd(backward)
    x = leaf(1.0)
    first = error_of(boom(x).sum().backward)
    (x * 2).backward()
    return first, x.grad


@topic
def an_operator_that_mutates():
    @custom_op("kiln_topics::mutating", mutates_args={"out"})
    def mutating(x: Tensor, out: Tensor) -> None:
        out.copy_(x * 2)

    x, out = leaf(1.0, 2.0), torch.zeros(2)
    mutating(x.detach(), out)
    (x * out).sum().backward()
    return x.grad, out


@topic
def an_old_operator():
    library = torch.library.Library("kiln_topics_old", "FRAGMENT")
    library.define("triple(Tensor x, int times) -> Tensor")
    library.impl("triple", lambda x, times: x * 3 * times, "CompositeExplicitAutograd")
    torch.library.register_autograd(
        "kiln_topics_old::triple",
        lambda ctx, gradient: (gradient * 3 * ctx.times, None),
        setup_context=lambda ctx, inputs, output: setattr(ctx, "times", inputs[1]),
        lib=library,
    )
    x = leaf(1.0, 2.0)
    for times in (1, 2):
        torch.ops.kiln_topics_old.triple(x, times).sum().backward()
    library._destroy()
    return x.grad
