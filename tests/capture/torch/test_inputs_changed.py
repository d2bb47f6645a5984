"""Inputs with a history that are changed in place: autograd follows, and so must what the program asks of tensors."""

import copy

import pytest
import torch

from kiln.testing import check

BOTH = (None, "line")


def values():
    return torch.linspace(-2, 2, 4).requires_grad_()


ACTIVATIONS = {
    "result": lambda: values() * 2,
    "view of a result": lambda: (values() * 2).view(2, 2),
    "part of a result": lambda: (values() * 2)[1:3],
    "transposed": lambda: (values() * 2).reshape(2, 2).t(),
    "leaf that needs no gradient": lambda: values().detach(),
}
REFUSED = {
    "leaf": values,
    "view of a leaf": lambda: values().view(2, 2),
    "one of several views": lambda: (values() * 2).unbind()[0],
    "one part of a split": lambda: (values() * 2).split(2)[1],
}


def changes(x):
    before = x.requires_grad, x.is_leaf
    x.relu_()
    x.mul_(3)
    return x * x, before, x.is_leaf


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_activation_changed_in_place(kind):
    """``nn.ReLU(inplace=True)`` on what another part of the model computed: one graph."""
    check(changes, make_args=lambda: (ACTIVATIONS[kind](),), calls=1, fullgraph=True, graphs=1, breaks_every=BOTH)


@pytest.mark.parametrize("kind", REFUSED)
def test_changes_that_eager_refuses(kind):
    report = check(changes, make_args=lambda: (REFUSED[kind](),), breaks_every=BOTH)
    assert isinstance(report.compiled.calls[0].raised, RuntimeError)


@pytest.mark.parametrize("first", ["result", "view of a leaf"])
def test_compiled_for_one_kind_called_with_all(first):
    kinds = {**ACTIVATIONS, **REFUSED}
    shapes = {name: make().shape for name, make in kinds.items()}
    names = [first, *(name for name in kinds if shapes[name] == shapes[first])]
    check(setup=lambda: (changes, [(kinds[name](),) for name in names]))


# -- memory that several inputs share --------------------------------------------------------------------------------


def weight():
    return torch.tensor(2.0, requires_grad=True)


def change_one_ask_the_other(x, y, w):
    x.mul_(w)
    z = y * 2
    return z, z.requires_grad, y.is_leaf


def apart():
    return torch.ones(3), torch.ones(2), weight()


def overlapping():
    base = torch.ones(3)
    return base, base[:2], weight()


@pytest.mark.parametrize("order", [(overlapping,), (apart, overlapping, apart), (overlapping, apart, overlapping)])
def test_shared_memory_is_noticed(order):
    """The view gets a gradient through the change: what was captured without one does not hold."""
    check(setup=lambda: (change_one_ask_the_other, [make() for make in order]), breaks_every=BOTH)


def test_no_recompile_where_memory_stays_apart():
    check(setup=lambda: (change_one_ask_the_other, [apart() for _ in range(3)]), graphs=1, recompiles=0, fullgraph=True)


def test_input_that_comes_in_after_the_change():
    class Holder:
        pass

    def function(x, holder, w):
        x.mul_(w)
        z = holder.view * 2
        return z, z.requires_grad

    def arguments():
        base, holder = torch.ones(3), Holder()
        holder.view = base[1:]
        return base, holder, weight()

    check(function, make_args=arguments)


def test_changes_that_autograd_does_not_follow():
    """Shared memory is no matter then: one graph."""

    def function(x, y, w):
        with torch.no_grad():
            x.mul_(w)
        z = y * w
        return z, z.requires_grad

    check(function, make_args=overlapping, fullgraph=True, graphs=1)


# -- errors after a change -------------------------------------------------------------------------------------------


def caught(x, index):
    x.mul_(3)
    try:
        y = x[index]
    except IndexError:
        y = x.sum()
    return y * 2


def not_caught(x, index):
    x.mul_(3)
    return x[index] * 2


def caught_around(x, index):
    try:
        x.mul_(3)
        y = x[index]
    except IndexError:
        y = x.sum()
    return y * 2


@pytest.mark.parametrize("function", [caught, not_caught, caught_around])
@pytest.mark.parametrize("kind", ["result", "leaf that needs no gradient"])
def test_error_after_a_change(function, kind):
    """Eager cannot start over where a tensor's history was changed: the change would be in it twice."""
    indices = [torch.tensor([place]) for place in (1, 9, 2)]
    check(setup=lambda: (function, [(ACTIVATIONS[kind](), index) for index in indices]), breaks_every=BOTH)


def copied_together(a, b):
    first, second = copy.deepcopy([a, b])
    first.add_(1)
    return first, second


def test_deep_copies_of_tensors_that_begin_to_share_memory():
    """Copies of tensors that share memory share theirs; whether they do may change from call to call."""
    one = torch.zeros(2)
    calls = [(torch.zeros(2), torch.zeros(2)), (one, one.detach()), (one, one.view(2))]
    check(copied_together, calls=calls, versions=False)  # those of copies
