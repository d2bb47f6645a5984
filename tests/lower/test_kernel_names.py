"""Names of kernels say which operators they came from, and are the same each time."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F

import kiln
from kiln.lower.schedule.kernel_names import MOST_CHARACTERS, kernel_name
from kiln.lower.schedule.scheduling import schedule
from tests.support.codegen_programs import lowered_of

X, SQUARE = torch.randn(16, 32), torch.randn(16, 16)


def names(function, *inputs):
    return [kernel.name for kernel in schedule(lowered_of(function, inputs)).kernels]


def long_chain(x):
    for function in (
        torch.sinh,
        torch.cosh,
        torch.asinh,
        torch.log1p,
        torch.expm1,
        torch.digamma,
        torch.lgamma,
        torch.sin,
    ):
        x = function(x) + 1
    return x.sum(0)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: x + 1, ["kiln_add_0"]),
        (lambda x: (x.exp() * 2).sum(1), ["kiln_exp_mul_sum_0"]),
        (lambda x: F.gelu(x).sum(0), ["kiln_gelu_sum_0"]),
        (lambda x: torch.softmax(x.t().exp(), 1), ["kiln_exp_softmax_0"]),  # not transpose
        (lambda x: x.t().clone(), ["kiln_clone_0"]),  # nothing but movement
        (lambda x: torch._foreach_exp(torch._foreach_add([x, x * 2], 1)), ["kiln_mul_foreach_add_foreach_exp_0"]),
        (lambda x: x.cos() @ x.sin().t(), ["kiln_cos_0", "kiln_sin_1"]),  # not mm, which reads them
    ],
)
def test_names_are_operators(function, expected):
    assert names(function, X) == expected


def test_equal_kernels_have_the_name_of_the_first():
    assert names(lambda x, y: (x.exp() @ y).exp() @ y, SQUARE, SQUARE + 1) == ["kiln_exp_0"]


def test_parts_of_a_large_sum():
    """The second kernel adds what the first has left."""
    assert names(lambda x: x.exp().sum(), torch.randn(1_000_000)) == ["kiln_exp_sum_0", "kiln_sum_1"]


def test_names_are_short_identifiers():
    (name,) = names(long_chain, X)
    assert re.fullmatch(r"kiln_sinh_\w+_sum_0", name) and len(name) <= MOST_CHARACTERS
    assert "add" not in name


def test_names_are_the_same_each_time():
    assert names(long_chain, X) == names(long_chain, X)


def test_odd_operators():
    assert kernel_name([], 3) == "kiln_3"
    assert kernel_name([None], 4) == "kiln_None_4"
    assert kernel_name(["a.b", "<lambda>"], 5) == "kiln_a_lambda_5"
    assert len(kernel_name(["x" * 100], 10)) <= MOST_CHARACTERS


def test_backward_kernels():
    def step(x):
        F.gelu(x.exp()).sum().backward()

    found = kiln.explain(step)(X.clone().requires_grad_())
    made = [kernel.name for program in found.programs for kernel in program.kernels]
    assert any("gelu_backward" in name for name in made), made
    assert all(re.fullmatch(r"kiln_[a-z0-9_]+_\d+", name) for name in made)
