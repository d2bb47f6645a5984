"""The registers of a thread: `Values` where buffers and sizes are parameters of the kernel."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from kiln.loops.ir import Access, Buffer, Expr
from kiln.loops.kernel import Output
from kiln.loops.sizes import Size

from ..llvm.llvm_text import Lines, llvm_type
from ..llvm.loads_and_stores import Place, beyond_the_end, load_at, zeros
from ..llvm.loop_code import Index, times
from ..llvm.math.gpu_functions import RELAXED
from ..llvm.math.vector import Vector
from ..llvm.registers import Level, Values
from ..llvm.value_types import HALF_TYPES, MEMORY, from_memory, rounded, to_memory
from . import atomics
from .kernel_plan import CudaPlan, alignment, is_contiguous
from .parts.assertions import stop_unless
from .relaxed_functions import relaxed_functions

if TYPE_CHECKING:
    from .tiles import TileReader


def drawn_register(number: int, part: str) -> str:
    """The register of the seed or the offset of random numbers that are the kernel's buffer with this number."""
    return f"%b{number}_{part}"


class ThreadValues(Values):
    def __init__(self, plan: CudaPlan, entry: Lines) -> None:
        self.plan = plan
        self.has_last_copy: tuple[int, str] | None = (
            None  # a copy that only some threads have, and whether this one has
        )
        self.raw: dict[tuple[Access, int], str] = {}  # vectors of a row as they are in memory, by their copies
        self.tile_reader: TileReader | None = None
        exprs = [expr for phase in (*plan.phases, plan.closing) for expr in phase.order]
        self.relaxed = relaxed_functions(plan.shape.kernel, exprs)
        super().__init__(plan.shape, entry, exprs)

    def size(self, size: Size) -> Index:
        number = None if isinstance(size, int) else self.size_numbers.get(size)
        return super().size(size) if number is None else f"%s{number}"

    def base(self, buffer: Buffer) -> str:
        return f"%b{self.kernel.buffers.index(buffer)}"

    def make(self, expr: Expr, copy: int, lines: Lines, lanes: int) -> str:
        if expr.kind == "assured":
            condition = self.get(expr.args[0], copy, lanes)
            if lanes > 1 and self.mask is not None:  # lanes that are not there may have any index
                kind = llvm_type("i1", lanes)
                missing = lines.new(f"xor {kind} {self.mask}, {lines.splat('true', 'i1', lanes)}")
                condition = lines.new(f"or {kind} {condition}, {missing}")
            stop_unless(lines, condition, lanes, expr.payload)
            return self.get(expr.args[1], copy, lanes)
        name = self.relaxed.get(expr)
        if name is None:
            return super().make(expr, copy, lines, lanes)
        operands = [self.get(arg, copy, lanes) for arg in expr.args]
        value = RELAXED[name](Vector(lines, torch.float32, lanes), *operands)
        return rounded(lines, value, expr.dtype, lanes) if expr.dtype in HALF_TYPES else value

    def copy_offset(self, stride: Size, copy: int) -> Index:
        """Copies of a row are as far apart as all members of it reach."""
        step: Index = copy * self.shape.lanes * self.plan.members
        if copy and self.has_last_copy is not None and copy == self.has_last_copy[0]:  # others read their first one
            step = self.entry.new(f"select i1 {self.has_last_copy[1]}, i64 {step}, i64 0")
        return times(self.entry, self.size(stride), step) if copy else 0

    def place(self, access: Access, copy: int, lines: Lines, lanes: int) -> Place:
        found = super().place(access, copy, lines, lanes)
        vector = self.shape.vector
        if lanes > 1 and vector is not None and is_contiguous(access, vector):
            found.align = alignment(access, vector, lanes)
        return found

    def load(self, access: Access, copy: int, lines: Lines, lanes: int) -> str:
        """Seeds of random numbers are parameters; transposed loads are in tiles. Of float16 and bfloat16, what was
        loaded is remembered as it is, for later phases of a row in registers."""
        dtype = access.buffer.dtype
        if access.buffer.kind == "drawn":
            assert isinstance(access.offset, int), "which of the drawn numbers is not known"
            return drawn_register(self.kernel.buffers.index(access.buffer), "offset" if access.offset else "seed")
        in_tile = self.tile_reader.load(lines, access, lanes) if self.tile_reader is not None else None
        if in_tile is not None:
            return from_memory(lines, in_tile, dtype, lanes)
        if lanes > 1 and self.is_whole_or_missing(access):
            return self.load_if(access, copy, lines, lanes)
        if not self.plan.copies or dtype not in HALF_TYPES or not self.depth_of(access.strides)[1] or access.parts:
            return super().load(access, copy, lines, lanes)
        raw = self.raw.get((access, copy))
        if raw is None:
            place = self.place(access, copy, lines, lanes)
            raw = self.raw[access, copy] = load_at(lines, place, dtype, lanes, beyond_the_end(dtype))
        else:
            raw = opaque_words(lines, raw, llvm_type(MEMORY[dtype], lanes), lanes // 2)
        return from_memory(lines, raw, dtype, lanes)

    def is_whole_or_missing(self, access: Access) -> bool:
        """Whether one condition holds for all lanes of a contiguous vector."""
        return access.mask is not None and self.is_whole_vector(access)

    def is_whole_vector(self, access: Access) -> bool:
        """Whether all lanes of a contiguous vector are accessed, or none."""
        vector = self.shape.vector
        is_whole = self.mask is None and (access.mask is None or not self.facts[access.mask][1])
        return is_whole and vector is not None and is_contiguous(access, vector)

    def load_if(self, access: Access, copy: int, lines: Lines, lanes: int) -> str:
        """A vector where a condition is true, zeros elsewhere: without a branch for each lane."""
        assert access.mask is not None
        place = self.place(replace(access, mask=None), copy, lines, lanes)
        condition = self.get(access.mask, copy, 1)
        place.pointer = lines.new(f"select i1 {condition}, ptr {place.pointer}, ptr {zeros(lines)}")
        dtype = access.buffer.dtype
        return from_memory(lines, load_at(lines, place, dtype, lanes, beyond_the_end(dtype)), dtype, lanes)

    def store(self, output: Output, copy: int, level: Level) -> None:
        if output.accumulate is None:
            super().store(output, copy, level)
            return
        access, dtype = output.target, output.target.buffer.dtype
        is_vector = self.depth_of(access.strides)[1] or any(
            self.facts[part][1] for part in (output.value, *access.parts)
        )
        lanes, lines = self.shape.lanes if is_vector else 1, level.lines
        value = to_memory(lines, self.get(output.value, copy, lanes), dtype, lanes)
        if lanes > 1 and self.is_whole_vector(access):
            place = self.place(replace(access, mask=None), copy, lines, lanes)
            width = atomics.vector_width(output.accumulate, dtype, place.align)
            if width > 1:
                condition = None if access.mask is None else self.get(access.mask, copy, 1)
                with only_if(lines, condition):
                    add_vectors(lines, place.pointer, value, lanes, width)
                return
        place = self.place(access, copy, lines, lanes)
        for lane in range(lanes):
            self.combine_lane(lines, output, place, value, lanes, lane)

    def combine_lane(self, lines: Lines, output: Output, place: Place, value: str, lanes: int, lane: int) -> None:
        """Combines one lane's value with an element that other threads may write to."""
        pointer, mask, dtype = place.pointer, place.mask, output.target.buffer.dtype
        element = MEMORY[dtype]
        if lanes > 1:
            value = lines.new(f"extractelement {llvm_type(element, lanes)} {value}, i32 {lane}")
            step = str(lane)
            if place.offsets is not None:
                step = lines.new(f"extractelement {llvm_type('i64', lanes)} {place.offsets}, i32 {lane}")
            pointer = lines.new(f"getelementptr {element}, ptr {pointer}, i64 {step}")
            if mask is not None:
                mask = lines.new(f"extractelement {llvm_type('i1', lanes)} {mask}, i32 {lane}")
        assert output.accumulate is not None
        with only_if(lines, mask):
            atomics.combine(lines, output.accumulate, pointer, value, dtype)


@contextlib.contextmanager
def only_if(lines: Lines, condition: str | None) -> Iterator[None]:
    """Code that runs where a condition is true; None: always."""
    if condition is None:
        yield
        return
    yes, after = lines.fresh("add"), lines.fresh("added")
    lines.branch_if(condition, yes, after)
    lines.label(yes)
    yield
    lines.branch(after)
    lines.label(after)


def add_vectors(lines: Lines, pointer: str, value: str, lanes: int, width: int) -> None:
    """Adds a vector to float32 elements that other threads may write to, so many at once."""
    kind = llvm_type(MEMORY[torch.float32], lanes)
    for first in range(0, lanes, width):
        parts = [lines.new(f"extractelement {kind} {value}, i32 {lane}") for lane in range(first, first + width)]
        place = lines.new(f"getelementptr {MEMORY[torch.float32]}, ptr {pointer}, i64 {first}")
        atomics.add_vector(lines, place, parts)


def opaque_words(lines: Lines, value: str, kind: str, count: int) -> str:
    """A vector of so many words, of which LLVM does not know that it is the same: it would keep what it has computed
    of it, in more registers."""
    words = llvm_type("i32", count)
    whole = lines.new(f"bitcast {kind} {value} to {words}")
    if count == 1:
        found = lines.new(f'call i32 asm sideeffect "mov.b32 $0, $1;", "=r,r"(i32 {whole})')
        return lines.new(f"bitcast i32 {found} to {kind}")
    moved = "poison"
    for place in range(count):
        word = lines.new(f"extractelement {words} {whole}, i32 {place}")
        word = lines.new(f'call i32 asm sideeffect "mov.b32 $0, $1;", "=r,r"(i32 {word})')
        moved = lines.new(f"insertelement {words} {moved}, i32 {word}, i32 {place}")
    return lines.new(f"bitcast {words} {moved} to {kind}")
