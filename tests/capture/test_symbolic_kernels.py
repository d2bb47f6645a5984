"""Operators made of others where sizes vary: as eager has them, not as torch's rules for such sizes do."""

import pytest
import torch
import torch.nn.functional as F

import kiln

BACKENDS = ["eager", "aot_eager", "kiln"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_dropout_of_nothing_is_its_input(backend):
    def program(x):
        part = x[..., ::2]
        same = F.dropout(part, 0.0)
        same.add_(1)
        return same is part, same

    x, y = torch.zeros(4, 6), torch.zeros(4, 6)
    is_same, result = kiln.compile(program, backend=backend, dynamic=True, fullgraph=True)(x)
    expected = program(y)
    assert is_same and torch.equal(x, y)
    assert result.stride() == expected[1].stride() and result.data_ptr() == x.data_ptr()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("needs_gradient", [False, True])
def test_dropout_draws_as_eager_does(backend, needs_gradient):
    def program(x):
        return F.dropout(x.t(), 0.4) * 2

    x = torch.randn(5, 7, requires_grad=needs_gradient)
    compiled = kiln.compile(program, backend=backend, dynamic=True, fullgraph=True)
    for _ in range(2):
        torch.manual_seed(3)
        found = compiled(x)
        torch.manual_seed(3)
        expected = program(x)
        assert torch.equal(found, expected) and found.stride() == expected.stride()
