"""Vectors reach beyond the end of a row: what is computed there must not be seen, whatever it would be of zeros."""

import pytest
import torch

import kiln

FUNCTIONS = {
    "quotient": lambda x, y: x / y,
    "log": lambda x, y: (x.abs() * y).log(),
    "rsqrt": lambda x, y: (x * x).rsqrt() * y,
    "pow": lambda x, y: x.abs() ** -y,
    "remainder": lambda x, y: torch.remainder(x, y),
    "fmod": lambda x, y: torch.fmod(x, y),
    "angle": lambda x, y: torch.atan2(x, y) / y.abs(),
    "whole numbers": lambda x, y: ((x * 50).long() // (y.abs() * 9 + 1).long()).to(x.dtype),
}
KINDS = {"sum": torch.sum, "max": torch.amax, "min": torch.amin}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_rows_of_all_lengths(name, dtype):
    torch.manual_seed(0)
    function = FUNCTIONS[name]

    def program(x, y):
        z = function(x, y)
        return [reduce(z, 1) for reduce in KINDS.values()] + [z]

    for length in (1, 7, 8, 9, 15, 16, 17, 31, 33, 47, 49):
        x, y = torch.rand(3, length).to(dtype) + 0.5, torch.rand(3, length).to(dtype) + 1
        compiled = kiln.compile(program, backend="kiln", dynamic=False)
        for found, wanted in zip(compiled(x, y), program(x, y), strict=True):
            torch.testing.assert_close(found, wanted, rtol=2e-2 if dtype is torch.bfloat16 else 1e-5, atol=1e-4)
        kiln.reset()
