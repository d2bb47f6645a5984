"""``matmul`` where its kernel in C++ would read sizes as numbers: the operators and the results of ATen's own."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import kiln
from kiln.program.shapes import symbolic_kernels
from kiln.report import counters
from tests.support.releases import RELEASE

SHAPES = [
    ((6,), (6,)),
    ((4, 6), (6,)),
    ((6,), (6, 7)),
    ((4, 6), (6, 7)),
    ((2, 3, 4, 6), (2, 3, 6, 7)),
    ((2, 3, 4, 6), (6, 7)),
    ((2, 3, 4, 6), (6,)),
    ((4, 6), (2, 6, 7)),
    ((6,), (2, 3, 6, 7)),
    ((1, 3, 4, 6), (2, 1, 6, 7)),
    ((3, 4, 6), (1, 6, 7)),
    ((1, 4, 6), (3, 6, 7)),
    ((1, 4, 6), (1, 6, 7)),
    ((2, 3, 4, 6), (3, 6, 7)),
    ((3, 1, 6), (6, 7)),
    ((0, 3, 6), (6, 2)),
]
VIEWS = {"detach", "view", "_unsafe_view", "expand", "unsqueeze", "squeeze", "squeeze_", "transpose", "t", "alias"}


class Work(TorchDispatchMode):
    """The operators that run, without views."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        if name not in VIEWS:
            self.names.append(name)
        return function(*args, **(kwargs or {}))


def factors(shapes, is_transposed, needs_gradient):
    for shape, is_leaf in zip(shapes, needs_gradient, strict=True):
        generator = torch.Generator().manual_seed(len(shape))
        if is_transposed and len(shape) > 1:
            made = torch.randn(*shape[:-2], shape[-1], shape[-2], generator=generator).mT
        else:
            made = torch.randn(shape, generator=generator)
        yield made.requires_grad_(is_leaf)


@pytest.mark.skipif(RELEASE > (2, 13), reason="later releases fold other matrices, and do not need the rule")
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_the_same_operators(shapes):
    for is_transposed, *needs_gradient in itertools.product((False, True), repeat=3):
        x, y = factors(shapes, is_transposed, needs_gradient)
        with Work() as eager:
            expected = torch.matmul(x, y)
        with Work() as ours:
            found = symbolic_kernels.product(x, y)
        assert ours.names == eager.names
        assert torch.equal(found, expected) and found.stride() == expected.stride()
        assert found._is_view() == expected._is_view()


@pytest.mark.parametrize("reads_sizes", [False, True])
def test_batches_that_vary(monkeypatch, reads_sizes):
    if reads_sizes:
        monkeypatch.setattr(symbolic_kernels, "PRODUCTS_READ_SIZES", True)
    before = counters.copy()
    compiled = kiln.compile(torch.matmul, backend="aot_eager", dynamic=True)
    for batch, heads, length in ((2, 3, 4), (4, 2, 5), (3, 5, 2)):
        x = torch.randn(batch, heads, length, 6, requires_grad=True)
        for y in (torch.randn(batch, heads, 6, 7), torch.randn(6, 7)):
            expected, found = x @ y, compiled(x, y)
            torch.testing.assert_close(found, expected)
            torch.testing.assert_close(*(torch.autograd.grad(one.sum(), x)[0] for one in (found, expected)))
    assert counters["recompiles"] == before["recompiles"] + 1  # for the matrix


def test_numbers_are_no_factors():
    with pytest.raises(RuntimeError, match="both arguments to matmul need to be at least 1D"):
        symbolic_kernels.product(torch.tensor(1.0), torch.ones(2))
