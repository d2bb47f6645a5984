"""Kernels on a GPU compute what the reference does."""

from __future__ import annotations

import functools

import pytest
import torch

from kiln.loops.ir import HALF_TYPES, Buffer
from kiln.loops.kernel import Kernel
from kiln.target.cuda import kernel_plan
from kiln.target.cuda.kernel_plan import NotOnGpu, plan_of
from tests.target.random_kernels import RandomKernel
from tests.target.random_row_kernels import RandomRowKernel
from tests.target.test_cuda_emit import row_sums, transposed

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

TOLERANCES = {
    torch.float16: {"rtol": 2e-2, "atol": 1e-2},
    torch.bfloat16: {"rtol": 5e-2, "atol": 5e-2},
    torch.float32: {"rtol": 1e-4, "atol": 1e-5},
    torch.float64: {"rtol": 1e-5, "atol": 1e-5},  # which may come from sums in float32
}


def compare(found: torch.Tensor, wanted: torch.Tensor, text: str) -> None:
    tolerance = TOLERANCES.get(wanted.dtype, {})
    torch.testing.assert_close(found, wanted, equal_nan=True, msg=lambda why: f"{text}\n{why}", **tolerance)


def is_written_in_any_order(kernel: Kernel, buffer: Buffer) -> bool:
    """Whether several points may write one element: on GPUs any of them may be the last."""
    return any(o.target.buffer is buffer and o.target.indirect and not o.accumulate for o in kernel.outputs)


@pytest.mark.parametrize("seed", range(300))
def test_random_kernel(seed, monkeypatch):
    from tests.target.cuda_runs import run_on_gpu

    made = RandomKernel(seed)
    kernel = made.kernel()
    if seed % 2:  # vectors as wide as those of large kernels
        monkeypatch.setattr(kernel_plan, "ENOUGH_THREADS", 8)
    try:
        plan_of(kernel)
    except NotOnGpu as reason:
        pytest.skip(f"no form on GPUs: {reason}")
    wanted = made.memory.expected(kernel)
    found = run_on_gpu(kernel, made.memory.tensors)
    for buffer, tensor in wanted.items():
        if not is_written_in_any_order(kernel, buffer):
            compare(found[buffer], tensor, kernel.text)


@pytest.mark.parametrize("seed", range(150))
@pytest.mark.parametrize("how", ["has_functions", "has_scans"])
def test_random_kernel_with_functions_or_scans(how, seed):
    from tests.target.cuda_runs import run_on_gpu

    made = RandomKernel(seed, **{how: True})
    kernel = made.kernel()
    wanted = made.memory.expected(kernel)
    found = run_on_gpu(kernel, made.memory.tensors)
    for buffer, tensor in wanted.items():
        if not is_written_in_any_order(kernel, buffer):
            compare(found[buffer], tensor, kernel.text)


@pytest.mark.parametrize("seed", range(120))
def test_random_rows(seed, monkeypatch):
    from tests.target.cuda_runs import run_on_gpu

    made = RandomRowKernel(seed)
    kernel = made.kernel()
    if seed % 4:
        monkeypatch.setattr(kernel_plan, "ENOUGH_THREADS", 8)
    if seed % 3 == 0:  # rows that do not stay in registers
        monkeypatch.setattr(kernel_plan, "MOST_COPIES", 0)
    wanted = made.memory.expected(kernel)
    found = run_on_gpu(kernel, made.memory.tensors)
    for buffer, tensor in wanted.items():
        tolerance = {"rtol": 3e-2, "atol": 3e-2} if tensor.dtype in HALF_TYPES else {"rtol": 2e-3, "atol": 2e-3}
        plan = plan_of(kernel)
        text = f"{kernel.text}\n{plan.lanes=} {plan.members=} {plan.copies=} {plan.at_once=}"
        message = functools.partial("{}\n{}".format, text)
        torch.testing.assert_close(found[buffer], tensor, equal_nan=True, msg=message, **tolerance)


@pytest.mark.parametrize("shape", [(64, 64), (128, 192), (16, 17), (100, 333), (40, 1000), (1, 500)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool])
def test_transposed(shape, dtype):
    from tests.target.cuda_runs import run_on_gpu

    kernel, memory = transposed(*shape, dtype, outer=3)
    source, target = kernel.buffers[0], kernel.outputs[0].target.buffer
    given = torch.randint(0, 2 if dtype is torch.bool else 100, (3, *shape)).to(dtype)
    found = run_on_gpu(kernel, {source: given, target: torch.zeros(3, *shape[::-1], dtype=dtype)})[target]
    assert torch.equal(found, given.transpose(1, 2))


@pytest.mark.parametrize("rows", [1, 3, 700])
@pytest.mark.parametrize("columns", [5, 64, 72, 200, 768, 770, 1000, 2056, 4096, 50304])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows(rows, columns, dtype):
    from tests.target.cuda_runs import run_on_gpu

    kernel = row_sums(rows, columns, dtype)
    given = torch.randn(rows, columns).to(dtype)
    out = torch.zeros(rows, columns)
    source, target = sorted(kernel.buffers, key=lambda buffer: buffer.name)
    found = run_on_gpu(kernel, {source: given, target: out})[target]
    wanted = given.double() - given.double().sum(1, keepdim=True)
    torch.testing.assert_close(found, wanted.float(), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("rows", [1, 7, 64, 1000])
@pytest.mark.parametrize("columns", [1, 5, 64, 72, 770, 4096])
def test_columns(rows, columns):
    from tests.target.cuda_runs import run_on_gpu

    kernel = row_sums(rows, columns, is_down=True)
    given = torch.randn(rows, columns)
    target = kernel.outputs[0].target.buffer
    source = next(buffer for buffer in kernel.buffers if buffer is not target)
    found = run_on_gpu(kernel, {source: given, target: torch.zeros(columns)})[target]
    torch.testing.assert_close(found, given.double().sum(0).float(), rtol=1e-4, atol=1e-4)
