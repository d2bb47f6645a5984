"""Norms of few rows on GPUs, as in generating text: one kernel that loads all it needs at once."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from kiln.loops.steps import Launch
from kiln.target.cuda.cuda_module import emit_module
from kiln.target.cuda.kernel_plan import plan_of
from kiln.target.cuda.ptx import compile_ptx
from tests.support.cuda_programs import cuda_scheduled_of
from tests.target.cuda_on_cpu import run_as_on_gpu


def norm(x, y, weight, bias):
    z = x + y
    return z, F.layer_norm(z, z.shape[-1:], weight, bias)


def root_mean_square(x, y, weight, bias):
    z = (x + y).float()
    return x + y, (z * torch.rsqrt(z.pow(2).mean(-1, keepdim=True) + 1e-6) * weight + bias).to(x.dtype)


def inputs_of(rows, columns, dtype, kept_dtype):
    torch.manual_seed(0)
    wide = [torch.randn(rows, columns, dtype=dtype) for _ in range(2)]
    return [*wide, *(torch.randn(columns, dtype=kept_dtype) for _ in range(2))]


def only_launch(function, inputs):
    scheduled = cuda_scheduled_of(function, inputs)
    (launch,) = scheduled.steps
    assert isinstance(launch, Launch) and launch.sizes == ()
    return scheduled, launch


@pytest.mark.parametrize(("rows", "columns"), [(1, 768), (3, 200), (1, 1000), (2, 36)])
@pytest.mark.parametrize("kept_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("function", [norm, root_mean_square])
def test_results_are_those_of_eager(function, rows, columns, kept_dtype):
    dtype = kept_dtype if function is norm else torch.bfloat16
    inputs = inputs_of(rows, columns, dtype, kept_dtype)
    scheduled, launch = only_launch(function, inputs)
    assert plan_of(launch.kernel).early
    given = dict(zip(scheduled.inputs, inputs, strict=True))
    made = [view.buffer for view in scheduled.outputs]
    given |= {buffer: torch.zeros(rows, columns, dtype=dtype) for buffer in made}
    of_kernel = dict(zip(launch.kernel.buffers, launch.buffers, strict=True))
    found = run_as_on_gpu(launch.kernel, {mine: given[actual] for mine, actual in of_kernel.items()})
    by_actual = {of_kernel[mine]: tensor for mine, tensor in found.items()}
    tolerance = 1e-5 if dtype is torch.float32 else 2e-2
    for buffer, expected in zip(made, function(*inputs), strict=True):
        torch.testing.assert_close(by_actual[buffer], expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("rows", "columns"), [(1, 768), (8, 768), (1, 4096), (16, 4096), (8, 12000)])
def test_a_row_stays_in_registers_and_everything_is_loaded_first(rows, columns):
    _, launch = only_launch(norm, inputs_of(rows, columns, torch.bfloat16, torch.bfloat16))
    plan = plan_of(launch.kernel)
    assert plan.copies and plan.blocks == rows
    text = compile_ptx(emit_module({"k": launch.kernel}), "sm_90").decode()
    if columns <= 4096:
        assert len(plan.early) == 2 and text.rindex("ld.global") < text.index("shfl.sync")
        assert text.count("ld.global") == 4 * plan.copies


def test_many_rows_load_in_each_phase_what_it_needs():
    """Other rows keep the memory busy, and registers are better left to them."""
    _, launch = only_launch(norm, inputs_of(8192, 768, torch.bfloat16, torch.bfloat16))
    assert plan_of(launch.kernel).copies and not plan_of(launch.kernel).early


def test_lengths_of_rows_that_are_read_once_are_arguments():
    scheduled = cuda_scheduled_of(lambda x, y: (x.sum(), y.sum()), [torch.randn(768), torch.randn(2304)])
    assert len(scheduled.kernels) == 1
