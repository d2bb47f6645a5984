"""How a kernel is run on a GPU: which loops become blocks and threads, how wide vectors are, who reduces together.

A *unit* is a point of the kept loops, or ``lanes`` points along the vector loop. Without reductions a thread computes a
unit. With them, ``members`` threads share the reduced loops of a unit, in one of two ways:

- by rows: neighbouring threads take neighbouring elements of the reduced loops (memory is contiguous along those);
- by columns: neighbouring threads take neighbouring units, and the members of a unit are apart (memory is contiguous
  along a kept loop, as in sums down the columns of a matrix).

A row that is short enough stays in registers between the phases of a kernel: ``copies`` vectors of each thread.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from kiln.loops.ir import Access, Expr, varies_along
from kiln.loops.kernel import Kernel
from kiln.loops.sizes import Size, hint, is_one, is_unit_stride, is_zero, product
from kiln.platform.torch_shapes import FloorDiv

from ...platform.light_dataclass import dataclass
from ..llvm.phases import Phase, phases_of
from ..llvm.registers import Shape
from .atomics import COMBINED_TYPES

WARP = 32
MOST_THREADS = 1024
THREADS = 256  # of a block, where nothing asks for another number
WIDEST_ACCESS = 16  # bytes that a thread loads at once
ENOUGH_THREADS = 132 * 2048  # to keep the memory of a large GPU busy
MOST_COPIES = 8
SLOT = 8  # bytes of a value in shared memory
MOST_SHARED = 48 * 1024  # bytes of a block
MOST_SCAN_ROUNDS = 64  # that a block takes one after another, if there are few rows
MOST_REGISTERS = 96  # for the rows that stay in registers


class NotOnGpu(Exception):
    """A kernel that has no form on GPUs; the text says why."""


@dataclass(frozen=True)
class CudaPlan:
    """Geometry and code of a kernel. ``blocks`` is a number, or an expression of the kernel's sizes."""

    shape: Shape
    kept: tuple[int, ...]  # the loops that units are points of, from outside
    reduced: tuple[int, ...]
    members: int
    is_by_columns: bool
    copies: int  # 0: the reduced loops are loops
    threads: int
    blocks: Size
    shared_bytes: int  # that a launch asks for; what members exchange is part of the code
    aligned: tuple[int, ...]  # the alignment in bytes that the pointers of the kernel's buffers need
    phases: tuple[Phase, ...]
    closing: Phase

    @property
    def lanes(self) -> int:
        return self.shape.lanes

    @property
    def units_of_block(self) -> int:
        return self.threads // self.members


def plan_of(kernel: Kernel) -> CudaPlan:
    """The plan of a kernel, computed once for its code and its launches. Raises `NotOnGpu`."""
    plan: CudaPlan | None = kernel.plan
    if plan is None:
        check_operations(kernel)
        plan = kernel.plan = find_plan(kernel)
    return plan


def check_operations(kernel: Kernel) -> None:
    for output in kernel.outputs:
        if output.accumulate is not None and output.target.buffer.dtype not in COMBINED_TYPES:
            raise NotOnGpu(f"combinations of {output.target.buffer.dtype} by several threads")


