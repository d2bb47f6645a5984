"""Values that a GPU's kernels compute again instead of loading them, computed by the reference interpreter."""

from __future__ import annotations

import pytest
import torch

from kiln.loops import reference
from tests.support.codegen_programs import launches
from tests.support.cuda_programs import cuda_scheduled_of

aten = torch.ops.aten


def every_second(x, index):
    return aten.slice_backward(x * 2, [8, 16], 1, 0, 16, 2)


def at_places(x, index):
    return torch.zeros(8, 16, device=x.device).index_add(1, index, x)


def into_a_clone(x, index):
    whole = torch.cat([x, x], 1)
    return aten.slice_scatter(whole, x * 3, 1, 1, 16, 2)


def filled(x, index):
    return aten.constant_pad_nd(x, [3, 5], 1.5)


@pytest.mark.parametrize("made", [every_second, at_places, into_a_clone, filled], ids=lambda made: made.__name__)
def test_memory_that_is_written_in_several_steps_is_read(made):
    """Its first contents, often zeros, are cheap, and are not what the readers have to see."""

    def program(x, index):
        y = made(x, index)
        return y * torch.softmax(y, -1), y.cos() + 1, (y + x.sum()).sum(0)

    given = torch.randn(8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(1, 16, 2)
    found = reference.run(cuda_scheduled_of(program, given), given)
    for one, wanted in zip(found, program(*given), strict=True):
        torch.testing.assert_close(one, wanted)


def made_by(launch):
    return [launch.buffers[launch.kernel.buffers.index(output.target.buffer)] for output in launch.kernel.outputs]


def test_a_cheap_value_is_not_stored():
    def program(x, scale):
        y = (x * scale).relu()
        return y.sum(0), y.amax(1)

    x, scale = torch.randn(32, 32), torch.randn(32)
    scheduled = cuda_scheduled_of(program, [x, scale])
    assert (32, 32) not in {tuple(buffer.shape) for launch in launches(scheduled) for buffer in made_by(launch)}
    for one, wanted in zip(reference.run(scheduled, [x, scale]), program(x, scale), strict=True):
        torch.testing.assert_close(one, wanted)
