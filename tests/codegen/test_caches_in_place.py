"""Caches on a GPU that a program writes a few elements of: without a copy of the whole cache."""

from __future__ import annotations

import pytest
import torch

import kiln
from kiln.codegen import pipeline
from kiln.codegen.program_description import Describer
from kiln.lower.schedule.memory_plan import Plan, plan_memory
from kiln.target.cuda.cuda_target import CudaTarget
from tests.support.cuda_programs import CUDA, cuda_graph_of

aten = torch.ops.aten
CACHE, PLACE, NEW = torch.randn(2, 4, 64, 16), torch.tensor([3]), torch.randn(2, 4, 1, 16)


def planned(function, *inputs: torch.Tensor, is_for_gpu: bool = True) -> tuple[Plan, list]:
    """The plan and the steps of a function whose first result is the new content of its first input."""
    target = CudaTarget(CUDA)
    _, _, scheduled = pipeline.lower_for(cuda_graph_of(function, inputs), target, [])
    plan = plan_memory(scheduled, {0: 0}, is_for_gpu)
    return plan, Describer(scheduled, plan, target).run()["steps"] if is_for_gpu else []


def stored(cache, place, new):
    return aten.index_copy(cache, 2, place, new)


def test_only_new_elements_are_written():
    def f(cache, place, new):
        after = stored(cache, place, new)
        return after, after.sum(-1)

    plan, steps = planned(f, CACHE, PLACE, NEW)
    assert len(plan.written) == 1 and sum(not run for run in plan.runs) == 1
    written = next(iter(plan.written))
    allocated = [one.buffer for group in plan.allocations.values() for one in group]
    assert written not in allocated


def test_old_content_that_is_still_needed():
    def f(cache, place, new):
        after = stored(cache, place, new)
        return after, (after @ cache.transpose(-1, -2)).sum()

    plan, _ = planned(f, CACHE, PLACE, NEW)
    assert not plan.written and all(plan.runs)


def test_not_on_the_cpu():
    """There a bad index raises an error, and the input must be as it was."""
    plan, _ = planned(lambda *inputs: (stored(*inputs), inputs[0].new_ones(1)), CACHE, PLACE, NEW, is_for_gpu=False)
    assert not plan.written and all(plan.runs)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_caches_on_a_gpu():
    def step(keys, values, place, new):
        before = keys.sum()
        keys.index_copy_(2, place, new)
        values.index_copy_(2, place, new * 2)
        return before, (keys @ values.transpose(-1, -2)).sum(-1), keys.sum()

    compiled = kiln.compile(step, backend="kiln")
    found = [CACHE.clone().cuda(), CACHE.clone().cuda()]
    expected = [CACHE.clone().cuda(), CACHE.clone().cuda()]
    for place in range(6):
        at, new = torch.tensor([place], device="cuda"), torch.randn(2, 4, 1, 16, device="cuda")
        torch.testing.assert_close(compiled(*found, at, new), step(*expected, at, new))
        torch.testing.assert_close(found, expected)
