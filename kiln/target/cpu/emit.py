"""From kernels to LLVM IR text: one function for each kernel, ``void NAME(ptr pointers, ptr sizes, i64 threads)``.

``pointers`` are those of the kernel's buffers, ``sizes`` the values of its sizes (int64). The function itself decides
whether the work pays for threads. If it does, a run of the kept points goes to each of torch's threads, always the same
for the same number of threads, so results do not depend on chance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from kiln.lower.ir import Expr, Size, walk
from kiln.lower.kernel import Kernel

from . import host
from .emit_loops import Index, ceil_div, smaller, times
from .emit_nest import Nest, Plan
from .emit_phases import DEAR_OPERATIONS, Phase, phases_of, with_kept_values
from .emit_tiles import Tile, tile_of
from .emit_types import HALVES
from .emit_values import Shape, Values
from .lines import Lines, Names

# What work costs, in picoseconds for each element (measured roughly: only whether threads pay depends on it).
CHEAP, DEAR, MEMORY, GATHERED, SCALAR, SCANNED = 15, 250, 60, 600, 8, 1000
SHORT, MANY_ROWS = 1024, 64  # rows that threads take as a whole, where there are so many
PAYS = 3_000_000  # picoseconds of work for each thread that takes part: a parallel region costs 1.1 microseconds


def emit(kernel: Kernel, name: str) -> str:
    """The LLVM module of one kernel."""
    return emit_module({name: kernel})


def emit_module(kernels: Mapping[str, Kernel]) -> str:
    """One LLVM module with a function for each kernel, by name."""
    declarations: dict[str, None] = {}
    functions = [text for name, kernel in kernels.items() for text in functions_of(kernel, name, declarations)]
    return "\n".join([*declarations, *functions]) + "\n"


def functions_of(kernel: Kernel, name: str, declarations: dict[str, None]) -> list[str]:
    plan = plan_of(kernel)
    lines = Lines(Names(declarations))
    values = Values(plan.shape, lines)
    total = total_units(plan, values, lines)
    work = times(lines, all_points(kernel, values, lines), cost_of(plan))
    if isinstance(total, int) and total == 0:
        return [function(f"define void @{name}(ptr %pointers, ptr %sizes, i64 %threads)", [])]
    is_stuck = is_ordered(kernel) and not plan.is_by_columns
    is_alone = plan.last is None or is_stuck or (isinstance(work, int) and work < 2 * PAYS)
    if is_alone and isinstance(total, int):
        body = Lines(Names(declarations))
        Nest(plan, body).write(0, total)
        return [function(f"define void @{name}(ptr %pointers, ptr %sizes, i64 %threads)", body.text)]
    body = Lines(Names(declarations))
    Nest(plan, body).write("%start", "%end")
    inner = function(f"define internal void @{name}.run(ptr %pointers, ptr %sizes, i64 %start, i64 %end)", body.text)
    start_threads(lines, name, total, 0 if is_alone else work)
    return [inner, function(f"define void @{name}(ptr %pointers, ptr %sizes, i64 %threads)", lines.text)]


def function(header: str, lines: list[str]) -> str:
    return header + " nounwind {\nentry:\n" + "\n".join(lines) + "\nret void\n}\n"


# ---- threads ---------------------------------------------------------------------------------------------------------


def start_threads(lines: Lines, name: str, total: Index, work: Index) -> None:
    """Run the body alone, or on as many threads as the work pays for."""
    lines.declare(PARALLEL)
    useful: Index = work // PAYS if isinstance(work, int) else lines.new(f"udiv i64 {work}, {PAYS}")
    count = smaller(lines, smaller(lines, "%threads", useful), total)
    lines.add(f"call void @kiln.parallel(ptr @{name}.run, ptr %pointers, ptr %sizes, i64 {total}, i64 {count})")


# Once for each module: runs a body from 0 to total, on threads that each take their share.
PARALLEL = """declare void @GOMP_parallel(ptr, ptr, i32, i32)
declare i32 @omp_get_thread_num()
declare i32 @omp_get_num_threads()
define internal void @kiln.parallel(ptr %run, ptr %pointers, ptr %sizes, i64 %total, i64 %count) nounwind {
entry:
%shared = alloca { ptr, ptr, ptr, i64 }, align 8
%some = icmp sgt i64 %total, 0
br i1 %some, label %nonempty, label %empty
empty:
ret void
nonempty:
%many = icmp sgt i64 %count, 1
br i1 %many, label %parallel, label %alone
alone:
call void %run(ptr %pointers, ptr %sizes, i64 0, i64 %total)
ret void
parallel:
store ptr %run, ptr %shared, align 8
%s1 = getelementptr i8, ptr %shared, i64 8
store ptr %pointers, ptr %s1, align 8
%s2 = getelementptr i8, ptr %shared, i64 16
store ptr %sizes, ptr %s2, align 8
%s3 = getelementptr i8, ptr %shared, i64 24
store i64 %total, ptr %s3, align 8
%narrow = trunc i64 %count to i32
call void @GOMP_parallel(ptr @kiln.share, ptr %shared, i32 %narrow, i32 0)
ret void
}
define internal void @kiln.share(ptr %shared) nounwind {
entry:
%run = load ptr, ptr %shared, align 8
%s1 = getelementptr i8, ptr %shared, i64 8
%pointers = load ptr, ptr %s1, align 8
%s2 = getelementptr i8, ptr %shared, i64 16
%sizes = load ptr, ptr %s2, align 8
%s3 = getelementptr i8, ptr %shared, i64 24
%total = load i64, ptr %s3, align 8
%number = call i32 @omp_get_thread_num()
%mine = zext i32 %number to i64
%threads = call i32 @omp_get_num_threads()
%count = zext i32 %threads to i64
%next = add i64 %mine, 1
%low = mul i64 %total, %mine
%start = udiv i64 %low, %count
%high = mul i64 %total, %next
%end = udiv i64 %high, %count
%some = icmp slt i64 %start, %end
br i1 %some, label %work, label %done
work:
call void %run(ptr %pointers, ptr %sizes, i64 %start, i64 %end)
br label %done
done:
ret void
}"""


def is_ordered(kernel: Kernel) -> bool:
    """Whether points may meet in one place, and count one after another."""
    return any(output.accumulate is not None or output.target.indirect for output in kernel.outputs)


def total_units(plan: Plan, values: Values, lines: Lines) -> Index:
    """How many units of work the kept loops are."""
    kernel = plan.shape.kernel
    total: Index = 1
    if any(not loop.is_reduced and isinstance(loop.size, int) and loop.size == 0 for loop in kernel.loops):
        return 0
    for loop in plan.outer:
        total = times(lines, total, plan.rounds(loop, values, lines))
    if plan.is_by_columns and not isinstance(total, int):  # all rows are one unit's, if there are any
        some = lines.new(f"icmp sgt i64 {total}, 0")
        total = lines.new(f"zext i1 {some} to i64")
    elif plan.is_by_columns:
        total = 1
    if plan.last is not None:
        total = times(lines, total, ceil_div(lines, values.size(kernel.loops[plan.last].size), plan.unit))
    return total


def all_points(kernel: Kernel, values: Values, lines: Lines) -> Index:
    total: Index = 1
    for loop in kernel.loops:
        total = times(lines, total, values.size(loop.size))
    return total


def cost_of(plan: Plan) -> int:
    """Picoseconds for each point of all loops."""
    kernel, vector = plan.shape.kernel, plan.shape.vector
    cost = 0
    for expr in kernel.phases:
        if expr.kind == "load":
            access = expr.payload
            near = vector is not None and not access.indirect and is_near(access.strides[vector])
            cost += MEMORY if near else GATHERED
        elif expr.args:
            cost += DEAR if expr.kind in DEAR_OPERATIONS else CHEAP
    cost += MEMORY * sum(output.is_inner for output in kernel.outputs)
    if vector in kernel.reduced:
        cost += SCANNED * sum(reduction.is_scan for reduction in kernel.reductions)
    return max(1, cost * (SCALAR if vector is None else 1))


def is_near(stride: Size) -> bool:
    return isinstance(stride, int) and -1 <= stride <= 1


# ---- how a kernel is run ---------------------------------------------------------------------------------------------


def plan_of(kernel: Kernel) -> Plan:
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
