"""Kernels write where they should and nowhere else: rows of all lengths, in memory with a border around it."""

from __future__ import annotations

import pytest
import torch

from kiln.loops import ir
from kiln.loops.ir import Access, Buffer
from kiln.loops.kernel import Kernel, Loop, Output
from tests.target.kernel_runs import run_kernel

TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int8, torch.bool)
BORDER, MARK = 64, 1


def tail_kernel(length: int, stride: int, given: torch.dtype, made: torch.dtype) -> Kernel:
    """Two rows, cast from one type to another, from contiguous memory to memory with a stride."""
    source = Buffer("source", given, (2, length), (length, 1), "input", 0)
    target = Buffer("target", made, (2, length), (stride * length, stride), "made")
    value = ir.op("cast", ir.load(Access(source, (length, 1), 0)), dtype=made)
    output = Output(Access(target, (stride * length, stride), 0), value, True)
    return Kernel("tail", (Loop(2), Loop(length)), (), (output,), 1)


@pytest.mark.parametrize("made", TYPES, ids=str)
@pytest.mark.parametrize("given", (torch.float32, torch.int64), ids=str)
def test_tails(given: torch.dtype, made: torch.dtype) -> None:
    for length in (1, 7, 17, 33, 47):
        for stride in (1, 2):
            kernel = tail_kernel(length, stride, given, made)
            source, target = kernel.buffers
            count = 2 * length
            memory = torch.full((2 * BORDER + stride * count,), MARK).to(made)
            run_kernel(kernel, {source: torch.zeros(count).to(given), target: memory[BORDER:]}, {}, 1)
            expected = torch.full_like(memory, MARK)
            expected[BORDER : BORDER + stride * count : stride] = 0
            assert torch.equal(memory, expected), (length, stride)
