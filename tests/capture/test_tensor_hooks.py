"""Hooks that captured code puts on tensors: which run, in what order, on what, and what their handles do.

Each program takes a tensor and a log that its hooks write to; backward runs after every call, so the logs, gradients,
handles and what is left on the tensors must come out as in eager.
"""

import functools

import pytest
import torch

from kiln.testing import check

BOTH = (None, "line")


def note(log, name, gradient):
    log.append((name, gradient.tolist()))


def leaf(*values):
    return torch.tensor(values or (1.0, 2.0, 3.0), requires_grad=True)


def program(**counts):
    """Mark a program with the counts that its capture must have."""

    def mark(function):
        PROGRAMS[function.__name__] = (function, counts)
        return function

    return mark


PROGRAMS: dict = {}


def global_double(gradient):
    return gradient * 2


def global_square(gradient):
    return gradient * gradient


class Scale:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, gradient):
        return gradient * self.factor

    def method(self, gradient):
        return gradient + self.factor


class Owner:
    """Keeps the handle of a hook that is a method of its own, and takes it off when it was called."""

    def __init__(self, log):
        self.log = log

    def watch(self, tensor):
        self.handle = tensor.register_hook(self.seen)

    def seen(self, gradient):
        note(self.log, "owner", gradient)
        self.handle.remove()


# -- what a hook can be ----------------------------------------------------------------------------------------------


@program(graphs=0)
def lambda_on_input(x, log):
    x.register_hook(lambda g: note(log, "x", g))
    return x


@program(graphs=1, ops=3)
def lambda_on_intermediate(x, log):
    y = x * 2
    y.register_hook(lambda g: note(log, "y", g))
    return y * 3


@program(graphs=1)
def global_function(x, log):
    x.register_hook(global_double)
    return x * x


@program(graphs=1)
def closure_over_a_result(x, log):
    y = x.sin()
    z = y * 2
    x.register_hook(lambda g: g * z.detach())  # the graph computes z, and the hook needs it later
    y.register_hook(lambda g: g + z.detach())
    return y.sum()


@program(graphs=1)
def closure_over_a_variable_set_later(x, log):
    def hook(g):
        note(log, "factor", g * factor)
        return g * factor

    x.register_hook(hook)
    y = x * 2
    y.register_hook(hook)
    factor = 5.0
    return y


@program(graphs=1)
def partial_of_a_function(x, log):
    def scaled(g, *, k):
        return g * k

    y = x * 2
    y.register_hook(functools.partial(scaled, k=3.0))
    x.register_hook(functools.partial(scaled, k=7.0))
    return y * 3


@program(graphs=1)
def callable_object_made_inside(x, log):
    scale = Scale(3.0)
    y = x * 2
    y.register_hook(scale)
    y.register_hook(scale.method)
    scale.factor = 4.0
    return y, scale


@program(graphs=1)
def builtin_as_hook(x, log):
    seen = []
    y = x * 2
    y.register_hook(seen.append)
    x.register_hook(torch.neg)
    return y, seen


@program(graphs=1)
def unbound_and_by_keyword(x, log):
    y = x * 2
    torch.Tensor.register_hook(y, global_double)
    y.register_hook(hook=global_square)
    return y


# -- order -----------------------------------------------------------------------------------------------------------


@program(graphs=1, ops=2)
def several_in_order(x, log):
    for name in "abc":
        x.register_hook(functools.partial(note, log, f"x {name}"))
    y = x * 2
    x.register_hook(global_square)
    x.register_hook(lambda g: note(log, "last", g))
    return y + 1


@program(graphs=1)
def several_on_an_intermediate(x, log):
    y = x * 2
    for name in "abc":
        y.register_hook(functools.partial(note, log, name))
    z = y * 3
    y.register_hook(global_square)
    y.register_hook(lambda g: note(log, "last", g))
    z.register_hook(lambda g: note(log, "z", g))
    return z


