"""Leaves that a program makes, hooks on them, and memory that it changes after making it: ahead of time as in eager."""

import pytest
import torch

import kiln
from kiln.testing import check, same


def hook_on_hidden_leaf(x, log):
    w = x.detach()
    w.requires_grad_()
    w.register_hook(lambda g: log.append(g.tolist()))
    return w * 2


def hook_on_new_leaf(x, log):
    w = torch.ones(3, requires_grad=True)
    w.register_hook(lambda g: log.append(g.tolist()))
    return w * x


def hook_on_returned_leaf(x, log):
    w = torch.ones(3, requires_grad=True)
    w.register_hook(lambda g: log.append(g.tolist()))
    return w * x, w


def hook_on_returned_part_of_input(x, log):
    w = x.detach().requires_grad_()
    w.register_hook(lambda g: log.append(g.tolist()))
    return w * 2, w, x * 3


def hook_after_accumulation(x, log):
    w = torch.ones(3, requires_grad=True)
    w.register_post_accumulate_grad_hook(lambda p: log.append(p.grad.tolist()))
    return w * x


def hook_after_accumulation_of_a_result(x, log):
    w = torch.ones(3, requires_grad=True)
    w.register_post_accumulate_grad_hook(lambda p: log.append(p.grad.tolist()))
    return w * x, w


def leaf_that_shares_memory(x, log):
    w = x.detach()
    w.requires_grad_()
    return w


def leaf_that_shares_memory_and_is_used(x, log):
    w = x.detach()[:2]
    w.requires_grad_()
    return w * 2, w


def parameters_made_inside(x, log):
    weight = torch.nn.Parameter(torch.ones(3) * 2)
    frozen = torch.nn.Parameter(x.detach(), requires_grad=False)
    shared = torch.nn.Parameter(x.detach())
    return x * weight + frozen * shared, weight, frozen, shared, torch.nn.Parameter(torch.ones(3), requires_grad=False)


def several_views_of_an_input(x, log):
    first, second, third = x.unbind()
    one, two, three = (x * 2).split(1)
    for part in (first, third, one, three):
        part.register_hook(lambda g: log.append(g.tolist()))
    return first, second, third, one, two, three, first.grad_fn is third.grad_fn, x.chunk(3)


def saved_and_changed_before(x, log):
    y = x * 2
    y.mul_(3)
    return y, y * y


def retained_and_changed(x, log):
    y = x * 2
    y.retain_grad()
    y.register_hook(lambda g: g * 2)
    y.mul_(3)
    return y, y * y


PROGRAMS = [
    hook_on_hidden_leaf, hook_on_new_leaf, hook_on_returned_leaf, hook_on_returned_part_of_input,
    hook_after_accumulation, hook_after_accumulation_of_a_result, leaf_that_shares_memory,
    leaf_that_shares_memory_and_is_used, several_views_of_an_input, parameters_made_inside,
    saved_and_changed_before, retained_and_changed,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda each: each.__name__)
def test_as_in_eager(program):
    make_args = lambda: (torch.linspace(1, 2, 3).requires_grad_(), [])
    check(program, make_args=make_args, calls=2, backend="aot_eager", fullgraph=True, graphs=1)


def result():
    return torch.linspace(-2, 2, 4).requires_grad_() * 2


def view_without_gradients():
    made = result()
    with torch.no_grad():
        return made[1:]


REFUSED = {
    "leaf": lambda: torch.ones(2, requires_grad=True),
    "view of a leaf": lambda: torch.ones(2, requires_grad=True).view(2),
    "one of several views": lambda: result().unbind()[0],
    "one part of a split": lambda: result().split(2)[1],
    "view made without gradients": view_without_gradients,
}


@pytest.mark.parametrize("kind", REFUSED)
def test_inputs_that_may_not_be_changed(kind):
    """Eager's own error, and nothing changed."""

    def program(x):
        x.mul_(3)
        return x * x

    report = check(program, make_args=lambda: (REFUSED[kind](),), calls=2, backend="aot_eager")
    assert report.compiled.calls[0].raised is not None


# -- the order in which leaves get their gradients -------------------------------------------------------------------


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.scale = torch.nn.Parameter(torch.ones(4))

    def forward(self, x):
        return self.first(self.second(self.first(x)) * self.scale) + self.scale


def deep():
    parts = [part for _ in range(4) for part in (torch.nn.Linear(4, 4), torch.nn.LayerNorm(4), torch.nn.GELU())]
    return torch.nn.Sequential(*parts)


def encoder():
    return torch.nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)


@pytest.mark.parametrize("make", [Tied, deep, encoder], ids=lambda make: make.__name__)
@pytest.mark.parametrize("needed", ["parameters", "everything", "some"])
def test_order_of_leaves(make, needed):
    """Hooks on parameters are called in eager's order; those after accumulation, too."""

    def setup():
        torch.manual_seed(0)
        model, log = make(), []
        for place, (name, parameter) in enumerate(model.named_parameters()):
            if needed == "some" and place % 3 == 1:
                parameter.requires_grad_(False)
                continue
            parameter.register_hook(lambda gradient, name=name: log.append(name))
            parameter.register_post_accumulate_grad_hook(lambda _, name=name: log.append(f"{name}, accumulated"))
        x = torch.randn(2, 3, 4, requires_grad=needed == "everything")
        return model, (x,), log

    report = check(setup=setup, calls=2, backend="aot_eager", fullgraph=True, graphs=1, rtol=1e-4, atol=1e-5)
    assert len(report.compiled.state) > 4


def in_place(x):
    y = x * 2
    y.retain_grad()
    y.mul_(3)
    return y, (y * y).sum()


def through_a_view(x):
    y = x * 2
    y.retain_grad()
    y[0].mul_(3)
    return y, (y * y).sum()


def of_a_view_whose_base_changes(x):
    base = x * 2
    y = base[1:]
    y.retain_grad()
    base.mul_(3)
    return y, (y * base[1:]).sum()


def detached_later(x):
    y = x * 2
    y.retain_grad()
    z = (y + 1).sum()
    y.detach_()
    return y, z


@pytest.mark.parametrize("program", [in_place, through_a_view, of_a_view_whose_base_changes, detached_later])
def test_a_retained_gradient_moves_along(program):
    """It is that of the tensor as it is in the end, whatever was done in place since."""

    def run(function):
        x = torch.linspace(1, 2, 3).requires_grad_()
        y, loss = function(x)
        loss.backward()
        return x.grad, y.grad

    expected, seen = run(program), run(kiln.compile(program, backend="aot_eager", fullgraph=True))
    assert same(expected, seen)
