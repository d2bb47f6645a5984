"""Topics: Python `autograd.Function`s: what their backward sees and may do, and errors in it."""

import gc
import unittest
import weakref
from collections import namedtuple

import torch
from torch.autograd import Function, Variable, grad
from torch.autograd.function import once_differentiable

from tests.engine.topics import error_of, leaf, topics

topic, test_topic = topics()


def made(backward, forward=lambda ctx, x: x * 2):
    """A class of functions with these two methods."""
    return type("Made", (Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)})


class Mul(Function):
    @staticmethod
    def forward(ctx, first, second, scale):
        ctx.scale = scale
        ctx.save_for_backward(first, second)
        return first * second * scale

    @staticmethod
    def backward(ctx, gradient):
        first, second = ctx.saved_tensors
        return gradient * second * ctx.scale, gradient * first * ctx.scale, None


@topic
def saved_tensors_and_attributes():
    x, y = leaf(1.0, 2.0), leaf(3.0, 4.0)
    for scale in (2, 3.0, 2):
        Mul.apply(x, y, scale).sum().backward()
    return x.grad, y.grad


@topic
def double_backward_of_a_function():
    x, y = leaf(1.0, 2.0), leaf(3.0, 4.0)
    (first,) = grad(Mul.apply(x, y, 2).pow(2).sum(), x, create_graph=True)
    return first, grad(first.sum(), (x, y))


