"""Random numbers of GPUs: what the loop IR means, and the machine code, beside an independent reference."""

from __future__ import annotations

import pytest
import torch

from kiln.loops import ir, philox
from kiln.loops.ir import Access, Buffer
from kiln.loops.kernel import Kernel, Loop, Output
from kiln.loops.kernel_text import run as run_text
from kiln.loops.philox import Draws
from kiln.target.cuda.cuda_module import emit_module
from kiln.target.cuda.ptx import compile_ptx
from tests.support import philox as wanted
from tests.target.cuda_on_cpu import run_as_on_gpu
from tests.target.kernel_runs import Memory

SEED, OFFSET = 0x299F31D0A4093822, 4 * (2**32 - 3)  # the counter's high half changes on the way
PATTERNS = [
    Draws(7, 256),
    Draws(256, 256, 4),
    Draws(1000, 256),
    Draws(1000, 256, 2),
    Draws(2560, 512, 4),
    Draws(2560, 256, 8),
    Draws(5000, 256, 8),
    Draws(700, 256, is_wide=True),
]


def expected(draws: Draws, seed: int = SEED, offset: int = OFFSET) -> torch.Tensor:
    if draws.is_wide:
        pairs = wanted.strided_wide_bits(seed, offset, draws.elements, draws.threads)
        return (pairs[:, 0] << 32) | pairs[:, 1]
    if draws.vector == 1:
        return wanted.strided_bits(seed, offset, draws.elements, draws.threads)
    return wanted.vector_bits(seed, offset, draws.elements, draws.threads, draws.vector)


def test_reference_has_the_published_numbers():
    """Of "Random123", for a counter and a key of zeros and of the digits of pi."""
    zero = torch.zeros(1, dtype=torch.int64)
    assert wanted.philox(0, zero, zero)[0].tolist() == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    counter = torch.tensor([0x85A308D3243F6A88 - (1 << 64)])
    found = wanted.philox(0x299F31D0A4093822, counter, torch.tensor([0x0370734413198A2E]))
    assert found[0].tolist() == [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]


@pytest.mark.parametrize("draws", PATTERNS, ids=str)
def test_meaning(draws):
    element = torch.arange(draws.elements)
    found = philox.drawn_bits(draws, torch.full_like(element, SEED), torch.full_like(element, OFFSET), element)
    assert torch.equal(found, expected(draws))


def kernel_of(draws: Draws, shape=None, strides=None, kind="input"):
    """A kernel that writes the numbers of all elements, and the memory that it runs on."""
    shape = (draws.elements,) if shape is None else shape
    memory = Memory()
    state, result = memory.add(torch.tensor([SEED, OFFSET])), torch.zeros(shape, dtype=torch.int64)
    target = memory.add(result)
    if kind == "drawn":
        state = Buffer("drawn", torch.int64, (2,), (1,), "drawn")
    rank = len(shape)
    seed, offset = (ir.load(Access(state, (0,) * rank, place)) for place in (0, 1))
    value = ir.philox(seed, offset, ir.iota(result.stride() if strides is None else strides), draws)
    output = Output(Access(target, result.stride(), 0), value, False)
    return memory, target, Kernel("numbers", tuple(map(Loop, shape)), (), (output,), rank - 1)


@pytest.mark.parametrize("draws", PATTERNS, ids=str)
def test_machine_code(draws):
    memory, target, kernel = kernel_of(draws)
    assert torch.equal(memory.check(kernel)[target], expected(draws))


@pytest.mark.parametrize("shape", [(20, 128), (128, 20), (5, 8, 64), (40, 64), (2560, 1)])
@pytest.mark.parametrize("vector", [1, 2, 4, 8])
def test_machine_code_over_several_loops(shape, vector):
    draws = Draws(2560, 256, vector)
    memory, target, kernel = kernel_of(draws, shape)
    assert torch.equal(memory.check(kernel)[target].reshape(-1), expected(draws))


def test_elements_in_another_order():
    draws = Draws(2560, 256, 8)
    memory, target, kernel = kernel_of(draws, (64, 40), (1, 64))
    assert torch.equal(memory.check(kernel)[target].t().reshape(-1), expected(draws))


def test_kernel_as_text():
    draws = Draws(24, 8, 4)
    memory, target, kernel = kernel_of(draws)
    tensors = [memory.tensors[buffer].clone() for buffer in kernel.buffers]
    run_text(kernel.text, kernel.name, tensors)
    assert torch.equal(tensors[kernel.buffers.index(target)], expected(draws))


@pytest.mark.parametrize("bound", [0.9, 0.5, 1.0, 0.0, 2.0**-33, 0.1, 1 - 2.0**-24, 0.99999999])
def test_count_below(bound):
    count = philox.count_below(bound)
    for bits in (one for one in (0, 1, 2**31, 2**32 - 1, count - 1, count) if 0 <= one < 2**32):
        assert (wanted.uniform(torch.tensor([bits])).item() < bound) == (bits < count)


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("draws", PATTERNS, ids=str)
def test_code_of_gpus(draws, captured):
    """Seed and offset are parameters; or, in a CUDA graph, what parameters are the addresses of."""
    memory, target, kernel = kernel_of(draws, kind="drawn")
    result, there = memory.tensors[target], torch.tensor([SEED, OFFSET - 20])
    words = [there.data_ptr(), 20, there.data_ptr() + 8] if captured else [SEED, OFFSET, 0]
    given = {buffer: torch.tensor(words) if buffer.kind == "drawn" else result for buffer in kernel.buffers}
    assert torch.equal(run_as_on_gpu(kernel, given)[target], expected(draws))


@pytest.mark.parametrize("shape", [(5, 8, 64), (20, 128), (10, 256), (2560, 1)])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool])
@pytest.mark.parametrize("vector", [2, 4, 8])
def test_code_of_gpus_with_vectors(shape, vector, dtype):
    """As many neighbours as an access of 16 bytes has: two, four or more."""
    draws = Draws(2560, 256, vector)
    _, _, kernel = kernel_of(draws, shape, kind="drawn")
    (output,) = kernel.outputs
    narrow = Buffer("narrow", dtype, shape, output.target.strides, "input")
    bound = ir.constant(1 << 31, torch.int64)
    value = ir.op("lt", output.value, bound) if dtype is torch.bool else ir.op("cast", output.value, dtype=dtype)
    outputs = (Output(Access(narrow, output.target.strides, 0), value, False),)
    made = Kernel("numbers", kernel.loops, (), outputs, kernel.vector)
    result = torch.zeros(shape, dtype=dtype)
    drawn = torch.tensor([SEED, OFFSET, 0])
    given = {buffer: drawn if buffer.kind == "drawn" else result for buffer in made.buffers}
    result = run_as_on_gpu(made, given)[narrow]
    bits = expected(draws)
    wanted_bits = bits < (1 << 31) if dtype is torch.bool else bits.to(dtype)
    assert torch.equal(result.reshape(-1), wanted_bits)


def test_neighbours_share_a_call_of_the_generator():
    """A thread of a GPU computes four numbers at once, and its parameters are what was drawn."""
    _, _, kernel = kernel_of(Draws(1 << 20, 270336, 4), kind="drawn")
    text = emit_module({"numbers": kernel})
    assert text.count("insertelement") == 2 * text.count("lshr i64 %b0_offset, 2")  # an access has two lanes of int64
    assert "i64 %p0_seed, i64 %p0_offset, i64 %p0_place" in text
    code = compile_ptx(text, "sm_90").decode()
    assert "mul.wide.u32" in code
