"""Operators without results, which are called for what else they do, stay in the program."""

from __future__ import annotations

import pytest
import torch

import kiln


def factor(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.cholesky(x) * 2


def test_errors_that_operators_look_for_are_raised():
    matrix = torch.randn(3, 3)
    matrix = matrix @ matrix.T + torch.eye(3)
    compiled = kiln.compile(factor, backend="kiln", fullgraph=True)
    torch.testing.assert_close(compiled(matrix), factor(matrix))
    with pytest.raises(torch.linalg.LinAlgError, match="positive-definite"):
        compiled(-matrix)
