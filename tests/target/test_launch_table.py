"""Several launches as one: what the native program puts into tables, and how the code of a kernel reads them.

The code that finds a block's row is compiled for this machine's CPU, and reads the tables that the native program gives
to a function of this test, which stands in for cuLaunchKernel.
"""

from __future__ import annotations

import ctypes
import itertools
import random

import pytest
import sympy
import torch
from llvmlite import binding

from kiln import _native
from kiln.loops import ir
from kiln.loops.ir import Access, Buffer
from kiln.loops.kernel import Kernel, Loop, Output
from kiln.target.cuda.cuda_module import emit_module
from kiln.target.cuda.launch_table import MOST_BYTES, bytes_of, read_row, rows_for, starts_of, table_of_one
from kiln.target.cuda.ptx import compile_ptx
from kiln.target.llvm.llvm_text import Lines, Names
from kiln.target.native_program import Launcher
from tests.target.test_cuda_launches import LaunchKernel

FUNCTION, THREADS = 0xFEED_0000_BEEF, 128
F32 = torch.float32


def plus_one(rows: int = 0) -> Kernel:
    """A kernel over a length that is an argument."""
    length = sympy.Symbol("length", integer=True, positive=True)
    source, target = (Buffer(name, F32, (length,), (1,), "input") for name in ("source", "target"))
    value = ir.op("add", ir.load(Access(source, (1,), 0)), ir.constant(1.0, F32))
    kernel = Kernel("plus_one", (Loop(length),), (), (Output(Access(target, (1,), 0), value, False),), 0)
    kernel.table_rows = rows
    return kernel


def reader_of(kernel: Kernel):
    """A function of the address of a table and the number of a block, which gives the number of the block in its row,
    the pointers and the sizes of that row: what a kernel's code does, compiled for the CPU."""
    lines = Lines(Names({}, is_for_gpu=True))
    block = read_row(kernel, lines, "%block")
    words = [f"%p{number}" for number in range(len(kernel.buffers))]
    for number, word in enumerate(words):
        lines.add(f"%w{number} = ptrtoint ptr addrspace(1) {word} to i64")
    stored = [f"%w{number}" for number in range(len(words))] + [f"%s{n}" for n in range(len(kernel.sizes))]
    for number, word in enumerate(stored):
        lines.add(f"%o{number} = getelementptr i64, ptr %out, i64 {number}")
        lines.add(f"store i64 {word}, ptr %o{number}")
    text = "\n".join([*lines.text, f"ret i32 {block}"])
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    module = binding.parse_assembly(f"define i32 @read(ptr %table, i32 %block, ptr %out) {{\nentry:\n{text}\n}}\n")
    engine = binding.create_mcjit_compiler(module, binding.Target.from_default_triple().create_target_machine())
    engine.finalize_object()
    call = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)(
        engine.get_function_address("read")
    )

    def read(table: bytes, block: int) -> tuple[int, list[int]]:
        assert engine
        given, found = ctypes.create_string_buffer(table, len(table)), (ctypes.c_int64 * len(stored))()
        return call(ctypes.addressof(given), block, ctypes.addressof(found)), list(found)

    return read


class Gpu:
    """Notes the blocks and the table of each launch."""

    def __init__(self, table_bytes: int) -> None:
        self.launches: list[tuple[int, bytes]] = []
        self.table_bytes = table_bytes
        self.entry = LaunchKernel(self.launch)
        self.given = Launcher(ctypes.cast(self.entry, ctypes.c_void_p).value, lambda device: 1, self.failed)

    def failed(self, name, error, device):
        raise RuntimeError(f"{name}: error {error}")

    def launch(self, function, x, y, z, threads, threads_y, threads_z, shared, stream, parameters, extra):
        assert (function, y, z, threads, shared) == (FUNCTION, 1, 1, THREADS, 16)
        self.launches.append((x, ctypes.string_at(parameters[0], self.table_bytes)))
        return 0


def table_step(works, rows):
    return "cuda_table", "plus_one", FUNCTION, works, rows, THREADS, 16


