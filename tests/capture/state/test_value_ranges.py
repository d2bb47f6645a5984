"""Branches on uniform random numbers: decided while tracing only where no draw could decide otherwise."""

import operator

import pytest
import torch

from kiln.testing import check

X = torch.arange(3.0)

DECIDED = [
    (operator.lt, 0.0),
    (operator.lt, -1),
    (operator.lt, 1.0),
    (operator.ge, 0.0),
    (operator.ge, 2),
    (operator.le, -0.5),
    (operator.le, 1.0),
    (operator.gt, -0.5),
    (operator.gt, 1.0),
]


@pytest.mark.parametrize("compare, limit", DECIDED, ids=str)
def test_decided_branches_draw_all_the_same(compare, limit):
    def program(x):
        if compare(torch.rand([]), limit):
            return x + torch.rand(3)
        return x - torch.rand(3)

    check(program, X, calls=2, fullgraph=True)


@pytest.mark.parametrize("compare, limit", [(operator.lt, 0.5), (operator.le, 0.0), (operator.gt, 0.0)], ids=str)
def test_open_branches_break(compare, limit):
    def program(x):
        return x + 1 if compare(torch.rand([]), limit) else x - 1

    assert check(program, X, calls=2).breaks == 1


def test_a_number_that_was_changed_is_another():
    def program(x):
        drawn = torch.rand([])
        drawn.sub_(2)
        return x + 1 if drawn < 0.0 else x - 1

    assert check(program, X).breaks == 1
