"""Checks of indices in kernels for GPUs hold for the elements that there are, and for no others."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from kiln.lower import index_checks
from tests.support.codegen_programs import graph_of
from tests.target.cuda_programs_on_cpu import compile_for_gpu_on_cpu


def padded(x, rows):
    """A mask that attention fills up: the columns are positions themselves."""
    columns = torch.arange(x.shape[1], device=x.device)
    return F.pad(x[rows[:, None], columns[None]], (0, 6))


def shifted(x, rows):
    columns = torch.arange(x.shape[1], device=x.device)
    return torch.cat([x[rows[:, None], columns[None]], x[rows].flip(1)], 1)


def spread(x, rows):
    columns = torch.arange(x.shape[1], device=x.device)
    return torch.ops.aten.slice_backward(x[rows[:, None], columns[None]], [rows.shape[0], 16], 1, 3, 14, 1)


def plain(x, rows):
    columns = torch.arange(x.shape[1], device=x.device)
    return x[rows[:, None], columns[None]] * 2


def gathered(x, rows):
    """The lengths are no multiples of a vector."""
    places = torch.arange(x.shape[1], device=x.device).expand(x.shape)
    return torch.gather(x, 1, places) + x, torch.gather(x, 1, places).softmax(1)


def along(x, rows):
    return x[0][(x[0] * 0).long() + torch.arange(x.shape[1], device=x.device)] * x[0].exp()


PROGRAMS = [padded, shifted, spread, plain, gathered, along]


@pytest.mark.parametrize("sizes", ["fake", "symbolic"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_elements_that_are_not_there(program, sizes):
    x = torch.randn(4, 11, generator=torch.Generator().manual_seed(0))
    given = x, torch.tensor([3, 0, 2, 1, 1, 2])
    found = compile_for_gpu_on_cpu(graph_of(program, given, sizes))(*given)
    expected = program(*given)
    for one, wanted in zip(found, expected if isinstance(expected, tuple) else (expected,), strict=True):
        torch.testing.assert_close(one, wanted)


def test_lanes_that_are_not_there(monkeypatch):
    """A check of its own, which is a reduction, would be in the same kernel, and such a kernel has no vectors."""
    monkeypatch.setattr(index_checks, "is_read_as_a_whole", lambda *_: True)
    given = torch.randn(1, 1003), torch.tensor([0])
    found = compile_for_gpu_on_cpu(graph_of(along, given, "symbolic"))(*given)
    torch.testing.assert_close(found[0], along(*given))


def test_a_wrong_index_still_stops_what_is_padded():
    given = torch.randn(4, 10), torch.tensor([3, 0, 4])
    with pytest.raises((AssertionError, RuntimeError), match="out of bounds"):
        compile_for_gpu_on_cpu(graph_of(padded, given))(*given)
