"""Reductions of several whole tensors on a GPU: few kernels, few launches, the same results."""

from __future__ import annotations

import pytest
import torch

from kiln.loops import ir
from kiln.loops.ir import Access, Buffer
from kiln.loops.kernel import Kernel, Loop, Output
from kiln.loops.philox import Draws
from kiln.loops.reference import Reference
from kiln.loops.steps import Launch
from kiln.lower.schedule.kernel_arguments import with_arguments
from kiln.lower.schedule.memory_plan import plan_memory
from kiln.lower.schedule.whole_reductions import LEAST_ROW, MOST_ROWS, row_length
from kiln.target.cuda.cuda_module import emit_module
from kiln.target.cuda.ptx import compile_ptx
from tests.support.cuda_programs import cuda_scheduled_of

SHAPES = ((768,), (256, 768), (3, 5), (7,), (1,), (512, 512), (384, 768), (77, 1001), (16384, 4), (2304,), ())


def tensors(shapes=SHAPES):
    torch.manual_seed(0)
    return [torch.randn(shape) for shape in shapes]


def launched(function, inputs):
    scheduled = cuda_scheduled_of(function, inputs)
    assert all(isinstance(step, Launch) for step in scheduled.steps)
    return scheduled, plan_memory(scheduled, is_for_gpu=True)


def norms(*xs):
    return torch.stack(torch._foreach_norm(xs, 2.0))


def clipped(*xs):
    total = torch.linalg.vector_norm(norms(*xs))
    return torch._foreach_mul(xs, torch.clamp(1.0 / (total + 1e-6), max=1.0))


def largest(*xs):
    return torch.stack([x.abs().amax() for x in xs])


def is_finite(*xs):
    return torch.stack([x.isfinite().all() for x in xs]).all()


def scaled(*xs):
    *xs, scale = xs
    return [(x * scale).sum() for x in xs]


def unscaled(*xs):
    *xs, scale = xs
    found, flag = torch.ops.aten._amp_foreach_non_finite_check_and_unscale(xs, torch.zeros_like(scale), scale)
    return *found, flag


def both(*xs):
    """What else is computed of a tensor that is reduced, also of a part of it and of another one."""
    made = [(x * 2, x + y if x.shape == y.shape else x, (x * x).sum()) for x, y in zip(xs, xs[1:], strict=False)]
    return [one for three in made for one in three]


FUNCTIONS = [norms, clipped, largest, is_finite, scaled, unscaled, both]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda one: one.__name__)
def test_results(function):
    inputs = tensors()
    scheduled, plan = launched(function, inputs)
    wanted = function(*inputs)
    found = Reference(scheduled, inputs).run()
    for one, other in zip(found, wanted if isinstance(wanted, (list, tuple)) else [wanted], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    emitted = emit_module({kernel.name: kernel for kernel in scheduled.kernels})
    assert compile_ptx(emitted, "sm_90").count(b".entry") == len(scheduled.kernels)


def test_tensors_of_a_model_take_few_launches():
    """12 shapes of 60 tensors: rows, sums of rows, small tensors, the norm of norms, the products."""
    shapes = [(64 * width, 256) for width in range(4, 10)] + [(128 * width,) for width in range(1, 7)]
    inputs = tensors(shapes * 5)
    scheduled, plan = launched(clipped, inputs)
    assert len(scheduled.kernels) == 5
    assert [len(run) for run in plan.runs] == [30, 30, 30, 1, 60]


def test_what_a_gradient_scaler_does_reads_gradients_once():
    shapes = [(64 * width, 256) for width in range(4, 10)] + [(128 * width,) for width in range(1, 7)]
    scheduled, plan = launched(unscaled, [*tensors(shapes * 5), torch.tensor(0.5)])
    assert sorted(len(run) for run in plan.runs) == [1, 30, 30, 30]
    assert sum(buffer.kind == "input" for step in scheduled.steps for buffer in step.buffers[:1]) == 60


@pytest.mark.parametrize("place", [None, (0, 5), (1, 100_000), (2, 0)])
@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_elements_that_are_not_finite(place, value):
    inputs = [*tensors(((768,), (512, 256), (4,), (7, 7))), torch.tensor(0.25)]
    if place is not None:
        inputs[place[0]].view(-1)[place[1]] = value
    scheduled, _ = launched(unscaled, inputs)
    *found, flag = Reference(scheduled, inputs).run()
    assert flag.item() == (place is not None)
    for one, given in zip(found, inputs, strict=False):
        torch.testing.assert_close(one, given * 0.25, rtol=0, atol=0, equal_nan=True)


def test_one_reduction_shares_a_kernel_with_what_else_reads_its_tensor():
    x = torch.randn(1024, 768)
    scheduled, _ = launched(lambda x: (x.exp(), (x * x).sum()), [x])
    assert any(len(step.kernel.outputs) == 2 for step in scheduled.steps)


def test_layouts_that_are_not_contiguous():
    inputs = [torch.randn(512, 256).t() for _ in range(5)] + [torch.randn(512, 512)[:, ::2] for _ in range(5)]
    scheduled, _ = launched(norms, inputs)
    torch.testing.assert_close(Reference(scheduled, inputs).run()[0], norms(*inputs), rtol=2e-5, atol=0)


def test_lengths_of_rows():
    for total in (2**16, 768 * 768, 50304 * 768, 1024 * 768, 2**30, 3 * 2**28, 2**16 + 8192):
        length = row_length(total)
        assert length >= LEAST_ROW and total % length == 0
        assert total // length <= MOST_ROWS or total % (2 * length)
    assert row_length(77 * 1001 * 100) == 0 and row_length(2**16 + 4096) == 0


def test_reductions_over_products_are_fused_with_them():
    """A tensor that a kernel makes is reduced where it is made."""
    inputs = [torch.randn(512, 256) for _ in range(6)]
    scheduled, plan = launched(lambda *xs: [x.exp().sum() for x in xs], inputs)
    buffers = {buffer for step in scheduled.steps for buffer in step.buffers if buffer.kind == "made"}
    assert all(torch.Size(buffer.shape).numel() < 512 * 256 for buffer in buffers)
    assert len(plan.runs) == 2


def test_drawn_numbers_keep_their_places():
    """Seed and offset of random numbers are parameters of a kernel, not numbers in memory."""
    buffer = Buffer("drawn", torch.int64, (2,), (1,), "drawn")
    numbers = Buffer("numbers", torch.float32, (4,), (1,), "input")
    result = Buffer("result", torch.float32, (256,), (1,), "made")
    seed, offset = (ir.load(Access(buffer, (0,), place)) for place in (0, 1))
    bits = ir.philox(seed, offset, ir.iota((1,)), Draws(256, 256, 1, False))
    value = ir.op("mul", ir.op("cast", bits, dtype=torch.float32), ir.load(Access(numbers, (0,), 3)))
    kernel = Kernel("k", (Loop(256),), (), (Output(Access(result, (1,), 0), value, True),), 0, ())
    found, sizes = with_arguments(kernel, "cuda")
    places = {access.buffer: [] for access in found.accesses()}
    for access in found.accesses():
        places[access.buffer].append(access.offset)
    assert sorted(places[buffer]) == [0, 1]
    assert not isinstance(places[numbers][0], int) and sizes == (256, 3)
