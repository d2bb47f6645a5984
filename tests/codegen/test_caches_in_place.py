"""Caches on a GPU that a program writes a few elements of: without a copy of the whole cache."""

from __future__ import annotations

import pytest
import torch

import kiln
from kiln.codegen import pipeline
from kiln.codegen.program_description import Describer
from kiln.loops.reference import Reference
from kiln.loops.steps import Launch
from kiln.lower.schedule.memory_plan import Plan, plan_memory
from kiln.target.cuda.cuda_target import CudaTarget
from tests.support.cuda_programs import CUDA, cuda_graph_of, cuda_scheduled_of
from tests.target.cuda_on_cpu import run_as_on_gpu

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


def both(keys, values, place, new):
    key, value = new.unbind(0)
    keys, values = aten.index_copy(keys, 2, place, key), aten.index_copy(values, 2, place, value)
    return keys, values, (keys @ values.transpose(-1, -2)).sum(-1)


PAIR = (CACHE, CACHE.flip(0).contiguous(), PLACE, torch.randn(2, 2, 4, 1, 16))


def test_new_keys_and_values_are_one_launch():
    target = CudaTarget(CUDA)
    _, _, scheduled = pipeline.lower_for(cuda_graph_of(both, PAIR), target, [])
    plan = plan_memory(scheduled, {0: 0, 1: 1}, is_for_gpu=True)
    scatters = [run for run in plan.runs for launch in run if is_scatter_launch(launch)]
    assert len(plan.written) == 2 and len(scatters) == 1 and len(scatters[0][0].kernel.outputs) == 2
    launches = [step for step in Describer(scheduled, plan, target).run()["steps"] if step[0].startswith("cuda")]
    assert len(launches) == 1 + sum(not is_scatter_launch(one) for run in plan.runs for one in run if is_launch(one))
    for found, expected in zip(Reference(scheduled, PAIR).run(), both(*PAIR), strict=True):
        torch.testing.assert_close(found, expected)


def test_the_kernel_of_keys_and_values():
    scheduled = cuda_scheduled_of(lambda *given: both(*given)[:2], PAIR)
    (launch,) = [step for step in scheduled.steps if is_scatter_launch(step)]
    given = {buffer: torch.randn(buffer.span).to(buffer.dtype) for buffer in launch.buffers}
    place = next(buffer for buffer in launch.buffers if not buffer.dtype.is_floating_point)
    given[place] = PLACE
    given |= dict(zip(scheduled.inputs[3:], [PAIR[3].flatten()], strict=True))
    found = run_as_on_gpu(launch.kernel, {mine: given[own] for mine, own in pairs_of(launch)})
    for number, output in enumerate(launch.kernel.outputs):
        (own,) = [own for mine, own in pairs_of(launch) if mine is output.target.buffer]
        expected = given[own].view(CACHE.shape).index_copy(2, PLACE, PAIR[3][number])
        assert torch.equal(found[output.target.buffer].view(CACHE.shape), expected)


def test_scatters_that_add_stay_apart():
    """They are atomics, and eager's order of dimensions with them is another one."""

    def f(keys, values, place, new):
        return aten.index_add(keys, 2, place, new.select(0, 0)), aten.index_add(values, 2, place, new.select(0, 1))

    scheduled = cuda_scheduled_of(f, PAIR)
    assert len([step for step in scheduled.steps if is_scatter_launch(step)]) == 2


def test_a_scatter_of_what_another_one_wrote():
    def f(keys, values, place, new):
        keys = aten.index_copy(keys, 2, place, new.select(0, 0))
        return keys, aten.index_copy(values, 2, place, new.select(0, 1) + keys.narrow(2, 3, 1))

    given = [one.clone() for one in PAIR]
    scheduled = cuda_scheduled_of(f, given)
    assert len([step for step in scheduled.steps if is_scatter_launch(step)]) == 2
    for found, expected in zip(Reference(scheduled, given).run(), f(*given), strict=True):
        torch.testing.assert_close(found, expected)


def pairs_of(launch):
    return zip(launch.kernel.buffers, launch.buffers, strict=True)


def is_launch(step):
    return isinstance(step, Launch)


def is_scatter_launch(step):
    return is_launch(step) and any(output.target.indirect for output in step.kernel.outputs)


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
