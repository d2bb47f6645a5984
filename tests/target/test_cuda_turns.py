"""Kernels for GPUs whose threads take several points: what they compute, and which kernels those are."""

from __future__ import annotations

import pytest
import torch

from kiln.loops.ir import Access, iota, load, op
from kiln.loops.kernel import Kernel, Loop, Output
from kiln.target.cuda import kernel_plan
from kiln.target.cuda.kernel_plan import plan_of
from tests.target.kernel_runs import Memory
from tests.target.test_cuda_on_cpu import check


@pytest.fixture(autouse=True)
def few_threads(monkeypatch):
    monkeypatch.setattr(kernel_plan, "ENOUGH_THREADS", 8)


def rows_by_channels(rows: int, columns: int, shared: int, dtype=torch.bfloat16) -> tuple[Memory, Kernel]:
    """``x * weight + …`` with so many vectors of the channels."""
    memory = Memory()
    x = memory.add(torch.randn(rows, columns).to(dtype))
    out = memory.add(torch.zeros(rows, columns, dtype=dtype))
    value = op("cast", load(Access(x, (columns, 1), 0)), dtype=torch.float32)
    for _ in range(shared):
        weight = memory.add(torch.randn(columns))
        value = op("mul", value, load(Access(weight, (0, 1), 0)))
    value = op("add", value, op("cast", iota((1, 2)), dtype=torch.float32))
    output = Output(Access(out, (columns, 1), 0), op("cast", value, dtype=dtype), False)
    return memory, Kernel("k", (Loop(rows), Loop(columns)), (), (output,), 1)


@pytest.mark.parametrize(("rows", "columns"), [(64, 64), (48, 128), (8, 512), (56, 64), (128, 16), (12, 4096)])
@pytest.mark.parametrize("shared", [2, 4, 8])
def test_rows_that_share_weights(rows, columns, shared):
    memory, kernel = rows_by_channels(rows, columns, shared)
    turns = plan_of(kernel).turns
    assert turns is not None and turns.loop == 0 and rows % (turns.count * turns.apart) == 0
    check(memory, kernel)


def test_turns_by_what_is_shared():
    """As many as make what is shared no more than what each row has of its own."""
    counts = [plan.turns.count if plan.turns is not None else 1 for plan in map(plan_with, (0, 1, 2, 4, 8, 16))]
    assert counts == sorted(counts) and counts[:2] == [1, 1] and counts[-1] == 8


def plan_with(shared: int) -> kernel_plan.CudaPlan:
    return plan_of(rows_by_channels(256, 256, shared)[1])


def test_threads_are_enough(monkeypatch):
    monkeypatch.setattr(kernel_plan, "ENOUGH_THREADS", 1 << 20)
    assert plan_with(8).turns is None


@pytest.mark.parametrize("rows", [7, 9])
def test_rows_that_have_no_turns(rows):
    memory, kernel = rows_by_channels(rows, 64, 8)
    assert plan_of(kernel).turns is None
    check(memory, kernel)


@pytest.mark.parametrize(("rows", "columns"), [(5, 64), (9, 256), (3, 40), (1, 4096)])
def test_rows_by_index(rows, columns):
    memory = Memory()
    table = memory.add(torch.randn(20, columns))
    index = memory.load(torch.randint(20, (rows,)))
    out = memory.add(torch.zeros(rows, columns))
    index = load(Access(index.payload.buffer, (1, 0), 0))
    value = op(
        "mul", load(Access(table, (0, 1), 0, ((index, columns),))), load(Access(table, (0, 1), 0, ((index, columns),)))
    )
    kernel = Kernel("k", (Loop(rows), Loop(columns)), (), (Output(Access(out, (columns, 1), 0), value, False),), 1)
    turns = plan_of(kernel).turns
    assert turns is not None and turns.loop == 1
    check(memory, kernel)
