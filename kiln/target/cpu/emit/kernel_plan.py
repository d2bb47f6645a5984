"""How a kernel is run: which loops threads share, how wide vectors are, which rounds and tiles there are."""

from __future__ import annotations

import math

import torch

from kiln.loops.ir import varies_along
from kiln.loops.kernel import Kernel
from kiln.loops.sizes import Size, is_one, is_zero

from ....platform import cpu_info
from ....platform.light_dataclass import dataclass
from ...llvm.llvm_text import Lines
from ...llvm.loop_code import Index, ceil_div
from ...llvm.phases import COSTLY_OPERATIONS, Phase, phases_of, with_saved_values
from ...llvm.registers import Shape, Values
from ...llvm.value_types import HALF_TYPES
from .scan_rows import has_serial_scans, with_interleaved_rows
from .tile_plan import WIDTH, Tile, tile_of

SHORT, MANY_ROWS = 1024, 64  # rows that threads take as a whole, where there are so many


@dataclass(frozen=True)
class Plan:
    """How a kernel is run: nesting of loops, vectors of a round, phases, tiles."""

    shape: Shape
    outer: tuple[int, ...]
    last: int | None  # the last kept loop
    reduced: tuple[int, ...]
    copies: int
    phases: tuple[Phase, ...]
    closing: Phase  # the outputs after the last phase
    tile: Tile | None = None
    has_rows: bool = False  # the vectors' loop is inside the last kept one: its rows are short
    is_by_columns: bool = False  # threads share the last kept loop alone: the others have an order to keep

    @property
    def unit(self) -> int:
        """How many positions of the last kept loop are one unit of work."""
        if self.tile is not None:
            return WIDTH
        return self.copies * self.shape.lanes if self.last is not None and self.last == self.shape.vector else 1

    def height(self, loop: int) -> int:
        """How many positions of an outer loop are one round."""
        return self.tile.height if self.tile is not None and loop == self.tile.across else 1

    def rounds(self, loop: int, values: Values, lines: Lines) -> Index:
        """How far an outer loop counts."""
        return ceil_div(lines, values.size(self.shape.kernel.loops[loop].size), self.height(loop))


def plan_of(kernel: Kernel) -> Plan:
    """The plan of a kernel, computed once for its function and its launches."""
    plan: Plan | None = kernel.plan
    if plan is None:
        plan = kernel.plan = find_plan(with_interleaved_rows(kernel))
    return plan


def is_ordered(kernel: Kernel) -> bool:
    """Whether several points may write one element, in order."""
    return any(output.accumulate is not None or output.target.indirect for output in kernel.outputs)


def find_plan(kernel: Kernel) -> Plan:
    loops = kernel.loops
    moving = [number for number, loop in enumerate(loops) if not is_one(loop.size)]
    vector = kernel.vector if kernel.vector in moving and can_be_vector(kernel) else None
    lanes = lanes_of(kernel, loops[vector].size) if vector is not None else 1
    if lanes == 1:
        vector = None
    kept = [number for number in moving if not loops[number].is_reduced and number != vector]
    reduced = [number for number in moving if loops[number].is_reduced and number != vector]
    if vector is not None:
        (reduced if loops[vector].is_reduced else kept).append(vector)
    phases, closing = phases_of(kernel)
    phases = with_saved_values(kernel, phases, tuple(reduced), vector)
    copies = copies_of(kernel, vector, lanes)
    if not phases and not reduced:
        tiled = tile_of(kernel, Shape(kernel, dict.fromkeys(kept, 1), vector, lanes), closing, cpu_info.vector_bytes())
        if tiled is not None:
            return tiled_plan(kernel, kept, lanes, *tiled)
    is_last = vector is not None and kept[-1:] == [vector]
    if is_last and has_short_rows(kernel, kept):
        depths = (
            dict.fromkeys(kept[:-2], 1)
            | {kept[-2]: 2, kept[-1]: 3}
            | {loop: depth for depth, loop in enumerate(reduced, 4)}
        )
        shape = Shape(kernel, depths, vector, lanes, row=3)
        return Plan(shape, tuple(kept[:-2]), kept[-2], tuple(reduced), copies, phases, closing, has_rows=True)
    depths = (
        dict.fromkeys(kept[:-1], 1)
        | dict.fromkeys(kept[-1:], 2)
        | {loop: depth for depth, loop in enumerate(reduced, 3)}
    )
    shape = Shape(kernel, depths, vector, lanes)
    by_columns = is_last and is_ordered(kernel)
    outer, last = tuple(kept[:-1]), kept[-1] if kept else None
    return Plan(shape, outer, last, tuple(reduced), copies, phases, closing, is_by_columns=by_columns)


