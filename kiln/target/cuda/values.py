"""The registers of a thread: `Values` where buffers and sizes are parameters of the kernel."""

from __future__ import annotations

from kiln.loops.ir import Access, Buffer
from kiln.loops.kernel import Output
from kiln.loops.sizes import Size

from ..llvm.llvm_text import Lines, llvm_type
from ..llvm.loads_and_stores import Place
from ..llvm.loop_code import Index, times
from ..llvm.registers import Level, Values
from ..llvm.value_types import MEMORY, to_memory
from . import atomics
from .kernel_plan import CudaPlan, alignment, is_contiguous


def drawn_register(number: int, part: str) -> str:
    """The register of the seed or the offset of random numbers that are the kernel's buffer with this number."""
    return f"%b{number}_{part}"


class ThreadValues(Values):
    def __init__(self, plan: CudaPlan, entry: Lines) -> None:
        self.plan = plan
        self.has_last_copy: tuple[int, str] | None = (
            None  # a copy that only some threads have, and whether this one has
        )
        super().__init__(plan.shape, entry, [expr for phase in (*plan.phases, plan.closing) for expr in phase.order])

    def size(self, size: Size) -> Index:
        number = None if isinstance(size, int) else self.size_numbers.get(size)
        return super().size(size) if number is None else f"%s{number}"

    def base(self, buffer: Buffer) -> str:
        return f"%b{self.kernel.buffers.index(buffer)}"

    def load(self, access: Access, copy: int, lines: Lines, lanes: int) -> str:
        if access.buffer.kind != "drawn":
            return super().load(access, copy, lines, lanes)
        return drawn_register(self.kernel.buffers.index(access.buffer), "offset" if access.offset else "seed")

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
        if mask is None:
            atomics.combine(lines, output.accumulate, pointer, value, dtype)
            return
        yes, after = lines.fresh("add"), lines.fresh("added")
        lines.branch_if(mask, yes, after)
        lines.label(yes)
        atomics.combine(lines, output.accumulate, pointer, value, dtype)
        lines.branch(after)
        lines.label(after)
