"""Inputs that share memory, which the program changes: graphs over the memory they share, compiled and compared."""

import pytest
import torch
import torch.fx

import kiln
from kiln.aot.backend import compile_or_run
from kiln.aot.compilation import Compilers
from kiln.aot.runtime import aliased_inputs


def changes_one(x, y):
    x.mul_(2)
    return (y * 3,)


def changes_both(x, y):
    x.mul_(2)
    z = y * 3
    y.add_(z)
    return x, z, y[0]


def changes_a_part(x, y):
    x[0].add_(1)
    return y.sum(), x.select(1, 0)


def overlapping(leaf):
    base = leaf * 1
    return base, base[0:3], base[1:4]


def base_and_view(leaf):
    base = leaf * 1
    return base, base, base[1:]


def transposed(leaf):
    base = leaf * 1
    return base, base.t(), base[1:]


def separate(leaf):
    return leaf * 1, leaf[0:3] * 1, leaf[1:4] * 1


def without_gradients(way):
    return lambda leaf: way(leaf.detach().clone())


def detached(leaf):
    base = leaf.detach().clone()
    return base, base, base.detach()


WAYS = {
    "overlapping": overlapping,
    "base and view": base_and_view,
    "transposed": transposed,
    "separate": separate,
    "overlapping, no gradients": without_gradients(overlapping),
    "base, no gradients": without_gradients(base_and_view),
    "detached": detached,
}


def graph_of(program, way=separate):
    compilers = Compilers(forward=as_it_is, backward=as_it_is, inference=as_it_is)
    return compile_or_run(torch.fx.symbolic_trace(program), examples(way), compilers)


def as_it_is(graph_module, example_inputs):
    return graph_module


def examples(way):
    return list(way(torch.ones(4, 3, requires_grad=True))[1:])


def story(function, way):
    """All that can be seen of a call and its gradients."""
    leaf = torch.linspace(0.1, 1.2, 12).view(4, 3).requires_grad_()
    base, x, y = way(leaf)
    results = list(function(x, y))
    seen = [base, x, y, *results]
    facts = [[value._version, value._base is base, value is x, value.requires_grad] for value in seen]
    shared = [value.data_ptr() - base.data_ptr() for value in seen if shares(value, base)]
    values = [value.detach().clone() for value in seen]
    if any(value.requires_grad for value in seen):
        weighed = [(value * number).sum() for number, value in enumerate(seen, 1) if value.requires_grad]
        values += torch.autograd.grad(sum(weighed), leaf)
    return facts, shared, values


def shares(one, other):
    return one.untyped_storage()._cdata == other.untyped_storage()._cdata


@pytest.fixture
def eager_runs(monkeypatch):
    runs = []
    eager = aliased_inputs.AliasVariants.eager
    monkeypatch.setattr(
        aliased_inputs.AliasVariants, "eager", lambda self, *inputs: runs.append(1) or eager(self, *inputs)
    )
    return runs


@pytest.mark.parametrize("program", [changes_one, changes_both, changes_a_part])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_graph(program, way, eager_runs):
    compiled = graph_of(program, separate if way(torch.ones(4, 3, requires_grad=True))[1].requires_grad else detached)
    expected = story(program, way)
    for _ in range(2):
        facts, shared, values = story(compiled, way)
        assert (facts, shared) == expected[:2]
        torch.testing.assert_close(values, expected[2])
    differentiable = way in (overlapping, base_and_view, transposed)  # those are eager's
    assert len(eager_runs) == (2 if differentiable else 0)


@pytest.mark.parametrize("program", [changes_one, changes_both, changes_a_part])
def test_ways_taken_in_turn(program):
    compiled = kiln.compile(program, backend="aot_eager")
    for way in [*WAYS.values(), *WAYS.values()]:
        expected, seen = story(program, way), story(compiled, way)
        assert seen[:2] == expected[:2]
        torch.testing.assert_close(seen[2], expected[2])


def test_many_ways_end_in_eager(eager_runs):
    compiled = graph_of(changes_one, without_gradients(separate))
    memory = torch.arange(100.0)
    for start in range(aliased_inputs.VARIANTS + 2):
        x, y = memory.clone()[start : start + 9], None
        x, y = x.view(3, 3), x[1:7].view(2, 3)
        expected = x.clone().view(-1).mul(2)[1:7].view(2, 3) * 3
        assert torch.equal(compiled(x, y)[0], expected)
    assert len(eager_runs) == 2


def test_shape_changed_in_shared_memory():
    def program(x, y):
        x.mul_(2)
        x.transpose_(0, 1)
        return (y * 1,)

    compiled = graph_of(program, without_gradients(separate))
    for way in (WAYS["overlapping, no gradients"], WAYS["detached"]):
        _, x, y = way(torch.ones(4, 3))
        before = y.clone()
        assert not torch.equal(compiled(x, y)[0], before)
        assert x.shape[0] == 3 and x.stride()[0] == 1