@topic
def attributes_of_all_kinds():
    Point = namedtuple("Point", "x y")

    class Kept(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.numbers = [1, 2.5, 3 + 0j]
            ctx.table = {"a": 2, ("b", 1): [3, 4]}
            ctx.point = Point(x.detach() * 2, "text")
            ctx.kind, ctx.dtype, ctx.where = None, x.dtype, x.device
            ctx.call = lambda value: value * 2
            ctx.sizes = x.shape
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            scale = ctx.numbers[1] + ctx.table["a"] + sum(ctx.table["b", 1])
            assert ctx.kind is None and ctx.dtype is torch.float32 and ctx.point.y == "text"
            return ctx.call(gradient * scale + ctx.point.x).reshape(ctx.sizes)

    x = leaf(1.0, 2.0)
    Kept.apply(x).sum().backward()
    return x.grad


@topic
def attributes_written_by_backward():
    class Counting(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.count = 0
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            ctx.count += 1
            ctx.seen = gradient.sum()
            return gradient * ctx.count

    x = leaf(1.0, 2.0)
    y = Counting.apply(x)
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    return x.grad, y.grad_fn.count, y.grad_fn.seen


@topic
def a_function_of_many_outputs():
    class Many(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_non_differentiable(mask := x > 1)
            return x * 2, mask, x * 3, 7, "text"

        @staticmethod
        def backward(ctx, first, mask, third, number, text):
            assert number is None and text is None
            return first * 2 + third * 3 + mask.float()

    x = leaf(1.0, 2.0)
    first, mask, third, number, text = Many.apply(x)
    (first * third).sum().backward()
    return x.grad, mask, number, text


@topic
def mark_non_differentiable():
    class Both(Function):
        @staticmethod
        def forward(ctx, x):
            a, b = x + 1, x + 2
            ctx.mark_non_differentiable(a)
            return a, b

        @staticmethod
        def backward(ctx, first, second):
            unittest.TestCase().assertTrue((first == 0).all())
            unittest.TestCase().assertTrue((second == 1).all())
            return second

    x = leaf(1.0, 2.0)
    a, b = Both.apply(x)
    b.sum().backward()
    return a.requires_grad, b.requires_grad, x.grad


@topic
def materialized_gradients():
    log = []

    def function(materialize):
        class Pair(Function):
            @staticmethod
            def forward(ctx, x):
                ctx.set_materialize_grads(materialize)
                return x * 1, x * 2

            @staticmethod
            def backward(ctx, first, second):
                log.append([None if item is None else item.clone() for item in (first, second)])
                return first

        return Pair

    x = leaf(1.0, 2.0)
    for materialize in (True, False):
        function(materialize).apply(x)[0].sum().backward()
    return x.grad, log


@topic
def materialized_gradients_asserted():
    case = unittest.TestCase()

    class Pair(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.set_materialize_grads(False)
            return x.clone(), x.clone()

        @staticmethod
        def backward(ctx, first, second):
            case.assertIsNone(second)
            case.assertIsNotNone(first)
            return first

    x = leaf(1.0, 2.0)
    Pair.apply(x)[0].sum().backward()
    return x.grad


@topic
def undefined_gradients():
    log = []

    class Nothing(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return None

    x = leaf(1.0, 2.0)
    Nothing.apply(x).sum().backward()
    first = x.grad
    x.register_hook(lambda gradient: log.append(gradient))
    Nothing.apply(x * 2).sum().backward()
    x.grad = None
    (x * 3 + Nothing.apply(x * 2)).sum().backward()
    return first, x.grad, log


@topic
def a_function_returns_undefined_sometimes():
    flag = [True]

    class Sometimes(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 2 if flag[0] else None

    x = leaf(1.0, 2.0)
    kept = []
    for value in (True, False, True):
        flag[0] = value
        (Sometimes.apply(x * 2) + x).sum().backward()
        kept.append(x.grad.clone())
    return kept


@topic
def setup_context():
    class Powers(Function):
        @staticmethod
        def forward(x, power=2):
            return x**power, x * power

        @staticmethod
        def setup_context(ctx, inputs, output):
            x, power = inputs
            ctx.save_for_backward(x, output[0])
            ctx.power = power

        @staticmethod
        def backward(ctx, first, second):
            x, result = ctx.saved_tensors
            return ctx.power * (first * x ** (ctx.power - 1) + second) + result * 0, None

    x = leaf(1.0, 2.0)
    for power in (2, 3):
        a, b = Powers.apply(x, power)
        (a * b).sum().backward()
    return x.grad


@topic
def save_for_forward_and_none():
    class Kept(Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x, None, y)
            ctx.save_for_forward(x)
            return x * y

        @staticmethod
        def backward(ctx, gradient):
            x, nothing, y = ctx.saved_tensors
            assert nothing is None
            return gradient * y, gradient * x

    x, y = leaf(1.0, 2.0), leaf(3.0, 4.0)
    Kept.apply(x, y).sum().backward()
    return x.grad, y.grad


@topic
def saved_outputs_and_inputs():
    class Exp(Function):
        @staticmethod
        def forward(ctx, x):
            result = x.exp()
            ctx.save_for_backward(result, x)
            return result

        @staticmethod
        def backward(ctx, gradient):
            result, x = ctx.saved_tensors
            return gradient * result + x * 0

    x = leaf(1.0, 2.0)
    y = Exp.apply(x)
    (first,) = grad(y.sum(), x, create_graph=True)
    first.sum().backward()
    return first, x.grad


@topic
def saved_variables_is_deprecated():
    class Old(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_variables
            return gradient * x

    x = leaf(1.0, 2.0)
    Old.apply(x).sum().backward()
    return x.grad


@topic
def needs_input_grad():
    log = []

    class Needs(Function):
        @staticmethod
        def forward(ctx, x, y, z):
            return x + y

        @staticmethod
        def backward(ctx, gradient):
            log.append(ctx.needs_input_grad)
            return gradient if ctx.needs_input_grad[0] else None, gradient if ctx.needs_input_grad[1] else None, None

    x, y = leaf(1.0), leaf(2.0)
    Needs.apply(x, y, 3).backward()
    Needs.apply(x, y.detach(), None).backward()
    Needs.apply(x.detach(), y, "text").backward()
    Needs.apply(x, y, leaf(1.0)).backward(inputs=[x])
    return x.grad, y.grad, log


@topic
def tensors_inside_containers_and_other_inputs():
    class Sum(Function):
        @staticmethod
        def forward(ctx, scale, tensors, x, options):
            ctx.scale, ctx.tensors = scale, tensors
            return x * scale + tensors[0] + options["more"]

        @staticmethod
        def backward(ctx, gradient):
            return None, None, gradient * ctx.scale * ctx.tensors[0], None

    x = leaf(1.0, 2.0)
    Sum.apply(3, [torch.ones(2)], x, {"more": 2}).sum().backward()
    return x.grad


@topic
def dirty_inputs():
    class AddOne(Function):
        @staticmethod
        def forward(ctx, x):
            x.add_(1)
            ctx.mark_dirty(x)
            return x

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 3

    x = leaf(1.0, 2.0)
    y = x * 2
    z = AddOne.apply(y)
    (z * y).sum().backward()
    return x.grad, z is y, y._version


@topic
def once_differentiable_functions():
    class Once(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**2

        @staticmethod
        @once_differentiable
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            return gradient * 2 * x

    x = leaf(1.0, 2.0)
    Once.apply(x).sum().backward()
    (first,) = grad((Once.apply(x) * x).sum(), x, create_graph=True)
    return x.grad, first.detach(), error_of(first.sum().backward)


@topic
def returned_inputs_and_leaves():
    class Identity(Function):
        @staticmethod
        def forward(ctx, x, y):
            return x, y.view_as(y)

        @staticmethod
        def backward(ctx, first, second):
            return first * 2, second * 3

    x, y = leaf(1.0, 2.0), leaf(3.0, 4.0)
    a, b = Identity.apply(x, y)
    log = []
    a.register_hook(lambda gradient: log.append(gradient.clone()))
    (a * b).sum().backward()
    return x.grad, y.grad, a is x, log


@topic
def returned_duplicates():
    class Twice(Function):
        @staticmethod
        def forward(ctx, x):
            y = x * 2
            return y, y

        @staticmethod
        def backward(ctx, first, second):
            return first * 2 + second * 2

    x = leaf(1.0, 2.0)
    a, b = Twice.apply(x)
    (a * b).sum().backward()
    return x.grad, a is b


@topic
def too_many_and_too_few_gradients():
    x = leaf(1.0, 2.0)
    log = []
    for result in ((1, 2), (), ("text",), (torch.ones(3),), (torch.ones(2), None), (torch.ones(2), torch.ones(2)), 3):
        backward = lambda ctx, gradient: result
        log.append(error_of(made(backward).apply(x).sum().backward))
    return log, x.grad


@topic
def gradients_that_are_summed_and_cast():
    x, y = leaf(1.0, 2.0), leaf(3.0, dtype=torch.float64)
    big = made(lambda ctx, gradient: torch.ones(3, 2), lambda ctx, x: x * 2)
    cast = made(lambda ctx, gradient: torch.ones(1, dtype=torch.float32), lambda ctx, x: x * 2)
    big.apply(x).sum().backward()
    cast.apply(y).sum().backward()
    return x.grad, y.grad


@topic
def errors_in_a_backward():
    class Boom(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            raise ValueError("Simulate error on backward pass")

    x, y = leaf(1.0, 2.0), leaf(3.0, 4.0)
    first = error_of((Boom.apply(x) + y).sum().backward)
    (x * 2).sum().backward()
    return first, x.grad, y.grad


@topic
def functions_without_a_backward():
    class Only(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

    return error_of(Only.apply(leaf(1.0)).backward), error_of(Only)


@topic
def backward_and_vjp_both():
    class Both(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient

        @staticmethod
        def vjp(ctx, gradient):
            return gradient

    return error_of(Both.apply(leaf(1.0)).backward)


@topic
def only_vjp():
    class Old(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def vjp(ctx, gradient):
            return gradient * 5

    x = leaf(1.0)
    Old.apply(x).backward()
    return x.grad


@topic
def a_stashed_context():
    stash = []

    class Naughty(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            stash.append(ctx)
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * ctx.saved_tensors[0]

    x = leaf(1.0, 2.0)
    y = Naughty.apply(x)
    y.sum().backward()
    freed = error_of(lambda: stash[0].saved_tensors)
    return x.grad, freed, error_of(y.sum().backward)


@topic
def a_context_cycle_is_collected():
    class Cycle(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.meta, ctx.mine = {}, ctx
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            ctx.meta["gradient"] = gradient
            return gradient

    class Thing:
        pass

    def run():
        thing = Thing()
        x = leaf(1.0)
        y = Cycle.apply(x)
        y.grad_fn.meta["y"], y.grad_fn.thing = y, thing
        y.backward()
        return weakref.ref(thing)

    alive = run()
    gc.collect(1)
    return alive() is None


@topic
def no_early_free():
    class Double(Function):
        @staticmethod
        def forward(ctx, x):
            y = x**2
            ctx.save_for_backward(x, y)
            return y

        @staticmethod
        def backward(ctx, gradient):
            x, y = ctx.saved_tensors
            return gradient * 2 * x + y * 0

    x = leaf(2.0)
    y = Double.apply(x)
    (first,) = grad(y, x, create_graph=True)
    del y
    return grad(first, x)


@topic
def grad_mode_in_a_backward():
    log = []

    class Modes(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            log.append((torch.is_grad_enabled(), gradient.requires_grad))
            return gradient

    x = leaf(1.0)
    Modes.apply(x).backward()
    Modes.apply(x).backward(create_graph=True)
    with torch.no_grad():
        y = x * 1
    return log, x.grad.detach(), y.requires_grad


@topic
def queued_callbacks():
    log = []

    class Queue(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            Variable._execution_engine.queue_callback(lambda: log.append("first"))
            Variable._execution_engine.queue_callback(lambda: log.append("second"))
            log.append("backward")
            return gradient

    x = leaf(1.0)
    x.register_post_accumulate_grad_hook(lambda x: log.append("accumulated"))
    Queue.apply(x).backward()
    Queue.apply(x * 3).backward()
    return log, x.grad


@topic
def callbacks_with_errors():
    def fail():
        raise ValueError("blah")

    def hook(gradient):
        Variable._execution_engine.queue_callback(fail)

    x = leaf(1.0)
    handle = x.register_hook(hook)
    first = error_of((x * 2).backward)
    handle.remove()
    (x * 2).backward()
    return first, x.grad, error_of(Variable._execution_engine.queue_callback, fail)


@topic
def functions_of_views():
    class View(Function):
        @staticmethod
        def forward(ctx, x):
            return x.view(-1)

        @staticmethod
        def backward(ctx, gradient):
            return gradient.view(2, 1) * 3

    x = torch.ones(2, 1, requires_grad=True)
    y = View.apply(x)
    y.sum().backward()
    z = x.clone()
    return x.grad, error_of(lambda: View.apply(z).mul_(2).sum().backward())


@topic
def functions_made_at_run_time():
    x = leaf(1.0, 2.0)
    for factor in (2, 3, 4):
        made(lambda ctx, gradient: gradient * factor).apply(x).sum().backward()
    return x.grad


@topic
def node_types_and_names():
    class Named(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            unittest.TestCase().assertIsInstance(ctx, torch.autograd.graph.Node)
            return gradient

    x = leaf(1.0)
    y = Named.apply(x)
    y.backward()
    return x.grad, y.grad_fn.name(), type(y.grad_fn).__name__, [type(n).__name__ for n, _ in y.grad_fn.next_functions]


@topic
def hooks_on_the_node_of_a_function():
    log = []
    x = leaf(1.0, 2.0)
    y = Mul.apply(x, x * 2, 3)
    y.grad_fn.register_prehook(lambda gradients: (gradients[0] * 2,))
    y.grad_fn.register_hook(lambda inputs, outputs: log.append([None if g is None else g.clone() for g in inputs]))
    y.sum().backward()
    return x.grad, log
