"""A sample of the operator sweep ahead of time (`tests/sweep_aot.py` runs all of it), and what it once found."""

from __future__ import annotations

import pytest
import torch

from kiln.aot import aot_function, nop
from kiln.report import counters
from kiln.testing import check
from tests import sweep_aot, sweep_ops

PARTS, EVERY = 6, 9  # of every ninth operator, a sixth in each test
# One of each family that goes another way: views, several results, random numbers, values that shapes depend on …
FAMILIES = (
    "as_strided, bernoulli, cat, cummax, expand, index_put, linalg_eig, linalg_qr, masked_select, nn_functional_conv2d"
    ", nn_functional_batch_norm, nn_functional_dropout, nn_functional_max_pool2d, scatter_add, split, to_sparse, unbind"
    ", nn_functional_scaled_dot_product_attention, view_as_complex"
).split(", ")


@pytest.fixture(scope="module")
def operators():
    return sweep_aot.differentiable_operators()


def judge_all(names, operators, options):
    summary = sweep_ops.Summary()
    known = sweep_aot.known_failures()
    for name in names:
        for case, verdict in sweep_aot.judge_operator(operators[name], options):
            if verdict.status != "failed" or name not in known:
                summary.add(sweep_ops.Case(case, lambda: None, (), {}), verdict)
    lines = "\n".join(summary.lines())
    assert not summary.counts["failed"], lines
    return summary, lines


@pytest.mark.parametrize("part", range(PARTS))
def test_sample_of_operators(operators, part):
    """In turn float32 and float64."""
    dtype = "float64" if part % 2 else "float32"
    names = list(operators)[::EVERY][part::PARTS]
    summary, lines = judge_all(names, operators, sweep_aot.Options([dtype], limit=1, compiled=1))
    assert summary.counts["captured"] > 0.8 * sum(summary.counts.values()), lines


def test_families(operators):
    judge_all(FAMILIES, operators, sweep_aot.Options(["float64"], limit=1, compiled=0))


def test_families_with_symbolic_sizes(operators):
    judge_all(FAMILIES[::3], operators, sweep_aot.Options(["float64"], limit=1, compiled=0, dynamic=True))


def test_second_derivatives(operators):
    names = [name for name in list(operators)[:: 3 * EVERY] if operators[name].supports_gradgrad]
    judge_all(names, operators, sweep_aot.Options(["float64"], limit=1, second=True))


def test_list_of_failures_is_short(operators):
    known = sweep_aot.known_failures()
    assert set(known) <= set(operators)
    assert len(known) < sweep_aot.MOST_FAILURES * len(operators)
    assert all(known.values()), "each with a reason"


# -- what the sweep found ---------------------------------------------------------------------------------------------


def kron_into(x, y):
    """Writes through memory that it handed on to another tensor."""
    out = torch.zeros(4, 4)
    result = torch.kron(x.detach(), y.detach(), out=out)
    return result + 1, out * 2


def copied_into(x):
    made = torch.zeros_like(x)
    made.copy_(x)
    return made, made.view(-1)


def matmul_changed(x, y):
    product = torch.stack([x, x]) @ y
    product.mul_(2).view(-1).add_(1)
    return product, product.sum()


@pytest.mark.parametrize("program", [kron_into, matmul_changed])
@pytest.mark.parametrize("dynamic", [None, True])
def test_memory_handed_on(program, dynamic):
    x, y = torch.randn(2, 2, requires_grad=True), torch.randn(2, 2, requires_grad=True)
    check(program, x, y, backend="aot_eager", fullgraph=True, dynamic=dynamic)


@pytest.mark.parametrize("shape", [(3, 2), (1, 4), (4, 1), (1, 1)])
@pytest.mark.parametrize("turned", [False, True])
def test_strides_of_what_is_like_another(shape, turned):
    """Those of dimensions of size 1, too, which mean nothing but can be seen."""
    x = torch.randn(shape)
    check(copied_into, (x.t() if turned else x).requires_grad_(), backend="aot_eager", fullgraph=True)


def test_losses_that_eager_refuses_are_refused():
    """The derivative of eigenvectors looks at values to do so: the graph is left to eager."""
    left = counters["aot eager"]

    def program(x):
        return torch.linalg.eig(x).eigenvectors.real.sum()

    turning = torch.tensor([[0.5, -1.0, 0.0], [2.0, 0.1, 0.3], [0.2, 0.0, 1.0]], requires_grad=True)
    report = check(program, turning, backend="aot_eager")
    assert "ill-defined" in str(report.compiled.calls[0].backward_raised)
    assert counters["aot eager"] == left + 1


def test_what_programs_warn_of_while_traced_is_said_in_each_call():
    """Once by each call, however often the program was traced."""

    def program(x, y):
        return torch.cross(x, y).sum()  # says that it wants a dimension

    report = check(program, torch.randn(4, 3, requires_grad=True), torch.randn(4, 3), backend="aot_eager", calls=3)
    assert [len(call.warnings) for call in report.compiled.calls] == [1, 1, 1]


def columns(x):
    """Parts of a matrix, side by side in its rows, one changed by the other."""
    left, middle, right = (x * 2).unsafe_chunk(3, 1)
    left.mul_(right).add_(middle)
    return left.clone(), right.clone()


def test_columns_of_one_matrix_do_not_overlap():
    left = counters["aot eager"]
    check(columns, torch.randn(4, 6, requires_grad=True), backend="aot_eager", grads=False)
    assert counters["aot eager"] == left


def test_rows_that_overlap_are_left_to_eager():
    def program(x):
        made = x * 2
        made[1:].mul_(made[:-1])
        return made

    left = counters["aot eager"]
    check(program, torch.randn(4, 6), backend="aot_eager")
    assert counters["aot eager"] == left + 1


@pytest.mark.parametrize("dynamic", [False, True])
def test_sparse_arguments_are_left_to_eager(dynamic):
    sparse, x = torch.eye(3).to_sparse_csr(), torch.randn(3, 3, requires_grad=True)
    compiled = aot_function(lambda sparse, x: sparse @ x * 2, nop, nop, dynamic=dynamic)
    assert torch.equal(compiled(sparse, x), x * 2)
