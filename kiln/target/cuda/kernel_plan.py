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

import torch

from kiln.loops.ir import Access, Expr, varies_along, wide
from kiln.loops.kernel import Kernel, Reduction
from kiln.loops.sizes import Size, hint, is_one, is_unit_stride, is_zero, product
from kiln.platform.torch_shapes import FloorDiv

from ...platform.light_dataclass import dataclass
from ..llvm.phases import Phase, phases_of
from ..llvm.registers import Shape
from .atomics import COMBINED_TYPES
from .online_plan import OnlineSum, online_sum
from .parts.turn_plan import Turns, turns_of
from .row_registers import loads_of_later_phases, most_registers, registers_with
from .tile_plan import SIDE, Tile, tile_of

WARP = 32
MOST_THREADS = 1024
THREADS = 256  # of a block, where nothing asks for another number
WIDEST_ACCESS = 16  # bytes that a thread loads at once
ENOUGH_THREADS = 132 * 2048  # to keep the memory of a large GPU busy
FEWEST_COLUMNS = 8  # vectors side by side that a block sums
MOST_COPIES = 16
MOST_OF_A_THREAD = 64  # elements of a row
MOST_LANES = 8
MOST_BLOCKS = 1 << 31
MOST_SHARED = 48 * 1024  # bytes of a block
MOST_SCAN_ROUNDS = 64  # that a block takes one after another, if there are few rows
MOST_REGISTERS = 96  # for the rows that stay in registers
MOST_REGISTERS_OF_LARGE_BLOCKS = 36  # of 1024 threads, which have 64 registers each
MOST_AT_ONCE = 8  # rounds of a loop
BYTES_AT_ONCE = 128  # that a thread loads before it computes
OPERATIONS_AT_ONCE = 128
CHEAP = frozenset("load const iota cast reduced size assured".split())


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
    at_once: int  # how many rounds of those loops a thread takes at once
    threads: int
    blocks: Size
    shared_bytes: int  # that a launch asks for; what members exchange is part of the code
    aligned: tuple[int, ...]  # the alignment in bytes that the pointers of the kernel's buffers need
    phases: tuple[Phase, ...]
    closing: Phase
    tile: Tile | None = None  # where transposed loads go through shared memory
    online: OnlineSum | None = None  # where the first two phases run as one
    early: tuple[Expr, ...] = ()  # loads of later phases that run in the first one
    turns: Turns | None = None  # where a thread takes several points

    @property
    def lanes(self) -> int:
        return self.shape.lanes

    @property
    def units_of_block(self) -> int:
        return self.threads // self.members

    @property
    def members_of_warp(self) -> int:
        """How many members of a unit a warp has at most."""
        return max(1, WARP // self.units_of_block) if self.is_by_columns else WARP


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
    tiled = tiled_plan(kernel)
    if tiled is not None:
        return tiled
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
    turns = turns_of(kernel, kept, vector, lanes, hint(units) // ENOUGH_THREADS, THREADS)
    if turns is not None:
        shape = Shape(kernel, {**shape.depths, turns.loop: 2}, vector, lanes, row=1)
        units = units // turns.count
    rounds = units_of(kernel, reduced, vector, lanes)
    members, threads = 1, THREADS
    if is_by_columns:
        members, threads = members_of_columns(units, rounds, units_of(kernel, kept[-1:], vector, lanes))
    elif reduced:
        members = members_of(units, rounds)
    copies, sharing, online = 0, members, None
    has_scans = any(reduction.is_scan for reduction in kernel.reductions)
    if has_scans:
        members = members_of_scan(units, rounds, members, is_by_columns)
    elif reduced and not is_by_columns:
        if is_across and lanes > 1:
            sharing, copies = row_in_registers(phases, reduced, rounds, members, lanes)
        online = online_sum(phases) if not copies or (len(phases) == 2 and sharing > MOST_THREADS // 8) else None
        copies = copies if online is None else 0
        members = sharing if copies else members_of_loop(units, members)
    at_once = 1
    if reduced and not copies and not has_scans:
        at_once = rounds_at_once(phases, reduced, rounds, members, lanes)
        at_once = min(at_once, MOST_AT_ONCE // 2) if online is not None else at_once
    if reduced and not is_by_columns:
        threads = THREADS if members <= WARP else members
    blocks = ceil_div(units, threads // members)
    slots = exchanged_slots(members, threads, lanes, is_by_columns)
    if any(exchanged_bytes(reduction, slots) > MOST_SHARED for reduction in kernel.reductions):
        raise NotOnGpu("reductions that need more shared memory than a block has")
    aligned = alignments(kernel, vector, lanes)
    return CudaPlan(
        shape,
        tuple(kept),
        tuple(reduced),
        members,
        is_by_columns,
        copies,
        at_once,
        threads,
        blocks,
        0,
        aligned,
        phases,
        closing,
        online=online,
        early=early_loads(phases, reduced[0], units, members, copies * lanes) if copies else (),
        turns=turns,
    )


def tiled_plan(kernel: Kernel) -> CudaPlan | None:
    """The plan of a kernel whose transposed loads go through tiles; None where there are none."""
    loops = kernel.loops
    moving = [number for number, loop in enumerate(loops) if not is_one(loop.size)]
    if kernel.reductions or any(
        loops[number].is_reduced or not isinstance(loops[number].size, int) for number in moving
    ):
        return None
    vector = stored_along(kernel, moving)
    if vector is None or any(not isinstance(size, int) for size in kernel.all_sizes()):
        return None

    def lanes_along(access: Access, loop: int) -> int:
        lanes = max(1, WIDEST_ACCESS // max(2, width(access)))
        size = loops[loop].size
        assert isinstance(size, int)
        while lanes > 1 and (
            size % lanes or alignment(access, loop, lanes) < min(WIDEST_ACCESS, lanes * width(access))
        ):
            lanes //= 2
        return lanes

    tile = tile_of(kernel, vector, MOST_SHARED, lanes_along)
    if tile is None:
        return None
    lanes = lanes_of(kernel, vector, moving)
    kept = [loop for loop in moving if loop not in (tile.across, vector)] + [tile.across, vector]
    blocks = 1
    for loop in kept:
        size = loops[loop].size
        assert isinstance(size, int)
        blocks *= -(-size // SIDE) if loop in (tile.across, vector) else size
    if blocks >= MOST_BLOCKS:
        return None
    shape = Shape(kernel, dict.fromkeys(kept, 1), vector if lanes > 1 else None, lanes, row=1)
    needed = dict(zip(kernel.buffers, alignments(kernel, vector, lanes), strict=True))
    for tiled in tile.loads:
        buffer = tiled.access.buffer
        needed[buffer] = max(needed[buffer], alignment(tiled.access, tile.across, tiled.lanes))
    phases, closing = phases_of(kernel)
    return CudaPlan(
        shape, tuple(kept), (), 1, False, 0, 1, THREADS, blocks, 0, tuple(needed.values()), phases, closing, tile
    )


def stored_along(kernel: Kernel, moving: list[int]) -> int | None:
    """The loop along which most that is stored is contiguous."""
    if not kernel.outputs:
        return None
    found = max(moving, key=lambda loop: sum(is_contiguous(o.target, loop) for o in kernel.outputs), default=None)
    return found if found is not None and any(is_contiguous(o.target, found) for o in kernel.outputs) else None


def exchanged_slots(members: int, threads: int, lanes: int, is_by_columns: bool) -> int:
    """How many values of a reduction are in shared memory while the members of a block's units combine theirs."""
    if is_by_columns:
        return threads * lanes
    return members // WARP if members > WARP else 0


def exchanged_bytes(reduction: Reduction, slots: int) -> int:
    """The shared memory that a reduction needs for so many values, with their positions."""
    position = aligned(slots * torch.int64.itemsize) if reduction.position is not None else 0
    return aligned(slots * max(reduction.value.dtype.itemsize, wide(reduction.value.dtype).itemsize)) + position


def aligned(size: int) -> int:
    return -(-size // WIDEST_ACCESS) * WIDEST_ACCESS


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
    """How many elements a thread takes at once: so many that a contiguous access has 16 bytes, if they are aligned and
    there is work enough for all threads."""
    accesses = [access for access in kernel.accesses() if is_contiguous(access, vector)]
    if not accesses:
        return 1
    # What several threads add to is worth more than what they load: no thread adds to more than one vector.
    added = (o.target for o in kernel.outputs if o.accumulate is not None and is_contiguous(o.target, vector))
    widest = max(usual_width(kernel, accesses, moving), *map(width, added), 1)
    lanes = min(MOST_LANES, WIDEST_ACCESS // widest)
    size = kernel.loops[vector].size
    total = hint(product(kernel.loops[loop].size for loop in moving))
    is_single = len(moving) == 1 and not kernel.loops[vector].is_reduced
    if isinstance(size, int):
        # Threads that share a row wait for one another: a few warps that load it at once are faster than many.
        is_shared = kernel.loops[vector].is_reduced
        while lanes > 2 and total // lanes < ENOUGH_THREADS // 8 and not (is_shared and size // lanes >= WARP):
            lanes //= 2
        while lanes > 1 and size % lanes:
            lanes //= 2
    elif not is_single:
        return 1
    while lanes > 1 and any(alignment(access, vector, lanes) < min(16, lanes * width(access)) for access in accesses):
        lanes //= 2
    return lanes


def usual_width(kernel: Kernel, accesses: list[Access], moving: list[int]) -> int:
    """The bytes of an element, of those accesses that move most memory; at least 2."""
    total: dict[int, int] = {}
    for access in accesses:
        points = hint(product(kernel.loops[loop].size for loop in moving if not is_zero(access.strides[loop])))
        total[width(access)] = total.get(width(access), 0) + points * width(access)
    return max(2, max(total, key=lambda size: (total[size], -size)))


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


def members_of(units: Size, rounds: Size) -> int:
    """How many threads share a row: a power of two."""
    count, known = hint(rounds), hint(units)
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


def members_of_columns(units: Size, rounds: Size, side_by_side: Size) -> tuple[int, int]:
    """How many threads share the columns of a unit, of how many in a block: powers of two. ``side_by_side``: the units
    whose columns are contiguous."""
    count, known, threads = hint(rounds), hint(units), THREADS
    columns = min(WARP if known * FEWEST_COLUMNS > ENOUGH_THREADS // 8 else FEWEST_COLUMNS, power_of_two(known))
    columns = min(columns, power_of_two(hint(side_by_side)))
    if known < FEWEST_COLUMNS * 64 and count >= 4 * THREADS // columns:
        threads = MOST_THREADS
    most, members = min(threads // columns, power_of_two(count)), 1
    while members < most and known * members < ENOUGH_THREADS // 2:
        members *= 2
    return members, max(THREADS, members * columns)


def members_of_loop(units: Size, members: int) -> int:
    """How many threads share a row that they loop through: not more than are busy for some rounds, if there are enough
    of them."""
    while members > THREADS and hint(units) * members // 2 >= ENOUGH_THREADS:
        members //= 2
    return members


def power_of_two(number: int) -> int:
    """The least power of two that is not below a number."""
    return 1 << max(0, number - 1).bit_length()


def row_in_registers(
    phases: tuple[Phase, ...], reduced: list[int], rounds: Size, members: int, lanes: int
) -> tuple[int, int]:
    """How many threads share a row that stays in registers, and how many vectors of it each of them keeps; as many as
    were wanted and 0 where the row is too long."""
    if len(reduced) != 1 or not isinstance(rounds, int):
        return members, 0
    registers = max(0.5, most_registers(phases, reduced[0])) * lanes
    shared_by = members
    while shared_by <= MOST_THREADS:
        copies = -(-rounds // shared_by)
        most = MOST_REGISTERS if shared_by <= MOST_THREADS // 2 else MOST_REGISTERS_OF_LARGE_BLOCKS
        is_short = copies <= MOST_COPIES and copies * lanes <= MOST_OF_A_THREAD
        if copies == 1 or (is_short and copies * registers <= most):
            return shared_by, copies
        shared_by *= 2
    return members, 0


def early_loads(phases: tuple[Phase, ...], loop: int, units: Size, members: int, elements: int) -> tuple[Expr, ...]:
    """The loads of later phases that need not wait for the first one: all of them, where there are so few rows that
    nothing else keeps the memory busy, and registers enough for ``elements`` of a row."""
    if hint(units) * members > ENOUGH_THREADS // 4:
        return ()
    found = loads_of_later_phases(phases)
    most = MOST_REGISTERS if members <= MOST_THREADS // 2 else MOST_REGISTERS_OF_LARGE_BLOCKS
    return tuple(found) if elements * registers_with(phases, loop, found) <= most else ()


def rounds_at_once(phases: tuple[Phase, ...], reduced: list[int], rounds: Size, members: int, lanes: int) -> int:
    """How many rounds of the reduced loops a thread takes at once: so many that enough memory is on its way to it, if
    there are so many for each thread, and if the code is not too long."""
    best = MOST_AT_ONCE
    for phase in phases:
        loads = [expr for expr in phase.order if expr.kind == "load" and moves_along(expr, reduced)]
        loaded = sum(lanes * expr.dtype.itemsize for expr in loads)
        operations = sum(expr.kind not in CHEAP for expr in phase.order)
        best = min(best, BYTES_AT_ONCE // max(1, loaded), OPERATIONS_AT_ONCE // max(1, operations))
    best = min(best, hint(rounds) // members)
    return power_of_two(best + 1) // 2 if best > 1 else 1


def moves_along(expr: Expr, loops: list[int]) -> bool:
    return any(not is_zero(expr.payload.strides[loop]) for loop in loops)
