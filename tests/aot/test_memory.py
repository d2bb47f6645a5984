"""Memory: what is saved for backward dies as early as eager lets it die; nothing is kept of calls, models, graphs."""

import gc
import weakref

import pytest
import torch
from torch import nn

import kiln
from kiln.testing.memory import memory_taken
from tests.aot.stories import BACKENDS, leaf

pytestmark = pytest.mark.parametrize("backend", BACKENDS)


@pytest.fixture(autouse=True)
def no_collector():
    """Things must die by their reference counts, as they do in eager, not when the collector comes by."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def both(backend):
    """Eager, and compiled: what a test expects must hold for eager, or it expects too much."""
    return lambda function: function, lambda function: kiln.compile(function, backend=backend, fullgraph=True)


SIZE = 1 << 16  # elements of 8 bytes: whatever else is allocated does not matter beside it


def chain(x, w):
    for _ in range(12):
        x = (x * w).tanh()
    return x


def test_bytes_kept_for_backward(backend):
    x, w = leaf(SIZE), leaf(SIZE)
    counts = []
    for compile in both(backend):
        f = compile(chain)
        f(x, w)
        counts.append(memory_taken(lambda f=f: f(x, w))[1])
    assert counts[1] <= counts[0]


def test_bytes_alive_in_backward(backend):
    """Saved tensors go as the backward uses them up, not all at its end."""
    x, w = leaf(SIZE), leaf(SIZE)
    counts = []
    for compile in both(backend):
        f = compile(chain)
        f(x, w).sum().backward()
        x.grad = w.grad = None
        counts.append(memory_taken(lambda f=f: f(x, w).sum().backward()))
        x.grad = w.grad = None
    assert counts[1][1] <= counts[0][1] + 8 * SIZE
    assert counts[1][0] <= counts[0][0] * 1.1


def test_earlier_functions_find_memory_freed(backend):
    """What one function saved is gone when the backward of the function before it begins."""
    for compile in both(backend):
        f = compile(lambda x: x.sin() * 2)
        g = compile(lambda x, y: (x * y).sum())
        x, y = leaf(), leaf()
        q = y * 1
        middle = f(x)
        log = []
        middle.register_hook(lambda gradient, gone=weakref.ref(q), log=log: log.append(gone() is None))
        result = g(middle, q)
        del q, middle
        result.backward()
        assert log == [True]


def test_inputs_and_results_die(backend):
    for compile in both(backend):
        f = compile(lambda x, y: (x.sin() * y, y.exp()))
        f(leaf(), leaf())
        x, y = leaf(), leaf()
        p = x * 1
        a, b = f(p, y)
        refs = [weakref.ref(item) for item in (p, a, b)]
        del p
        (a.sum() + b.sum()).backward()
        del a, b
        assert [ref() for ref in refs] == [None] * 3


def test_saved_for_backward_dies_with_the_backward(backend):
    """Without retain_graph the saved tensors go, though the results live on."""
    for compile in both(backend):
        f = compile(lambda x, y: x.sin() * y)
        f(leaf(), leaf())
        x, y = leaf(), leaf()
        p = x * 1
        result = f(p, y)
        gone = weakref.ref(p)
        del p
        assert gone() is not None or backend != "eager", "eager keeps what sin saved"
        kept = [result.grad_fn]
        result.sum().backward()
        assert gone() is None
        assert kept


def test_saved_for_backward_dies_with_the_result(backend):
    for compile in both(backend):
        f = compile(lambda x, y: x.sin() * y)
        f(leaf(), leaf())
        x = leaf()
        p = x * 1
        result = f(p, p)
        gone = weakref.ref(p)
        del p
        del result
        assert gone() is None


def test_retained_graph_keeps_what_it_needs(backend):
    for compile in both(backend):
        f = compile(lambda x, y: x.sin() * y)
        x, y = leaf(), leaf()
        p = x * 1
        result = f(p, y)
        gone = weakref.ref(p)
        del p
        result.sum().backward(retain_graph=True)
        first = x.grad.clone()
        result.sum().backward()
        assert torch.equal(x.grad, 2 * first)
        assert gone() is None


def test_nothing_is_held_without_grad(backend):
    for compile in both(backend):
        f = compile(lambda x, y: (x.sin() * y).exp())
        with torch.no_grad():
            x, y = leaf(), leaf()
            result = f(x, y)
            refs = [weakref.ref(x), weakref.ref(y)]
            del x, y
            assert [ref() for ref in refs] == [None, None]
            assert result.grad_fn is None


def test_inputs_that_no_backward_needs_die(backend):
    """A sum keeps nothing: its inputs die though its result lives."""
    for compile in both(backend):
        f = compile(lambda x, y: (x + y).sum())
        f(leaf() * 1, leaf())
        x, y = leaf(), leaf()
        p = x * 1
        gone = weakref.ref(p)
        result = f(p, y)
        del p
        assert gone() is None
        result.backward()
        assert torch.equal(x.grad, torch.ones_like(x))


def test_gradients_are_not_held(backend):
    for compile in both(backend):
        f = compile(lambda x, y: x.sin() * y)
        x, y = leaf(), leaf()
        for _ in range(2):
            gradient = torch.ones(3, 4, dtype=torch.float64)
            gone = weakref.ref(gradient)
            result = f(x, y)
            result.backward(gradient, retain_graph=True)
            del gradient
            assert gone() is None
        gone = weakref.ref(x.grad)
        x.grad = None
        assert gone() is None


def test_calls_do_not_pile_up(backend):
    """200 steps of training, with second derivatives now and then: no more tensors at the end than after ten."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.BatchNorm1d(8), nn.Linear(8, 2)).double()
    f = kiln.compile(model, backend=backend)
    counts = []
    for step in range(200):
        x = leaf(5, 4)
        loss = f(x).square().mean()
        if step % 20 == 0:
            (slope,) = torch.autograd.grad(loss, x, create_graph=True)
            loss = loss + slope.square().sum()
            del slope
        loss.backward()
        if step % 7 == 0:
            f(x)  # never differentiated
        model.zero_grad()
        if step in (30, 199):
            del x, loss
            gc.collect()
            counts.append(sum(issubclass(type(item), torch.Tensor) for item in gc.get_objects()))
    assert counts[0] == counts[1]


