"""Code as people wrote it years ago, and loops over chunks."""

import pytest
import torch

from kiln.testing import check


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x + torch.Tensor([1.0, 2.0]),
        lambda x: x * torch.LongTensor([[1, 2], [3, 4]]),
        lambda x: torch.FloatTensor(2, x.shape[0]).fill_(3) + x,
        lambda x: x + torch.Tensor(2).zero_(),
        lambda x: isinstance(x, torch.FloatTensor) * x,
    ],
)
def test_tensors_made_by_their_old_classes(program):
    check(program, torch.ones(2), fullgraph=True, graphs=1)


@pytest.mark.parametrize(
    "program",
    [lambda x: x + torch.Tensor(x.tolist()), lambda x: torch.Tensor(x), lambda x: x + torch.Tensor([x[0], 2])],
)
def test_what_old_classes_take_besides_is_left_to_python(program):
    check(program, torch.ones(2), grads=False)


def test_a_loop_over_chunks_is_one_graph_for_as_many_chunks():
    def chunks(x):
        return sum(x[:, start : start + 4].max() for start in range(0, x.shape[1], 4))

    check(chunks, calls=[(torch.randn(2, n),) for n in (9, 10, 11, 10)], graphs=2, recompiles=1)
    check(chunks, calls=[(torch.randn(2, n),) for n in (9, 10, 14, 15)], graphs=3, recompiles=2)


def test_a_range_that_is_kept_knows_where_it_stops():
    def kept(x):
        steps = range(0, x.shape[0], 4)
        return x.sum() + steps.stop, len(steps), str(steps)

    check(kept, calls=[(torch.randn(n),) for n in (9, 10, 11)])


def test_whether_processes_form_a_group_is_asked_for():
    def reduce(x):
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.all_reduce(x)
        return x * 2

    check(reduce, torch.ones(2), fullgraph=True, graphs=1)