def tiled_plan(kernel: Kernel, kept: list[int], lanes: int, tile: Tile, closing: Phase) -> Plan:
    vector = kept[-1]
    outer = (*(loop for loop in kept[:-1] if loop != tile.across), tile.across)
    shape = Shape(kernel, dict.fromkeys(outer, 1) | {tile.across: 2, vector: 3}, vector, lanes)
    return Plan(shape, outer, vector, (), 1, (), closing, tile)


def has_short_rows(kernel: Kernel, kept: list[int]) -> bool:
    """Whether the loop of vectors is short and the other kept ones are long enough to be shared among threads."""
    size = kernel.loops[kept[-1]].size
    if len(kept) < 2 or not isinstance(size, int) or size > SHORT or is_ordered(kernel):
        return False
    others = [kernel.loops[loop].size for loop in kept[:-1]]
    return not all(isinstance(other, int) for other in others) or math.prod(others) >= MANY_ROWS


def can_be_vector(kernel: Kernel) -> bool:
    """Whether no two lanes write one element: along the loop, scatters may only move by a stride."""
    loop = kernel.vector
    assert loop is not None
    for output in kernel.outputs:
        stride = output.target.strides[loop]
        if output.accumulate is not None and is_zero(stride):
            return False
        if any(varies_along(expr, loop) for expr, _ in output.target.indirect):
            return False
    return True


def lanes_of(kernel: Kernel, size: Size) -> int:
    """How many lanes: a vector of the widest type that is computed with (int64 apart, which is mostly for indices)."""
    widths = {expr.dtype: 4 if expr.dtype in HALF_TYPES else expr.dtype.itemsize for expr in kernel.phases}
    widths |= {output.target.buffer.dtype: output.target.buffer.dtype.itemsize for output in kernel.outputs}
    whole = widths.pop(torch.int64, None)
    widest = max(widths.values(), default=whole or 8)
    if widest == 1 and whole is not None:
        widest = whole
    lanes = cpu_info.vector_bytes() // max(2, widest)
    if has_serial_scans(kernel) and not any(expr.kind in COSTLY_OPERATIONS for expr in kernel.phases):
        lanes = min(lanes, 4)  # there is more to take apart than to compute
    while isinstance(size, int) and lanes >= 2 * max(size, 1):
        lanes //= 2
    return lanes


def copies_of(kernel: Kernel, vector: int | None, lanes: int) -> int:
    """How many vectors a round of the loop takes.

    Reductions have as many results to add to at once; sums down columns read as much of each row.
    """
    if vector is None or not kernel.reduced:
        return 1
    operations = sum(1 for expr in kernel.phases if expr.args)
    costly = any(expr.kind in COSTLY_OPERATIONS for expr in kernel.phases)
    size = kernel.loops[vector].size
    if kernel.loops[vector].is_reduced and any(reduction.is_scan for reduction in kernel.reductions):
        return 1  # one element after another
    if kernel.loops[vector].is_reduced or costly or operations > 4:
        copies = 1 if costly or operations > 40 else 2 if operations > 16 else 4
    else:
        copies = 16 if isinstance(size, int) and size >= 64 * lanes else 8
        copies //= max(1, len(kernel.reductions))
        copies = 1 << copies.bit_length() - 1 if copies else 1
    while isinstance(size, int) and copies > 1 and copies * lanes > size:
        copies //= 2
    return copies
