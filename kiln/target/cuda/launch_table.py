"""Several launches of a kernel as one: the table that is the kernel's parameter, and how a block finds its row.

The table begins with the number of the first block of each row, as 32-bit integers. Their count is a power of two, and
those without a row have the greatest number: so a block finds its row by halving. Then come the rows: the pointers and
sizes of each launch. `native/program/cuda_launches.cpp` fills tables.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from kiln.loops.kernel import Kernel

from ..llvm.llvm_text import Lines

MOST_BYTES = 4096  # of a kernel's parameters, for every driver
NO_BLOCK = 2**31 - 1
WORD = 8  # bytes of a pointer or size


def rows_for(kernel: Kernel, launches: int) -> int:
    """The rows of a kernel's table, for so many launches at once: all of them, or what parameters have room for.
    0: one launch does one launch, and needs no table."""
    if launches < 2:
        return 0
    rows = launches
    while rows > 1 and bytes_of(kernel, rows) > MOST_BYTES:
        rows -= 1
    return rows if rows > 1 else 0


def starts_of(rows: int) -> int:
    """How many numbers of first blocks a table has."""
    return max(2, 1 << (rows - 1).bit_length())


def words_of(kernel: Kernel) -> int:
    return len(kernel.buffers) + len(kernel.sizes)


def bytes_of(kernel: Kernel, rows: int) -> int:
    return 4 * starts_of(rows) + WORD * rows * words_of(kernel)


def table_of_one(kernel: Kernel, words: Sequence[int]) -> bytes:
    """The table of one launch, with these pointers and sizes."""
    starts = starts_of(kernel.table_rows)
    found = struct.pack(f"<{starts}i", 0, *[NO_BLOCK] * (starts - 1)) + struct.pack(f"<{len(words)}q", *words)
    return found.ljust(bytes_of(kernel, kernel.table_rows), b"\0")


def parameter_of(kernel: Kernel) -> str:
    return f"ptr byval([{bytes_of(kernel, kernel.table_rows)} x i8]) align {WORD} %table"


def read_row(kernel: Kernel, lines: Lines, block: str) -> str:
    """Code that reads the row of a block: pointers ``%p0``, ``%p1``, …, sizes ``%s0``, …. Gives the number of the block
    among those of its row."""
    row, step = "0", starts_of(kernel.table_rows) // 2
    while step:
        later = lines.new(f"add i32 {row}, {step}")
        is_there = lines.new(f"icmp ule i32 {start_of(lines, later)}, {block}")
        row = lines.new(f"select i1 {is_there}, i32 {later}, i32 {row}")
        step //= 2
    first = start_of(lines, row)
    distance = lines.new(f"mul i32 {row}, {WORD * words_of(kernel)}")
    place = lines.new(f"add i32 {distance}, {4 * starts_of(kernel.table_rows)}")
    pointers = [(f"%p{number}", "ptr addrspace(1)") for number in range(len(kernel.buffers))]
    sizes = [(f"%s{number}", "i64") for number in range(len(kernel.sizes))]
    words = lines.new(f"getelementptr i8, ptr %table, i32 {place}")
    for number, (name, kind) in enumerate([*pointers, *sizes]):
        address = lines.new(f"getelementptr i64, ptr {words}, i32 {number}")
        lines.add(f"{name} = load {kind}, ptr {address}, align {WORD}")
    return lines.new(f"sub i32 {block}, {first}")


def start_of(lines: Lines, row: str) -> str:
    address = lines.new(f"getelementptr i32, ptr %table, i32 {row}")
    return lines.new(f"load i32, ptr {address}, align 4")