def find_plan(kernel: Kernel) -> CudaPlan:
    loops = kernel.loops
    moving = [number for number, loop in enumerate(loops) if not is_one(loop.size)]
    vector = kernel.vector if kernel.vector in moving else None
    lanes = lanes_of(kernel, vector, moving) if vector is not None else 1
    is_across = vector is not None and loops[vector].is_reduced
    kept = in_order([number for number in moving if not loops[number].is_reduced], vector)
    reduced = in_order([number for number in moving if loops[number].is_reduced], vector)
    phases, closing = phases_of(kernel)
    if lanes == 1:
        vector, moves_last = None, vector
    else:
        moves_last = vector
    shape = Shape(kernel, dict.fromkeys(kept, 1) | dict.fromkeys(reduced, 2), vector, lanes, row=1)
    is_by_columns = bool(reduced) and moves_last is not None and not loops[moves_last].is_reduced
    units = units_of(kernel, kept, vector, lanes)
    rounds = units_of(kernel, reduced, vector, lanes)
    members = members_of(units, rounds, is_by_columns) if reduced else 1
    copies = copies_of(kernel, phases, reduced, rounds, members, lanes) if is_across and lanes > 1 else 0
    if any(reduction.is_scan for reduction in kernel.reductions):
        members, copies = members_of_scan(units, rounds, members, is_by_columns), 0
    threads = THREADS
    if reduced:
        threads = max(THREADS if members <= WARP or is_by_columns else members, members)
    blocks = ceil_div(units, threads // members)
    if exchanged_bytes(kernel, members, threads, lanes, is_by_columns) > MOST_SHARED:
        raise NotOnGpu("reductions that need more shared memory than a block has")
    aligned = alignments(kernel, vector, lanes)
    return CudaPlan(
        shape,
        tuple(kept),
        tuple(reduced),
        members,
        is_by_columns,
        copies,
        threads,
        blocks,
        0,
        aligned,
        phases,
        closing,
    )


def exchanged_bytes(kernel: Kernel, members: int, threads: int, lanes: int, is_by_columns: bool) -> int:
    """The shared memory through which the members of a block's units combine their results."""
    if not is_by_columns and members <= WARP:
        return 0
    slots = threads * lanes if is_by_columns else 2 * threads // WARP
    return sum(SLOT * slots * (1 + (reduction.position is not None)) for reduction in kernel.reductions)


def in_order(loops: list[int], vector: int | None) -> list[int]:
    """The loops, with that of the vectors last."""
    return [loop for loop in loops if loop != vector] + [loop for loop in loops if loop == vector]


def ceil_div(value: Size, by: int) -> Size:
    if by == 1:
        return value
    return -(-value // by) if isinstance(value, int) else FloorDiv(value + (by - 1), by)


def units_of(kernel: Kernel, loops: Iterable[int], vector: int | None, lanes: int) -> Size:
    """How many points loops have, where a vector of them counts as one."""
    return product(
        ceil_div(kernel.loops[loop].size, lanes) if loop == vector else kernel.loops[loop].size for loop in loops
    )


# ---- vectors ---------------------------------------------------------------------------------------------------------


def lanes_of(kernel: Kernel, vector: int, moving: list[int]) -> int:
    """How many elements a thread takes at once: so many that the narrowest contiguous access has 16 bytes, if they are
    aligned and there is work enough for all threads."""
    accesses = [access for access in kernel.accesses() if is_contiguous(access, vector)]
    if not accesses:
        return 1
    lanes = WIDEST_ACCESS // max(2, min(access.buffer.dtype.itemsize for access in accesses))
    size = kernel.loops[vector].size
    total = hint(product(kernel.loops[loop].size for loop in moving))
    is_single = len(moving) == 1 and not kernel.loops[vector].is_reduced
    if isinstance(size, int):
        while lanes > 2 and total // lanes < ENOUGH_THREADS // 8:
            lanes //= 2
        while lanes > 1 and size % lanes:
            lanes //= 2
    elif not is_single:
        return 1
    while lanes > 1 and any(alignment(access, vector, lanes) < min(16, lanes * width(access)) for access in accesses):
        lanes //= 2
    return lanes


def width(access: Access) -> int:
    return access.buffer.dtype.itemsize


def is_contiguous(access: Access, vector: int) -> bool:
    """Whether an access is contiguous along the vector loop."""
    return (
        is_unit_stride(access.strides[vector]) and access.strides[vector] == 1 and not moves_indirectly(access, vector)
    )


def moves_indirectly(access: Access, vector: int) -> bool:
    return any(varies_along(expr, vector) for expr, _ in access.indirect)


def alignment(access: Access, vector: int, lanes: int) -> int:
    """The alignment in bytes of a contiguous vector, if its buffer is aligned to 16 bytes."""
    found = min(WIDEST_ACCESS, lanes * width(access))
    steps = [stride for loop, stride in enumerate(access.strides) if loop != vector and not is_zero(stride)]
    steps += [access.offset, *(stride for _, stride in access.indirect)]
    for step in steps:
        found = math.gcd(found, step * width(access)) if isinstance(step, int) else width(access)
    return found


def alignments(kernel: Kernel, vector: int | None, lanes: int) -> tuple[int, ...]:
    needed = dict.fromkeys(kernel.buffers, 1)
    for access in kernel.accesses() if vector is not None and lanes > 1 else ():
        assert vector is not None
        if is_contiguous(access, vector):
            needed[access.buffer] = max(needed[access.buffer], alignment(access, vector, lanes))
    return tuple(needed.values())


# ---- reductions ------------------------------------------------------------------------------------------------------


def members_of(units: Size, rounds: Size, is_by_columns: bool) -> int:
    """How many threads share the reduced loops of a unit: a power of two."""
    count, known = hint(rounds), hint(units)
    if is_by_columns:
        columns = min(WARP, power_of_two(known))
        return max(1, min(THREADS // columns, power_of_two(count)))
    members = min(WARP, power_of_two(count))
    while members < MOST_THREADS and count > 8 * members:
        members *= 2
    while members < min(MOST_THREADS, power_of_two(count)) and known * members < ENOUGH_THREADS // 2:
        members *= 2
    return members


def members_of_scan(units: Size, rounds: Size, members: int, is_by_columns: bool) -> int:
    """Threads that share a scan. Each goes down a column alone, as in ATen's kernels, which share a single row among
    several blocks."""
    if is_by_columns:
        return 1
    if hint(rounds) > MOST_SCAN_ROUNDS * members and hint(units) * members < ENOUGH_THREADS // 4:
        raise NotOnGpu("a scan of few long rows")
    return members


def power_of_two(number: int) -> int:
    """The least power of two that is not below a number."""
    return 1 << max(0, number - 1).bit_length()


def copies_of(
    kernel: Kernel, phases: tuple[Phase, ...], reduced: list[int], rounds: Size, members: int, lanes: int
) -> int:
    """How many vectors of a row each thread keeps in registers; 0 where the row is too long, or read only once."""
    if len(reduced) != 1 or not isinstance(rounds, int):
        return 0
    copies = -(-rounds // members)
    loaded = {expr for phase in phases for expr in phase.order if is_kept_in_registers(expr, reduced[0])}
    registers = copies * lanes * max(1, len(loaded))
    return copies if copies <= MOST_COPIES and registers <= MOST_REGISTERS else 0


def is_kept_in_registers(expr: Expr, loop: int) -> bool:
    return expr.kind == "load" and not is_zero(expr.payload.strides[loop])