@program(graphs=1)
def twice_the_same(x, log):
    y = x * 2
    y.register_hook(global_double)
    y.register_hook(global_double)
    return y


# -- handles ---------------------------------------------------------------------------------------------------------


@program(graphs=1)
def handle_returned_twice(x, log):
    handle = x.register_hook(global_double)
    other = handle
    return x * 2, handle, [other, handle], handle is other, handle == other


@program(graphs=1)
def removed_twice_and_returned(x, log):
    handle = x.register_hook(global_double)
    y = x * 2
    inner = y.register_hook(global_double)
    handle.remove()
    handle.remove()
    inner.remove()
    return y, handle, inner


@program(graphs=1)
def removed_and_replaced(x, log):
    handle = x.register_hook(lambda g: note(log, "first", g))
    y = x * 3
    handle.remove()
    x.register_hook(lambda g: note(log, "second", g))
    return y


@program(graphs=1)
def with_block(x, log):
    with x.register_hook(lambda g: note(log, "inside", g)) as handle:
        y = x * 2
    x.register_hook(lambda g: note(log, "after", g))
    return y, handle


@program(graphs=1)
def removed_by_its_own_hook(x, log):
    def once(g):
        note(log, "once", g)
        handle.remove()

    y = x * 2
    handle = y.register_hook(once)
    first = x.register_hook(lambda g: first.remove())
    return y.sum(), y.mean()


@program(graphs=1)
def handles_in_containers(x, log):
    y = x * 2
    handles = [y.register_hook(functools.partial(note, log, index)) for index in range(4)]
    table = {"first": handles[0], handles[1]: "second"}
    handles[2].remove()
    del handles[3]
    return y, handles, table


@program(graphs=1)
def handle_made_by_a_method_of_its_owner(x, log):
    owner = Owner(log)
    y = x * 2
    owner.watch(y)
    return y, owner.handle


@program()
def attributes_of_a_handle(x, log):
    handle = x.register_hook(global_double)
    known = handle.id in x._backward_hooks
    return x * 2, known, hasattr(handle, "nothing"), type(handle).__name__


@program()
def attribute_set_on_a_handle(x, log):
    handle = x.register_hook(global_double)
    handle.label = "mine"
    return x * 2, handle.label


# -- places ----------------------------------------------------------------------------------------------------------


@program(graphs=1)
def changed_in_place_after_and_before(x, log):
    y = x * 2
    y.register_hook(lambda g: note(log, "old", g))
    y.mul_(3)
    y.register_hook(lambda g: note(log, "new", g))
    y.add_(1)
    return y * y


@program(graphs=1)
def on_views(x, log):
    y = x * 2
    part = y[:2]
    part.register_hook(lambda g: note(log, "part", g))
    y.register_hook(lambda g: note(log, "whole", g))
    part.mul_(5)
    y.register_hook(lambda g: note(log, "whole, changed", g))
    part.register_hook(lambda g: note(log, "part, changed", g))
    return y.sum() + part.sum()


@program(graphs=1)
def on_an_output_only(x, log):
    y = x * 2
    y.register_hook(lambda g: note(log, "y", g))
    return y


@program(graphs=1)
def on_something_dropped(x, log):
    (x * 2).register_hook(lambda g: note(log, "never", g))
    return x + 1


@program(graphs=1)
def leaf_made_inside(x, log):
    w = torch.ones(3, requires_grad=True)
    w.register_hook(lambda g: note(log, "w", g))
    w.register_post_accumulate_grad_hook(lambda p: note(log, "accumulated", p.grad))
    return x * w, w


@program(graphs=1)
def no_grad_inside(x, log):
    y = x * 2
    with torch.no_grad():
        y.register_hook(lambda g: note(log, "y", g))
        x.register_hook(global_double)
        z = x * 3
    return y, z


@program(graphs=1)
def loop_over_tensors(x, log):
    total = x.new_zeros(())
    for index, part in enumerate(x.unbind()):
        part.register_hook(functools.partial(note, log, index))
        total = total + part * index
    return total


