"""`torch.utils.checkpoint` in graphs: the backward pass computes anew what eager's would."""

from contextlib import contextmanager
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
    noop_context_fn,
)

import kiln
from kiln.testing import check

LAYERS = [torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)]


def block(x, scale=2.0):
    h = torch.relu(LAYERS[0](x)) * scale
    return F.dropout(LAYERS[1](h), 0.5), {"hidden": h, "same": x}


def nodes(report):
    return [node for node in report.graphs[0].graph.nodes if getattr(node.target, "__name__", "") == "checkpointed"]


def test_values_gradients_and_random_numbers_are_those_of_eager():
    def program(x):
        y, more = checkpoint(block, x, use_reentrant=False)
        z, _ = checkpoint(block, y, scale=3.0, use_reentrant=False, preserve_rng_state=True)
        return y + z + more["hidden"], more["same"]

    calls = [(torch.randn(n, 4, requires_grad=True),) for n in (2, 3, 5, 4)]
    report = check(program, calls=calls, fullgraph=True, graphs=2)
    assert len(nodes(report)) == 2
    inside = report.graphs[0].checkpointed_0
    assert any("relu" in str(node.target) for node in inside.graph.nodes)
    assert not any("relu" in str(node.target) for node in report.graphs[0].graph.nodes)


class Names(TorchDispatchMode):
    """The operations that run."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen.append(function._schema.name)
        return function(*args, **(kwargs or {}))


def test_what_was_thrown_away_is_computed_again_in_backward():
    def program(x):
        return checkpoint(lambda v: v.tanh().exp().sum(), x, use_reentrant=False)

    x = torch.randn(3, requires_grad=True)
    seen = []
    for function in (program, kiln.compile(program, fullgraph=True)):
        loss = function(x)
        with Names() as names:
            torch.autograd.grad(loss, x)
        seen.append(names.seen)
    assert "aten::tanh" in seen[0]
    assert seen[1] == seen[0]


def test_without_gradients_it_is_a_call():
    def program(x):
        with torch.no_grad():
            return checkpoint(block, x, use_reentrant=False)[0]

    assert not nodes(check(program, torch.randn(2, 4), fullgraph=True))


@pytest.mark.parametrize("options", [dict(use_reentrant=True), dict(use_reentrant=False, debug=True)])
def test_other_kinds_are_left_to_eager(options):
    check(lambda x: checkpoint(torch.sin, x, **options) * 2, torch.randn(3, requires_grad=True))


def test_a_function_with_effects_runs_as_often_as_in_eager():
    def setup():
        log: list[str] = []

        def function(x):
            log.append("ran")
            return x.tanh()

        return lambda x: checkpoint(function, x, use_reentrant=False) * 2, (torch.randn(3, requires_grad=True),), log

    assert check(setup=setup).compiled.state == ["ran", "ran"]


def operations_in_backward(program, *args):
    """What eager and Kiln run in the backward pass."""
    seen = []
    for function in (program, kiln.compile(program, fullgraph=True)):
        result = function(*args)
        with Names() as names:
            torch.autograd.grad(result.sum(), args)
        seen.append(names.seen)
    return seen


def around(x):
    inner = checkpoint(lambda v: v.sin().exp(), x, use_reentrant=False)
    again = checkpoint(lambda v: v.tanh() * inner, inner, use_reentrant=False)
    return again + 1, inner


def nested(x):
    first, second = checkpoint(around, x * 2, use_reentrant=False)
    return checkpoint(around, first * second, use_reentrant=False)[0] * 2


def nested_thrice(x):
    return checkpoint(nested, x, use_reentrant=False)


@pytest.mark.parametrize("program", [nested, nested_thrice], ids=lambda each: each.__name__)
def test_nested(program):
    x = torch.randn(3, requires_grad=True)
    check(program, x, calls=2, fullgraph=True, graphs=1)
    eager, compiled = operations_in_backward(program, x)
    assert compiled == eager and eager.count("aten::sin") > 1


# -- selective policies ----------------------------------------------------------------------------------------------

SAVED = [torch.ops.aten.mm.default]


def policy(ctx, operator, *args, **kwargs):
    return CheckpointPolicy.MUST_SAVE if operator in SAVED else CheckpointPolicy.PREFER_RECOMPUTE


def every_second():
    """A policy with a memory of its own for each call."""
    counts: dict[bool, int] = {True: 0, False: 0}

    def choose(ctx, operator, *args, **kwargs):
        counts[ctx.is_recompute] += operator is torch.ops.aten.mm.default
        save = operator is torch.ops.aten.mm.default and counts[ctx.is_recompute] % 2 == 0
        return CheckpointPolicy.MUST_SAVE if save else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(choose)


def layers(x):
    return (x @ x).sin() @ (x @ x).exp()


def by_list(x):
    contexts = partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])
    return checkpoint(layers, x, use_reentrant=False, context_fn=contexts)


def by_function(x):
    return checkpoint(layers, x, use_reentrant=False, context_fn=lambda: create_selective_checkpoint_contexts(policy))


def by_function_made_here(x):
    kept = torch.ops.aten.sin.default

    def choose(ctx, operator, *args, **kwargs):
        return CheckpointPolicy.MUST_SAVE if operator is kept else CheckpointPolicy.MUST_RECOMPUTE

    contexts = partial(create_selective_checkpoint_contexts, choose)
    return checkpoint(layers, x, use_reentrant=False, context_fn=contexts)


def by_memory(x):
    first = checkpoint(layers, x, use_reentrant=False, context_fn=every_second)
    return checkpoint(layers, first, use_reentrant=False, context_fn=every_second)


def inside_another(x):
    return checkpoint(by_list, x * 2, use_reentrant=False)


def with_contexts_that_do_nothing(x):
    return checkpoint(layers, x, use_reentrant=False, context_fn=noop_context_fn)


SELECTIVE = [by_list, by_function, by_function_made_here, by_memory, inside_another, with_contexts_that_do_nothing]


@pytest.mark.parametrize("program", SELECTIVE, ids=lambda each: each.__name__)
def test_selective(program):
    x = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
    check(program, x, calls=2, fullgraph=True, graphs=1)
    eager, compiled = operations_in_backward(program, x)
    assert compiled == eager and "aten::mm" in eager


def counted(program, x):
    """How often each operation that a policy may be about runs, forward and backward."""
    with Names() as forward:
        result = program(x)
    with Names() as backward:
        torch.autograd.grad(result.sum(), x)
    names = [f"aten::{name}" for name in ("mm", "sin", "exp", "tanh")]
    return [[each.seen.count(name) for name in names] for each in (forward, backward)]


@pytest.mark.parametrize("program", [*SELECTIVE, nested, nested_thrice], ids=lambda each: each.__name__)
def test_ahead_of_time(program):
    """Where both passes are compiled: what is kept, and what is computed again, is as in eager."""
    x = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
    check(program, x, calls=2, fullgraph=True, graphs=1, backend="aot_eager")
    assert counted(kiln.compile(program, backend="aot_eager", fullgraph=True), x) == counted(program, x)


@contextmanager
def doubling(x):
    with torch.autocast("cpu", torch.bfloat16):
        yield


class Owner:
    def contexts(self):
        return create_selective_checkpoint_contexts(SAVED)


def by_other_contexts(x):
    return checkpoint(layers, x, use_reentrant=False, context_fn=lambda: (doubling(x), doubling(x)))


def by_method(x):
    return checkpoint(layers, x, use_reentrant=False, context_fn=Owner().contexts)


def by_packet(x):
    contexts = partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm])
    return checkpoint(layers, x, use_reentrant=False, context_fn=contexts)


@pytest.mark.parametrize("program", [by_other_contexts, by_method, by_packet], ids=lambda each: each.__name__)
def test_other_contexts_are_left_to_eager(program):
    check(program, torch.randn(3, 3, requires_grad=True), calls=2)


def test_contexts_without_gradients():
    def program(x):
        with torch.no_grad():
            return by_function(x)

    assert not nodes(check(program, torch.randn(3, 3), fullgraph=True))


def test_state_that_the_function_changes():
    """Statistics are closed over, not passed: torch does not mind that they change between forward and backward."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5))

    def program(x):
        first = checkpoint(module, x, use_reentrant=False)
        return checkpoint(lambda y: module(y) + first.sum(), first, use_reentrant=False)

    calls = [(torch.randn(3, 4, requires_grad=True),) for _ in range(3)]
    check(program, calls=calls, fullgraph=True, graphs=1)


