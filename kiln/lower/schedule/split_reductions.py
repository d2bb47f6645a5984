"""Large reductions to few elements, in two steps: parts that threads can share, then the sum of the parts.

How many parts there are depends on sizes alone, so results do not depend on the number of threads. A GPU has many more
threads than a CPU: what keeps it busy is counted in blocks of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from kiln.loops import ir, tensor_views
from kiln.loops.ir import Access, Buffer, Write
from kiln.loops.sizes import Size, contiguous, is_zero
from kiln.loops.steps import Call

LEAST_ELEMENTS = 32768  # of the whole; below, one thread is as fast
ENOUGH_KEPT = 64  # results enough to share among threads, in vectors if need be
PARTS = 32  # at most
ASSOCIATIVE = {"sum", "prod", "max", "min", "any", "all"}
# On a GPU.
LEAST_ELEMENTS_OF_GPU = 65536
ENOUGH_BLOCKS = 264  # two on each multiprocessor of a large GPU
WANTED_BLOCKS = 1056  # where there are not enough
VECTORS_OF_A_BLOCK = 32  # side by side, in sums down columns
WIDEST_ACCESS = 16  # bytes of such a vector
LEAST_OF_ROWS, LEAST_OF_COLUMNS = 2048, 8192  # elements that are worth a block
LONGEST_WHOLE_ROW = 16384  # elements that a block reads in less time than another launch takes

Parts = dict[int, int]  # into how many parts each axis is split


def split_reductions(items: Sequence[Write | Call], device: str = "cpu") -> list[Write | Call]:
    find = how_many_parts if device == "cpu" else how_many_parts_on_gpu
    found: list[Write | Call] = []
    for item in items:
        parts = find(item) if isinstance(item, Write) else None
        if parts is None:
            found.append(item)
        else:
            assert isinstance(item, Write)
            found.extend(split(item, parts, are_parts_outside=device != "cpu"))
    return found


def can_be_split(write: Write) -> bool:
    return write.reduce in ASSOCIATIVE and not write.is_scan and all(isinstance(size, int) for size in write.shape)


def kept_and_total(write: Write) -> tuple[int, int]:
    """How many results a reduction of fixed sizes has, and of how many elements."""
    kept = total = 1
    for axis, size in enumerate(write.shape):
        assert isinstance(size, int)
        total *= size
        kept *= 1 if axis in write.axes else size
    return kept, total


def how_many_parts(write: Write) -> Parts | None:
    """The axes to split, and into how many parts; None where that is impossible or does not pay."""
    if not can_be_split(write):
        return None
    kept, total = kept_and_total(write)
    if total < LEAST_ELEMENTS or kept >= ENOUGH_KEPT:
        return None
    for axis in write.axes:  # the outermost that can be split: parts are then contiguous
        size = write.shape[axis]
        assert isinstance(size, int)
        for parts in range(min(PARTS, size), 3, -1):
            if size % parts == 0 and total // parts >= 1024:
                return {axis: parts}
    return None


def how_many_parts_on_gpu(write: Write) -> Parts | None:
    """As `how_many_parts`. A block takes one result, or some columns; there are to be enough blocks, of enough work."""
    if not can_be_split(write):
        return None
    kept, total = kept_and_total(write)
    is_by_rows = is_along_rows(write)
    blocks = kept if is_by_rows else -(-kept // columns_of_block(write))
    if total < LEAST_ELEMENTS_OF_GPU or blocks >= ENOUGH_BLOCKS:
        return None
    if is_by_rows and total // kept <= LONGEST_WHOLE_ROW:
        return None
    most, least = (2 * ENOUGH_BLOCKS, LEAST_OF_ROWS) if is_by_rows else (WANTED_BLOCKS, LEAST_OF_COLUMNS)
    wanted = min(most, total // least) // blocks
    axes = [(axis, write.shape[axis]) for axis in write.axes]
    outer, any_axes = outer_parts(axes, wanted), best_parts(axes, wanted)
    found = any_axes if count_of(any_axes) >= 2 * count_of(outer) else outer
    return found if 1 < count_of(found) < total // kept else None


def count_of(parts: Parts) -> int:
    return math.prod(parts.values())


def outer_parts(axes: Sequence[tuple[int, Size]], wanted: int) -> Parts:
    """As many parts as are wanted, or fewer, that are contiguous: outer axes are split into all their elements."""
    found: Parts = {}
    for axis, size in axes:
        assert isinstance(size, int)
        parts = next(parts for parts in range(max(1, min(wanted, size)), 0, -1) if size % parts == 0)
        if parts > 1:
            found[axis] = parts
        if parts < size:
            break
        wanted //= parts
    return found


def best_parts(axes: Sequence[tuple[int, Size]], wanted: int) -> Parts:
    """As many parts as are wanted, or fewer: of each axis a number that divides its size."""
    if not axes:
        return {}
    (axis, size), *rest = axes
    assert isinstance(size, int)
    best: Parts = {}
    for parts in range(min(wanted, size), 0, -1):
        if size % parts == 0:
            found = best_parts(rest, wanted // parts)
            found = {axis: parts, **found} if parts > 1 else found
            if count_of(found) > count_of(best):
                best = found
    return best


def columns_of_block(write: Write) -> int:
    """How many columns a block of threads sums."""
    widths = [access.buffer.dtype.itemsize for access in large_accesses(write)]
    return VECTORS_OF_A_BLOCK * (WIDEST_ACCESS // max(2, min(widths, default=4)))


def large_accesses(write: Write) -> list[Access]:
    """The loads that move along the most axes."""
    accesses = ir.loads_of(write.value)
    axes = [sum(not is_zero(stride) for stride in access.strides) for access in accesses]
    return [access for access, count in zip(accesses, axes, strict=True) if count == max(axes)]


def is_along_rows(write: Write) -> bool:
    """Whether the memory that is read, as far as it is as large as the space, is contiguous along reduced axes."""
    return any(access.strides[axis] == 1 for access in large_accesses(write) for axis in write.axes)


def split(write: Write, parts: Parts, are_parts_outside: bool) -> list[Write]:
    """A reduction of each part, and the reduction of their results. ``are_parts_outside``: the results of a part lie
    together in memory."""
    shape: list[Size] = []
    rows: list[tuple[dict[int, Size], Size]] = []
    axes: list[int] = []  # that are reduced within a part
    targets: list[Size] = []  # the strides of the result along the axes that are kept
    part_axes: list[int] = []  # among those that are kept
    for axis, size in enumerate(write.shape):
        count = parts.get(axis, 1)
        if axis not in write.axes:
            rows.append(({len(shape): 1}, 0))
            targets.append(write.target.strides[axis])
            shape.append(size)
            continue
        assert isinstance(size, int)
        place: dict[int, Size] = {}
        if count > 1:
            place[len(shape)] = size // count
            part_axes.append(len(targets))
            targets.append(0)
            shape.append(count)
        if count < size or count == 1:
            place[len(shape)] = 1
            axes.append(len(shape))
            shape.append(size // count)
        rows.append((place, 0))
    value = tensor_views.affine(tensor_views.Tensor(write.shape, write.value), tuple(shape), rows)
    kept = tuple(size for axis, size in enumerate(shape) if axis not in axes)
    inner = contiguous(kept)
    if are_parts_outside:
        order = [*part_axes, *(axis for axis in range(len(kept)) if axis not in part_axes)]
        steps = dict(zip(order, contiguous([kept[axis] for axis in order]), strict=True))
        inner = tuple(steps[axis] for axis in range(len(kept)))
    outer = iter(inner)
    strides = tuple(0 if axis in axes else next(outer) for axis in range(len(shape)))
    whole = tuple(1 if axis in axes else size for axis, size in enumerate(shape))
    buffer = Buffer(f"{write.buffer.name}_parts", write.value.dtype, whole, strides, "made")
    first = Write(Access(buffer, strides, 0), tuple(shape), value.expr, write.reduce, tuple(axes), node=write.node)
    second = Write(
        Access(write.buffer, tuple(targets), write.target.offset),
        kept,
        ir.load(Access(buffer, inner, 0)),
        write.reduce,
        tuple(part_axes),
        node=write.node,
    )
    return [first, second]