@program(graphs=1)
def turned_on_inside(x, log):
    w = x.detach()
    w.requires_grad_()
    w.register_hook(lambda g: note(log, "w", g))
    return w * 2


@program(graphs=1)
def hook_registers_more(x, log):
    def outer(g):
        note(log, "outer", g)
        x.register_hook(lambda g: note(log, "inner", g))

    y = x * 2
    y.register_hook(outer)
    return y


# -- accumulated gradients --------------------------------------------------------------------------------------------


@program(graphs=0)
def post_accumulate(x, log):
    def hook(parameter):
        note(log, "before", parameter.grad)
        parameter.grad.mul_(5)

    x.register_post_accumulate_grad_hook(hook)
    return x


@program(graphs=1)
def all_kinds_at_once(x, log):
    x.register_post_accumulate_grad_hook(lambda p: note(log, "accumulated", p.grad))
    x.register_hook(lambda g: note(log, "gradient", g))
    handle = x.register_post_accumulate_grad_hook(lambda p: note(log, "removed", p.grad))
    y = (x * 2).exp()
    handle.remove()
    return y


@program(graphs=1, ops=3)
def retained(x, log):
    y = x * 2
    before = y.retains_grad
    y.retain_grad()
    x.retain_grad()
    return y, y * y, before, y.retains_grad, x.retains_grad, y.grad


@program(graphs=1)
def retained_and_changed(x, log):
    y = x * 2
    y.retain_grad()
    y.register_hook(global_double)
    y.mul_(3)
    return y, y * y


# -- errors ----------------------------------------------------------------------------------------------------------


@program()
def no_gradient_required(x, log):
    (x.detach() * 2).register_hook(global_double)
    return x


@program()
def no_gradient_required_caught(x, log):
    try:
        x.detach().register_post_accumulate_grad_hook(global_double)
    except RuntimeError as error:
        return x * 2, str(error)


@program()
def not_a_leaf(x, log):
    (x * 2).register_post_accumulate_grad_hook(global_double)
    return x


@program()
def retain_without_gradient(x, log):
    x.detach().retain_grad()


@program()
def too_few_arguments(x, log):
    x.register_hook()


@program(graphs=1)
def hook_raises(x, log):
    def hook(g):
        raise ValueError("from the hook")

    y = x * 2
    y.register_hook(hook)
    return y


@program(graphs=1)
def hook_returns_another_shape(x, log):
    y = x * 2
    y.register_hook(lambda g: g.sum())
    return y


@program(graphs=1)
def hook_returns_no_tensor(x, log):
    y = x * 2
    y.register_hook(lambda g: "nonsense")
    return y


@program(graphs=1)
def hook_is_not_callable(x, log):
    y = x * 2
    y.register_hook(42)
    return y


@program()
def raises_after_registering(x, log):
    x.register_hook(lambda g: note(log, "x", g))
    log.append("here")
    raise KeyError("after")


@program()
def caught_after_registering(x, log):
    try:
        x.register_hook(lambda g: note(log, "x", g))
        y = x * 2
        y.register_hook(lambda g: note(log, "y", g))
        raise KeyError("after")
    except KeyError:
        return y


@pytest.mark.covers(
    "test_hooks::test_tensor_only_register_hook_in_graph_lambda",
    "test_hooks::test_tensor_register_hook_in_graph_lambda",
    "test_hooks::test_tensor_register_hook_multi_handle_return",
    "test_hooks::test_tensor_register_hook_repeated_handle_return",
    "test_hooks::test_removed_handle_return",
    "test_hooks::test_tensor_register_hook_in_graph_break_handle_lambda",
    "test_hooks::test_tensor_register_global_hook",
    "test_hooks::test_tensor_register_multiple_hooks",
)
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name):
    function, counts = PROGRAMS[name]
    counts = {"breaks": 0, "fullgraph": True, **counts} if counts else {}
    check(function, leaf(), [], calls=2, breaks_every=BOTH, **counts)
