"""From kernels to LLVM IR text: one function a kernel, ``void NAME(ptr pointers, ptr sizes, i64 start, i64 end)``.

``pointers`` are those of the kernel's buffers, ``sizes`` the values of its sizes (int64). The function computes the
units of its work (`work.Extent`) from ``start`` up to ``end``: a run of the kept points. One that a single thread is to
do as a whole, and that knows its sizes, does all of it whatever it is told.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from kiln.lower.ir import Expr, Size, walk
from kiln.lower.kernel import Kernel

from . import host
from .emit_nest import Nest, Plan
from .emit_phases import DEAR_OPERATIONS, Phase, phases_of, with_kept_values
from .emit_rows import has_chains, with_rows_together
from .emit_tiles import Tile, tile_of
from .emit_types import HALVES
from .emit_values import Shape
from .lines import Lines, Names
from .work import extent_of, is_ordered

SHORT, MANY_ROWS = 1024, 64  # rows that threads take as a whole, where there are so many


def emit(kernel: Kernel, name: str) -> str:
    """The LLVM module of one kernel."""
    return emit_module({name: kernel})


def emit_module(kernels: Mapping[str, Kernel]) -> str:
    """One LLVM module with a function for each kernel, by name."""
    declarations: dict[str, None] = {}
    functions = [function_of(kernel, name, declarations) for name, kernel in kernels.items()]
    return "\n".join([*declarations, *functions]) + "\n"


def function_of(kernel: Kernel, name: str, declarations: dict[str, None]) -> str:
    plan = plan_of(kernel)
    extent = extent_of(plan)
    lines = Lines(Names(declarations))
    units = extent.units()
    if not isinstance(units, int) or (units > 0 and not extent.is_whole):
        Nest(plan, lines).write("%start", "%end")
    elif units > 0:
        Nest(plan, lines).write(0, units)
    body = "\n".join([*lines.text, "ret void"])
    return f"define void @{name}(ptr %pointers, ptr %sizes, i64 %start, i64 %end) nounwind {{\nentry:\n{body}\n}}\n"


# ---- how a kernel is run ---------------------------------------------------------------------------------------------


def plan_of(kernel: Kernel) -> Plan:
    """How a kernel is run: found once, for its function and for its launches."""
    plan: Plan | None = kernel.plan
    if plan is None:
        plan = kernel.plan = find_plan(with_rows_together(kernel))
    return plan


def find_plan(kernel: Kernel) -> Plan:
    loops = kernel.loops
    moving = [number for number, loop in enumerate(loops) if not (isinstance(loop.size, int) and loop.size == 1)]
    vector = kernel.vector if kernel.vector in moving and can_be_vector(kernel) else None
    lanes = lanes_of(kernel, loops[vector].size) if vector is not None else 1
    if lanes == 1:
        vector = None
    kept = [number for number in moving if not loops[number].is_reduced and number != vector]
    reduced = [number for number in moving if loops[number].is_reduced and number != vector]
    if vector is not None:
        (reduced if loops[vector].is_reduced else kept).append(vector)
    phases, closing = phases_of(kernel)
    phases = with_kept_values(kernel, phases, tuple(reduced), vector)
    copies = copies_of(kernel, vector, lanes)
    if not phases and not reduced:
        tiled = tile_of(kernel, Shape(kernel, dict.fromkeys(kept, 1), vector, lanes), closing, host.vector_bytes())
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
    """Whether lanes never meet in one place where that matters: the places of scatters must not vary along the loop
    but by their stride."""
    loop = kernel.vector
    assert loop is not None
    for output in kernel.outputs:
        stride = output.target.strides[loop]
        if output.accumulate is not None and isinstance(stride, int) and stride == 0:
            return False
        if any(varies_along(expr, loop) for expr, _ in output.target.indirect):
            return False
    return True


def varies_along(root: Expr, loop: int) -> bool:
    for expr in walk(root):
        strides = expr.payload.strides if expr.kind == "load" else expr.payload[0] if expr.kind == "iota" else None
        if strides is not None and not (isinstance(strides[loop], int) and strides[loop] == 0):
            return True
    return False


def lanes_of(kernel: Kernel, size: Size) -> int:
    """How many lanes: a vector of the widest type that is computed with (int64 apart, which is mostly for indices)."""
    widths = {expr.dtype: 4 if expr.dtype in HALVES else expr.dtype.itemsize for expr in kernel.phases}
    widths |= {output.target.buffer.dtype: output.target.buffer.dtype.itemsize for output in kernel.outputs}
    whole = widths.pop(torch.int64, None)
    widest = max(widths.values(), default=whole or 8)
    if widest == 1 and whole is not None:
        widest = whole
    lanes = host.vector_bytes() // max(2, widest)
    if has_chains(kernel) and not any(expr.kind in DEAR_OPERATIONS for expr in kernel.phases):
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
    dear = any(expr.kind in DEAR_OPERATIONS for expr in kernel.phases)
    size = kernel.loops[vector].size
    if kernel.loops[vector].is_reduced and any(reduction.is_scan for reduction in kernel.reductions):
        return 1  # one element after another
    if kernel.loops[vector].is_reduced or dear or operations > 4:
        copies = 1 if dear or operations > 40 else 2 if operations > 16 else 4
    else:
        copies = 16 if isinstance(size, int) and size >= 64 * lanes else 8
        copies //= max(1, len(kernel.reductions))
        copies = 1 << copies.bit_length() - 1 if copies else 1
    while isinstance(size, int) and copies > 1 and copies * lanes > size:
        copies //= 2
    return copies
