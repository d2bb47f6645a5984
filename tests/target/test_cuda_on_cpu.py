"""Kernels for GPUs compute what the reference does, on a machine without one: threads, shuffles, barriers, atomics."""

from __future__ import annotations

import pytest
import torch

from kiln.loops.ir import HALF_TYPES, Access, op, running
from kiln.loops.kernel import Kernel, Loop, Output, Reduction
from kiln.target.cuda import kernel_plan
from kiln.target.cuda.kernel_plan import NotOnGpu, plan_of
from tests.target.cuda_on_cpu import run_as_on_gpu
from tests.target.kernel_runs import Memory
from tests.target.random_kernels import RandomKernel, with_symbols
from tests.target.random_row_kernels import RandomRowKernel
from tests.target.test_cuda_emit import transposed
from tests.target.test_cuda_kernels import compare, is_written_in_any_order

MOST_THREADS = 3000  # of all blocks


def check(memory: Memory, kernel: Kernel) -> None:
    wanted = memory.expected(kernel)
    found = run_as_on_gpu(kernel, memory.tensors)
    for buffer, tensor in wanted.items():
        if not is_written_in_any_order(kernel, buffer):
            compare(found[buffer], tensor, kernel.text)


def check_random(made: RandomKernel) -> None:
    kernel = made.kernel()
    try:
        plan = plan_of(kernel)
    except NotOnGpu as reason:
        pytest.skip(f"no form on GPUs: {reason}")
    if plan.blocks * plan.threads > MOST_THREADS:  # type: ignore[operator]
        pytest.skip("takes long")
    check(made.memory, kernel)


@pytest.mark.parametrize("seed", range(16))
def test_random_kernel(seed):
    check_random(RandomKernel(seed))


@pytest.mark.parametrize("is_dynamic", [False, True])
@pytest.mark.parametrize("seed", range(24))
def test_random_rows(seed, is_dynamic, monkeypatch):
    """Rows and columns as in norms and softmaxes, with wide vectors; some rows in loops."""
    monkeypatch.setattr(kernel_plan, "ENOUGH_THREADS", 8)
    if seed % 2:
        monkeypatch.setattr(kernel_plan, "MOST_COPIES", 0)
    made = RandomRowKernel(seed)
    kernel, sizes = with_symbols(made.kernel(), seed) if is_dynamic else (made.kernel(), {})
    plan = plan_of(kernel)
    blocks = plan.blocks if isinstance(plan.blocks, int) else int(plan.blocks.subs(sizes))
    if blocks * plan.threads > MOST_THREADS:
        pytest.skip("takes long")
    wanted = made.memory.expected(kernel, sizes)
    found = run_as_on_gpu(kernel, made.memory.tensors, sizes)
    for buffer, tensor in wanted.items():
        tolerance = 3e-2 if tensor.dtype in HALF_TYPES else 2e-3
        torch.testing.assert_close(found[buffer], tensor, equal_nan=True, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", [(64, 64), (100, 130), (16, 17), (40, 200)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_transposed(shape, dtype, monkeypatch):
    monkeypatch.setattr(kernel_plan, "ENOUGH_THREADS", 8)
    kernel, _ = transposed(*shape, dtype)
    assert plan_of(kernel).tile is not None
    source, target = kernel.buffers[0], kernel.outputs[0].target.buffer
    given = torch.randint(0, 2 if dtype is torch.bool else 100, (1, *shape)).to(dtype)
    found = run_as_on_gpu(kernel, {source: given, target: torch.zeros(1, *shape[::-1], dtype=dtype)})[target]
    assert torch.equal(found, given.transpose(1, 2))


@pytest.mark.parametrize("seed", [177, 256])
def test_kernels_that_were_wrong_on_a_gpu(seed):
    """With machine code of NVIDIA's assembler; the code that LLVM makes of them was always right."""
    check_random(RandomKernel(seed))


@pytest.mark.parametrize("seed", range(300, 308))
def test_random_kernel_with_functions(seed):
    check_random(RandomKernel(seed, has_functions=True))


@pytest.mark.parametrize("seed", [0, 4, 8, 21, 34, 43])
def test_random_scan(seed):
    check_random(RandomKernel(seed, has_scans=True))


@pytest.mark.parametrize(
    ("kind", "rows", "columns"), [("sum", 3, 40), ("max", 3, 40), ("prod", 2, 300), ("max", 1, 520), ("sum", 1, 2100)]
)
def test_scans_of_rows(kind, rows, columns):
    memory = Memory()
    given = torch.randint(-9, 9, (rows, columns))
    out = memory.add(torch.zeros(rows, columns, dtype=torch.int64))
    scan = Reduction(0, kind, memory.load(given), torch.int64, is_scan=True)
    output = Output(Access(out, (columns, 1), 0), running(0, torch.int64), True)
    check(memory, Kernel("k", (Loop(rows), Loop(columns, True)), (scan,), (output,), 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.int16, torch.uint8])
@pytest.mark.parametrize("how", ["add", "mul", "max", "min"])
def test_combinations_by_several_threads(how, dtype):
    memory = Memory()
    target = memory.add(torch.ones(7, dtype=dtype))
    index = memory.load(torch.randint(0, 7, (200,)))
    given = torch.where(torch.rand(200) < 0.5, 2.0, 1.0 if dtype.is_floating_point else 3.0).to(dtype)
    if dtype.is_floating_point:
        given = torch.where(torch.rand(200) < 0.5, given, 1 / given)
    value = memory.load(given)
    output = Output(Access(target, (0,), 0, ((index, 1),)), op("mul", value, value), False, how)
    check(memory, Kernel("k", (Loop(200),), (), (output,), None))
