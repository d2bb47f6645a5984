"""`torch.utils.checkpoint` in graphs: the backward pass computes anew what eager's would."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

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


@pytest.mark.parametrize(
    "options", [dict(use_reentrant=True), dict(use_reentrant=False, context_fn=torch.utils.checkpoint.noop_context_fn)]
)
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


def test_nested():
    def inner(x):
        return checkpoint(lambda v: v.sin().exp(), x, use_reentrant=False) + 1

    check(lambda x: checkpoint(inner, x, use_reentrant=False) * 2, torch.randn(3, requires_grad=True))


def test_state_that_the_function_changes():
    """Statistics are closed over, not passed: torch does not mind that they change between forward and backward."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5))

    def program(x):
        first = checkpoint(module, x, use_reentrant=False)
        return checkpoint(lambda y: module(y) + first.sum(), first, use_reentrant=False)

    calls = [(torch.randn(3, 4, requires_grad=True),) for _ in range(3)]
    check(program, calls=calls, fullgraph=True, graphs=1)
