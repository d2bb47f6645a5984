"""Operators that count from where a storage begins."""

import pytest
import torch

import kiln
from kiln.testing import check as compare


def check(function, *inputs):
    compiled = kiln.compile(function, backend="kiln", fullgraph=True)
    for x in inputs:
        torch.testing.assert_close(compiled(x), function(x), rtol=0, atol=0)


def test_as_strided_of_an_input_counts_from_its_storage():
    base = torch.arange(20.0)
    check(lambda x: torch.as_strided(x, (2,), (1,), 1) * 2, base[0:5], base[3:8], base.clone()[4:9])
    check(lambda x: torch.as_strided(x[1:], (2, 2), (1, 2)) + 1, base[0:5], base[3:8])


@pytest.mark.parametrize("where", ["whole", "part", "transposed"])
def test_as_strided_of_what_was_computed(where):
    def function(x):
        y = x * 2
        z = {"whole": y, "part": y[2:5], "transposed": y.view(2, 5).t()}[where]
        return torch.as_strided(z, (3, 2), (2, 3), 1), torch.as_strided(z, (2,), (1,)) + z.sum()

    check(function, torch.arange(10.0))


def test_as_strided_scatter():
    def function(x):
        y = x * 2
        return torch.as_strided_scatter(y, torch.ones(3), (3,), (2,), 1), torch.as_strided_scatter(
            y[2:8], torch.ones(2), (2,), (1,), 3
        )

    check(function, torch.arange(10.0))


def test_as_strided_backward():
    x = torch.arange(12.0, requires_grad=True)

    def function(x):
        return (torch.as_strided(x * 3, (4, 3), (2, 1), 1).sin() * 2).sum()

    compiled = kiln.compile(function, backend="kiln", fullgraph=True)
    (found,), (wanted,) = torch.autograd.grad(compiled(x), x), torch.autograd.grad(function(x), x)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.clone(),
        lambda x: torch.ops.aten.alias_copy(x),
        lambda x: x.sum(1),
        lambda x: x.repeat(1, 1),
        lambda x: x.roll(0, 0),
        lambda x: torch.aminmax(x, dim=1),
        lambda x: (x.clone(), x.clone()),
        lambda x: torch.slice_scatter(x, x, 0, 0, 4),
        lambda x: (x.t(), x.view(-1).clone()),
        lambda x: torch.unbind_copy(x.expand(4, 3)),
    ],
    ids=lambda function: None,
)
def test_what_is_new_in_eager_is_new(function):
    x = torch.randn(4, 1, requires_grad=True)
    compare(function, x, backend="kiln", fullgraph=True)


def test_scatter_into_an_expanded_tensor():
    x, y = torch.randn(1, 6).expand(6, 6), torch.randn(6)
    for function in (
        lambda x: torch.diagonal_scatter(x, y),
        lambda x: torch.select_scatter(x, y, 0, 1),
        lambda x: torch.slice_scatter(x, y.view(1, 6), 0, 2, 3),
    ):
        check(function, x)
