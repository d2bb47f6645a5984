"""Gradients of operators under the engine, bit for bit those of torch's own (`tests/sweep_engine.py` runs them all)."""

from __future__ import annotations

import pytest
import torch

from tests import sweep_aot, sweep_engine, sweep_ops

# One of each family whose nodes keep something of their own: numbers, lists, shapes, views, several results, nothing …
FAMILIES = (
    ("add, mul, pow, div_no_rounding_mode, addcdiv, clamp, where, lerp, sinc, logit"),
    ("sum, mean, std, var_mean, norm, logsumexp, cumsum, cumprod, prod, cummax"),
    ("cat, stack, split, unbind, chunk, gather, scatter_add, index_select, index_add, masked_fill"),
    ("as_strided, expand, repeat, roll, flip, diag_embed, select_scatter, tril, unfold, view_as_complex"),
    ("mm, bmm, addmm, einsum, linalg_qr, linalg_svd, linalg_solve, linalg_cholesky, matrix_exp, linalg_det"),
    ("nn_functional_conv2d, nn_functional_batch_norm, nn_functional_layer_norm, nn_functional_embedding"),
    ("nn_functional_max_pool2d, nn_functional_interpolate_bilinear, nn_functional_dropout, nn_functional_gelu"),
    ("nn_functional_cross_entropy, nn_functional_scaled_dot_product_attention, to, sort, topk, max_binary"),
)


@pytest.fixture(scope="module")
def operators():
    return sweep_aot.differentiable_operators()


@pytest.mark.parametrize("number", range(len(FAMILIES)))
def test_gradients_of_operators(operators, number):
    summary = sweep_ops.Summary()
    options = sweep_engine.Options(limit=1, compiled=0)
    for name in FAMILIES[number].split(", "):
        for case, verdict in sweep_engine.judge_operator(operators[name], options):
            summary.add(sweep_ops.Case(case, lambda: None, (), {}), verdict)
    lines = "\n".join(summary.lines())
    assert not summary.counts["failed"], lines
    assert not summary.counts["left"], lines
    assert summary.counts["captured"] > 0.9 * sum(summary.counts.values()), lines


def test_compiled_gradients_of_operators(operators):
    """The traced graph once more through capture, sizes symbolic."""
    summary = sweep_ops.Summary()
    for family in FAMILIES:
        name = family.split(", ")[0]
        for case, verdict in sweep_engine.judge_operator(operators[name], sweep_engine.Options(limit=0, compiled=1)):
            summary.add(sweep_ops.Case(case, lambda: None, (), {}), verdict)
    lines = "\n".join(summary.lines())
    assert not summary.counts["failed"] and summary.counts["captured"], lines


def test_operators_that_take_no_symbols():
    """A pass that cannot be traced with symbolic sizes has a graph for each size."""
    compiler = sweep_engine.Counting(sweep_engine.as_it_is)
    for size in (3, 4, 5, 4, 3):
        verdict = sweep_engine.judge_call(
            torch.nn.functional.softshrink, [torch.randn(size, requires_grad=True)], compiler
        )
        assert verdict.status == "captured", verdict
    assert compiler.count == 3


@pytest.mark.parametrize("function", [torch.linalg.eig, torch.linalg.eigh, torch.linalg.svd])
def test_derivatives_that_look_at_values(function):
    """Where eager refuses a loss for its values, so does the engine; with real numbers nobody looks."""
    compiler = sweep_engine.Counting(sweep_engine.as_it_is)
    for dtype in (torch.complex128, torch.float64):
        matrix = torch.randn(3, 3, dtype=dtype, requires_grad=True)
        verdict = sweep_engine.judge_call(function, [matrix], compiler)
        is_complex = matrix.is_complex() or function is torch.linalg.eig
        assert verdict.status == ("left" if is_complex else "captured"), verdict
