"""Concatenations that are computed piece by piece on GPUs, compared with eager by the reference interpreter."""

from __future__ import annotations

import pytest
import torch

from kiln.loops import reference
from kiln.lower import pieces
from tests.support.codegen_programs import calls, launches
from tests.support.cuda_programs import cuda_scheduled_of


def rotated(x, cosine, sine):
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat((-second, first), -1) * sine


def randn(*shape, dtype=torch.float32):
    return torch.randn(*shape).to(dtype)


A, B, C = randn(4, 6, 32), randn(4, 6, 32), randn(4, 6, 32)
TABLE = [randn(6, 32), randn(6, 32)]

# A function, its inputs, and how many launches it takes.
PROGRAMS = {
    "rotary": (rotated, [A, *TABLE], 1),
    "rotary of two": (lambda q, k, c, s: (rotated(q, c, s), rotated(k, c, s)), [A, B, *TABLE], 1),
    "rotary of low types": (rotated, [A.bfloat16(), TABLE[0].bfloat16(), TABLE[1].bfloat16()], 1),
    "gradients of projections": (
        lambda q, k, v: (
            torch.stack([q, k, v]).permute(1, 2, 0, 3).clone(memory_format=torch.contiguous_format).view(24, 96)
        ),
        [A, B, C],
        1,
    ),
    "a stack of concatenations": (
        lambda a, b, c: torch.stack([torch.cat([a, -b], -1), torch.cat([b, c], -1), torch.cat([c, a * 2], -1)], 1),
        [A, B, C],
        1,
    ),
    "of another type": (lambda a, b: torch.cat([a, b.half()], 1) + 1, [A, B], 1),
    "a narrower type": (lambda a, b: torch.cat([a, b], 1).half() * 2, [A, B], 1),
    "read twice": (lambda a, b: (torch.cat([a, b], 1) + 1, torch.cat([a, b], 1).exp()), [A, B], 1),
    "one value read twice": (lambda a, b: (lambda c: (c + 1) * c.exp())(torch.cat([a, b], 1)), [A, B], 2),
    "two concatenations": (lambda a, b, c: torch.cat([a, b], 1) * torch.cat([c, a], 1), [A, B, C], 1),
    "cut elsewhere": (
        lambda a, b, c: torch.cat([a, b], 1) * torch.cat([c.narrow(1, 0, 3), a, b.narrow(1, 0, 3)], 1),
        [A, B, C],
        None,
    ),
    "broadcast": (lambda a, b, c: torch.cat([a, b], 1) * c.narrow(1, 0, 1), [A, B, C], 1),
    "broadcast along the pieces": (lambda a, b, c: torch.cat([a, b], 2) * c.narrow(2, 0, 1), [A, B, C], 1),
    "broadcast to more": (
        lambda a, b, c: torch.cat([a.narrow(0, 0, 1), b.narrow(0, 0, 1)], 1) * c.new_ones(4, 12, 1),
        [A, B, C],
        None,
    ),
    "transposed": (lambda a, b: torch.cat([a, b], 1).transpose(1, 2) + 1, [A, B], 1),
    "a matrix transposed": (
        lambda a, b: (
            torch.cat([a.select(0, 0), b.select(0, 0)], 0).t().clone(memory_format=torch.contiguous_format) * 2
        ),
        [A, B],
        1,
    ),
    "unsqueezed": (lambda a, b: torch.cat([a, b], 0).unsqueeze(1).unsqueeze(-1) * 3, [A, B], 1),
    "a result and its view": (
        lambda a, b: (lambda c: (c, c.t()))(torch.cat([a.select(0, 0), b.select(0, 0)], 0)),
        [A, B],
        1,
    ),
    "only a view": (lambda a, b: torch.cat([a.select(0, 0), b.select(0, 0)], 0).t(), [A, B], 1),
    "summed": (lambda a, b: (torch.cat([a, b], 2) * 2).sum(-1), [A, B], 2),
    "sliced": (lambda a, b: torch.cat([a, b], 2).narrow(2, 10, 40) + 1, [A, B], None),
    "of a product": (lambda a, b: torch.cat([a.select(0, 0), b.select(0, 0)], 0) @ a.select(0, 0).t(), [A, B], 1),
    "where": (lambda a, b, c: torch.where(torch.cat([a > 0, b > 0], 1), torch.cat([b, c], 1), 0.0), [A, B, C], None),
    "short rows": (lambda a, b: torch.cat([a.narrow(-1, 0, 3), b.narrow(-1, 0, 5)], -1) * 2, [A, B], None),
    "empty pieces": (lambda a, b: torch.cat([a.narrow(1, 0, 0), b, a.narrow(1, 0, 0)], 1) * 2, [A, B], 1),
    "rounded": (lambda a, b: torch.cat([a, b], 1).round() + torch.cat([a, b], 1).floor(), [A, B], 1),
    "as strided": (
        lambda a, b: torch.cat([a.select(0, 0), b.select(0, 0)], 0).t().as_strided((5, 4), (32, 1), 7) + 1,
        [A, B],
        None,
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_pieces(name):
    function, inputs, count = PROGRAMS[name]
    scheduled = cuda_scheduled_of(function, inputs)
    expected = function(*inputs)
    expected = list(expected) if isinstance(expected, tuple) else [expected]
    found = reference.run(scheduled, inputs)
    assert [one.stride() for one in found] == [one.stride() for one in expected]
    torch.testing.assert_close(list(found), expected, rtol=1e-5, atol=1e-5)
    assert all(name.startswith("aten.mm") for name in calls(scheduled))
    if count is not None:
        assert len(launches(scheduled)) == count


def test_many_pieces_are_written_at_once():
    inputs = [randn(4, 32) for _ in range(pieces.MOST_PIECES + 1)]
    scheduled = cuda_scheduled_of(lambda *given: torch.cat(given, 0) * 2, inputs)
    (found,) = reference.run(scheduled, inputs)
    torch.testing.assert_close(found, torch.cat(inputs, 0) * 2)


def test_sizes_that_vary():
    inputs = [randn(3, 32), randn(5, 32)]
    scheduled = cuda_scheduled_of(lambda a, b: torch.cat([a, b], 0) * 2 + 1, inputs, dynamic=True)
    assert len(launches(scheduled)) <= 2