def test_reentrant_ones_are_refused_in_one_graph():
    """With the line, the reason and the way out."""

    def program(x):
        return checkpoint(torch.sin, x, use_reentrant=True) * 2

    with pytest.raises(kiln.exc.Unsupported, match="use_reentrant=False") as caught:
        kiln.compile(program, fullgraph=True)(torch.ones(2, requires_grad=True))
    assert caught.value.location.file == __file__
    check(program, torch.ones(2, requires_grad=True))


HAS_DECORATOR = hasattr(torch.utils.checkpoint, "_CheckpointedFunction")
decorator = pytest.mark.skipif(not HAS_DECORATOR, reason="torch has checkpoint as a decorator from 2.14 on")


@decorator
def test_checkpoint_as_a_decorator():
    inner = checkpoint(use_reentrant=False)(lambda x, *, debug=1: (x.sin() * x).exp() * debug)

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(3, 3)

        @checkpoint(use_reentrant=False)
        def inside(self, x):
            return self.linear(x).relu().sin()

        def forward(self, x):
            return self.inside(x).sum()

    def program(x):
        return inner(x * 2, debug=3)

    check(program, torch.ones(3, requires_grad=True), graphs=1)
    check(Block(), torch.ones(3), graphs=1)
    counts = []

    def counted(x):
        return checkpoint(use_reentrant=False)(noting)(x * 2)

    def noting(x):
        counts.append(1)
        return x.sin().exp()

    check(counted, torch.ones(3, requires_grad=True))


@decorator
@pytest.mark.parametrize("respect", [None, True, False])
def test_checkpoint_option_for_hooks(respect):
    def program(x):
        return checkpoint(torch.sin, x * 2, use_reentrant=False, respect_saved_tensors_hooks=respect).exp()

    check(program, torch.ones(3, requires_grad=True), graphs=1)
