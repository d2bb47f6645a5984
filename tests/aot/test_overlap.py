"""Operations that read memory which they write: torch refuses most; whatever it does, the compiled program does."""

import pytest
import torch

from kiln.testing import check


def shifted(x):
    x[1:].copy_(x[:-1])
    return x


def shifted_sum(x):
    x[1:].add_(x[:-1])
    return x


def turned(x):
    x.add_(x.t())
    return x


def by_itself(x):
    x.mul_(x)
    x[:2].add_(x[:2])
    return x


def disjoint(x):
    x[:2].add_(x[2:])
    return x


def result_among_arguments(x):
    torch.add(x[:2], x[1:3], out=x[:2])
    return x


PROGRAMS = [shifted, shifted_sum, turned, by_itself, disjoint, result_among_arguments]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("computed", [False, True], ids=["plain", "computed"])
def test_overlap(program, computed):
    def setup():
        def whole(x):
            return program(x.sin() if computed else x)

        return whole, [(torch.arange(16.0).view(4, 4) / 16,), (torch.ones(4, 4),)]

    check(setup=setup, backend="aot_eager")