def test_second_derivatives_do_not_pile_up(backend):
    for compile in both(backend):
        f = compile(lambda x: (x**3).sin())
        for _ in range(3):
            x = leaf()
            result = f(x)
            (first,) = torch.autograd.grad(result.sum(), x, create_graph=True)
            torch.autograd.grad(first.sum(), x)
            refs = [weakref.ref(item) for item in (x, result, first)]
            del x, result, first
            assert [ref() for ref in refs] == [None] * 3


def test_models_die(backend):
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    f = kiln.compile(model, backend=backend)
    for _ in range(3):
        f(leaf(5, 4)).sum().backward()
    refs = [weakref.ref(model), *map(weakref.ref, model.parameters())]
    del f, model
    gc.collect()
    assert not any(ref() is not None for ref in refs)


def test_functions_and_their_graphs_die(backend):
    def count():
        gc.collect()
        return sum(issubclass(type(item), (torch.fx.GraphModule, torch.fx.Node)) for item in gc.get_objects())

    def use(k):
        f = kiln.compile(lambda x, y: (x.sin() * y + k, x[0], y.exp()), backend=backend)
        x, y = leaf(), leaf()
        results = f(x, y)
        torch.autograd.grad([result.sum() for result in results], [x, y], create_graph=True)[0].sum().backward()
        f(x, y)[0].sum().backward()

    use(0)
    use(1)
    before = count()
    for k in range(2, 6):
        use(k)
    assert count() <= before


def test_mutated_inputs_are_not_held(backend):
    for compile in both(backend):

        def update(state, x):
            state.mul_(0.5).add_(x.detach().sum())
            return x.sin() * state.sum()

        f = compile(update)
        for _ in range(3):
            state, x = torch.ones(4, dtype=torch.float64), leaf()
            result = f(state, x)
            gone = weakref.ref(state)
            del state
            result.sum().backward()
            del result
            assert gone() is None


def test_views_hold_only_their_memory(backend):
    for compile in both(backend):
        f = compile(lambda x: ((x * 2)[0], x.sin()))
        x = leaf()
        view, other = f(x)
        gone = weakref.ref(view._base), weakref.ref(other)
        del other
        assert gone[1]() is None
        assert gone[0]() is view._base
        del view
        assert gone[0]() is None
