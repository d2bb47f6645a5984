"""A sample of the operator sweep (`tests/sweep_ops.py` runs all of it), and what graphs hold."""

from __future__ import annotations

import pytest
import torch

import kiln
from kiln.testing import CompileCounterWithBackend, check
from tests import sweep_ops


@pytest.fixture(scope="module")
def operators():
    return [op for op in sweep_ops.operators() if not sweep_ops.UNSTABLE.match(op.name)]


@pytest.mark.parametrize("part", range(8))
def test_sample_of_operators(operators, part):
    summary = sweep_ops.Summary()
    for operator in operators[part * 5 :: 40]:
        for case in sweep_ops.cases(operator, samples=1):
            summary.add(case, sweep_ops.judge(case))
    lines = "\n".join(summary.lines())
    assert not summary.counts["failed"], lines
    assert summary.counts["captured"] > 0.8 * sum(summary.counts.values()), lines


# -- graphs ---------------------------------------------------------------------------------------------------------


def graph_of(function, *args):
    counter = CompileCounterWithBackend("eager")
    kiln.compile(function, backend=counter, fullgraph=True)(*args)
    assert len(counter.graphs) == 1
    return counter.graphs[0]


def every_kind(x):
    y = x.view(-1)[1:] + 1
    values, indices = torch.max(x, dim=1)
    z = torch.nn.functional.gelu(y, approximate="tanh").to(torch.float64, copy=True)
    w = x.T @ x.clone(memory_format=torch.contiguous_format)
    v = torch.zeros(2, dtype=torch.int64, device="cpu") + indices[:2]
    y[0] = float("inf")
    return z, values, w, v, torch.ops.aten.sin.default(x), x.new_full((2,), float("nan")), x[..., None, ::2], 2**x


X = torch.arange(6.0).reshape(2, 3)


def test_code_runs_by_itself():
    """What fx prints is Python that does the same: another module made from the graph gives the same results."""
    module = graph_of(every_kind, X)
    again = torch.fx.GraphModule(module, module.graph)
    expected = every_kind(X)
    seen = again(X)
    flat = [seen] if isinstance(seen, torch.Tensor) else list(seen)
    wanted = [torch.as_tensor(value) for value in expected]
    for value in wanted:
        assert any(value.shape == item.shape and torch.equal(value.nan_to_num(), item.nan_to_num()) for item in flat)
    assert "def forward" in module.code


def test_nodes_know_their_value_and_line():
    module = graph_of(every_kind, X)
    calls = [node for node in module.graph.nodes if node.op.startswith("call")]
    assert calls
    for node in module.graph.nodes:
        if node.op in ("placeholder", "call_function", "call_method") and node.target is not torch.Tensor.__setitem__:
            assert "example_value" in node.meta, node.format_node()
    lines = [node.meta["stack_trace"] for node in calls if "stack_trace" in node.meta]
    assert all("every_kind" in text and "test_torch_operators.py" in text for text in lines)
    assert len(lines) > len(calls) / 2
    assert any("x.T @ x.clone" in text for text in lines)


def test_example_values_are_as_real_ones():
    module = graph_of(every_kind, X)
    seen = {}

    class Runner(torch.fx.Interpreter):
        def run_node(self, node):
            seen[node] = super().run_node(node)
            return seen[node]

    Runner(module).run(X.clone())
    for node, value in seen.items():
        fake = node.meta.get("example_value")
        if isinstance(value, torch.Tensor) and fake is not None:
            assert (fake.shape, fake.dtype, fake.stride()) == (value.shape, value.dtype, value.stride()), node.name


def test_inputs_come_first_and_once():
    def program(x, y):
        return (x + y) * x + OUTSIDE

    module = graph_of(program, X, X + 1)
    kinds = [node.op for node in module.graph.nodes]
    assert kinds.count("placeholder") == 3
    assert kinds[:3] == ["placeholder"] * 3


OUTSIDE = torch.ones(3)


def test_nothing_unused_is_recorded():
    def program(x, unused):
        x.shape, x.dim(), x.dtype, x.is_contiguous(), x.stride()
        return x + 1

    module = graph_of(program, X, X.clone())
    assert [node.op for node in module.graph.nodes] == ["placeholder", "call_function", "output"]


def test_attempts_in_a_try_block_are_captured():
    def program(x):
        y = x * 2
        try:
            y.add_(1)
            y[0] = 5.0
            z = y.sum()
        except RuntimeError:
            z = y
        return y, z

    check(program, X, graphs=1, breaks=0)


def test_changes_of_arguments_in_a_try_block():
    def program(x, index):
        x.add_(1)
        try:
            y = x[index]
        except IndexError:
            y = x
        return y * 2

    check(program, calls=[(X.clone(), torch.tensor([0, 1])), (X.clone(), torch.tensor([0, 7]))])
