"""Operators that count from where a storage begins."""

import pytest
import torch

import kiln


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
