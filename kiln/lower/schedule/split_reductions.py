"""Large reductions to few elements, in two steps: parts that threads can share, then the sum of the parts.

How many parts there are depends on sizes alone, so results do not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence

from kiln.loops import ir, tensor_views
from kiln.loops.ir import Access, Buffer, Write
from kiln.loops.sizes import Size
from kiln.loops.steps import Call

LEAST_ELEMENTS = 32768  # of the whole; below, one thread is as fast
ENOUGH_KEPT = 64  # results enough to share among threads, in vectors if need be
PARTS = 32  # at most
ASSOCIATIVE = {"sum", "prod", "max", "min", "any", "all"}


def split_reductions(items: Sequence[Write | Call]) -> list[Write | Call]:
    found: list[Write | Call] = []
    for item in items:
        parts = how_many_parts(item) if isinstance(item, Write) else None
        if parts is None:
            found.append(item)
        else:
            assert isinstance(item, Write)
            found.extend(split(item, *parts))
    return found


def how_many_parts(write: Write) -> tuple[int, int] | None:
    """The axis to split, and into how many parts; None where that is impossible or does not pay."""
    if write.reduce not in ASSOCIATIVE or write.is_scan or not all(isinstance(size, int) for size in write.shape):
        return None
    kept = total = 1
    for axis, size in enumerate(write.shape):
        assert isinstance(size, int)
        total *= size
        kept *= 1 if axis in write.axes else size
    if total < LEAST_ELEMENTS or kept >= ENOUGH_KEPT:
        return None
    for axis in write.axes:  # the outermost that can be split: parts are then contiguous
        size = write.shape[axis]
        assert isinstance(size, int)
        for parts in range(min(PARTS, size), 3, -1):
            if size % parts == 0 and total // parts >= 1024:
                return axis, parts
    return None


def split(write: Write, axis: int, parts: int) -> list[Write]:
    size = write.shape[axis]
    assert isinstance(size, int)
    shape: tuple[Size, ...] = (*write.shape[:axis], parts, size // parts, *write.shape[axis + 1 :])
    rows = []
    for dim in range(len(write.shape)):
        moved = dim + (dim > axis)
        rows.append(({axis: size // parts, axis + 1: 1} if dim == axis else {moved: 1}, 0))
    value = tensor_views.affine(tensor_views.Tensor(write.shape, write.value), shape, rows)
    axes = tuple(dim + (dim >= axis) for dim in write.axes)
    kept = [size if dim not in axes else 1 for dim, size in enumerate(shape)]
    strides, step = [0] * len(shape), 1
    for dim in reversed(range(len(shape))):
        if dim not in axes:
            strides[dim] = step
            step *= kept[dim]
    buffer = Buffer(f"{write.buffer.name}_parts", write.value.dtype, tuple(kept), tuple(strides), "made")
    first = Write(Access(buffer, tuple(strides), 0), shape, value.expr, write.reduce, axes, node=write.node)
    rest = tuple(size for dim, size in enumerate(shape) if dim not in axes)
    load = ir.load(Access(buffer, tuple(s for dim, s in enumerate(strides) if dim not in axes), 0))
    place = sum(dim not in axes for dim in range(axis))
    targets = [s for dim, s in enumerate(write.target.strides) if dim not in write.axes]
    targets.insert(place, 0)
    second = Write(
        Access(write.buffer, tuple(targets), write.target.offset), rest, load, write.reduce, (place,), node=write.node
    )
    return [first, second]