def run_works(lengths, blocks, rows):
    """The launches of a program over tensors of these lengths, with so many blocks each; and the addresses of both
    tensors of each work."""
    gpu = Gpu(bytes_of(plus_one(rows), rows))
    count = len(lengths)
    allocations = [("allocate", count + n, (F32, (length,), (1,)), -1) for n, length in enumerate(lengths)]
    works = tuple((((n, 0, 0), (count + n, 0, 0)), (lengths[n],), blocks[n]) for n in range(count))
    outputs = list(range(count, 2 * count))
    steps = [*allocations, table_step(works, rows)]
    program = _native.OperatorProgram(count, 2 * count, steps, outputs, None, [], [], [], -1, gpu.given)
    inputs = [torch.zeros(length) for length in lengths]
    found = program(list(inputs))
    return gpu.launches, [(one.data_ptr(), other.data_ptr()) for one, other in zip(inputs, found, strict=True)], found


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 8, 31, 64, 100])
def test_each_block_finds_its_row(rows):
    choose = random.Random(rows)
    read = reader_of(plus_one(rows))
    for count in (1, rows, 2 * rows + 1):
        lengths = [choose.randint(1, 50) for _ in range(count)]
        blocks = [choose.choice((0, 1, 1, 2, 7, 40)) for _ in range(count)]
        launches, addresses, alive = run_works(lengths, blocks, rows)
        done = []
        for number, table in launches:
            found = [read(table, block) for block in range(number)]
            for (source, target, length), of_row in itertools.groupby(found, key=lambda one: tuple(one[1])):
                numbers = [block for block, _ in of_row]
                assert numbers == list(range(len(numbers)))
                done.append(((source, target), length, len(numbers)))
        wanted = list(zip(addresses, lengths, blocks, strict=True))
        assert done == [work for work in wanted if work[2]] and alive is not None
        assert len(launches) == -(-len(done) // rows)


def test_more_blocks_than_one_launch_takes():
    many = 2**30
    launches, _, _ = run_works([4] * 5, [many, many - 1, 1, many, many], 5)
    assert [blocks for blocks, _ in launches] == [2 * many - 1, many + 1, many]


def test_works_without_blocks_are_not_launched():
    assert run_works([4, 4], [0, 0], 2)[0] == []


def test_blocks_that_vary():
    gpu = Gpu(bytes_of(plus_one(2), 2))
    works = tuple((((n, 0, 0), (n, 0, 1)), ((n,),), (n,)) for n in range(2))
    instructions = [("size", 0, 0), ("size", 1, 0)]
    program = _native.OperatorProgram(2, 2, [table_step(works, 2)], [0, 1], None, instructions, [], [], -1, gpu.given)
    read = reader_of(plus_one(2))
    for sizes in ((3, 5), (1, 2)):
        x, y = map(torch.zeros, sizes)
        program([x, y])
        blocks, table = gpu.launches[-1]
        assert blocks == sum(sizes)
        assert read(table, 0) == (0, [x.data_ptr()] * 2 + [sizes[0]])
        assert read(table, blocks - 1) == (sizes[1] - 1, [y.data_ptr()] * 2 + [sizes[1]])


def test_values_die_after_the_table():
    """The memory of what a work reads is free after the launch, not before another work has read it."""
    gpu = Gpu(bytes_of(plus_one(2), 2))
    allocations = [("allocate", place, (F32, (4,), (1,)), -1) for place in (1, 2)]
    works = tuple((((0, 0, 0), (place, 0, 0)), (4,), 1) for place in (1, 2))
    program = _native.OperatorProgram(
        1, 3, [*allocations, table_step(works, 2)], [1, 2], None, [], [], [], -1, gpu.given
    )
    x = torch.zeros(4)
    address = x.data_ptr()
    program([x])
    read = reader_of(plus_one(2))
    assert [read(gpu.launches[0][1], block)[1][0] for block in (0, 1)] == [address, address]


GOOD = (((0, 0, 0), (1, 0, 0)), (4,), 1)
WRONG = {
    "no works": table_step((), 2),
    "no rows": table_step((GOOD,), 0),
    "negative rows": table_step((GOOD,), -1),
    "too many rows": table_step((GOOD,), 4096),
    "works of different size": table_step((GOOD, (GOOD[0], (), 1)), 2),
    "a work of two": table_step((GOOD[:2],), 2),
    "too few parts": table_step((GOOD,), 2)[:6],
    "no function": ("cuda_table", "plus_one", 0, (GOOD,), 2, THREADS, 0),
}


@pytest.mark.parametrize("step", WRONG.values(), ids=WRONG)
def test_wrong_tables_are_refused(step):
    allocate, gpu = ("allocate", 1, (F32, (4,), (1,)), -1), Gpu(64)
    _native.OperatorProgram(1, 2, [allocate, table_step((GOOD,), 2)], [1], None, [], [], [], -1, gpu.given)
    with pytest.raises((TypeError, ValueError)):
        _native.OperatorProgram(1, 2, [allocate, step], [1], None, [], [], [], -1, gpu.given)


# ---- the table of a kernel -------------------------------------------------------------------------------------------


def test_tables_fit_into_parameters():
    kernel = plus_one()
    assert rows_for(kernel, 1) == 0 and rows_for(kernel, 2) == 2
    assert rows_for(kernel, 100) == 100
    most = rows_for(kernel, 10**4)
    assert bytes_of(kernel, most) <= MOST_BYTES < bytes_of(kernel, most + 1)
    assert [starts_of(rows) for rows in (1, 2, 3, 64, 65)] == [2, 2, 4, 64, 128]


def test_the_table_of_one_launch():
    kernel = plus_one(5)
    table = table_of_one(kernel, [1 << 40, 1 << 41, 77])
    assert len(table) == bytes_of(kernel, 5)
    assert reader_of(kernel)(table, 6) == (6, [1 << 40, 1 << 41, 77])


def test_a_table_stays_in_the_parameters():
    """No copy of it in memory, and pointers that the GPU knows to be global."""
    text = compile_ptx(emit_module({"plus_one": plus_one(60)}), "sm_90").decode()
    assert f".param .align 8 .b8 plus_one_param_0[{bytes_of(plus_one(60), 60)}]" in text
    assert "ld.param.b64" in text and "ld.global.v4" in text and "st.global.v4" in text
    assert ".local" not in text and "ld.b32" not in text
    plain = compile_ptx(emit_module({"plus_one": plus_one()}), "sm_90").decode()
    assert plain.count(".param .u64") == 2 + 1 or plain.count(".param") >= 3
