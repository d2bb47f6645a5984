"""Large reductions to few elements, in two steps: parts that threads can share, then the sum of the parts.

How many parts there are depends on sizes alone, so results do not depend on the number of threads. A GPU has many more
threads than a CPU: what keeps it busy is counted in blocks of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from kiln.loops import ir, tensor_views
from kiln.loops.ir import Access, Buffer, Write
from kiln.loops.sizes import Size, is_zero
from kiln.loops.steps import Call

LEAST_ELEMENTS = 32768  # of the whole; below, one thread is as fast
ENOUGH_KEPT = 64  # results enough to share among threads, in vectors if need be
PARTS = 32  # at most
ASSOCIATIVE = {"sum", "prod", "max", "min", "any", "all"}
# On a GPU.
LEAST_ELEMENTS_OF_GPU = 65536
ENOUGH_BLOCKS = 264  # two on each multiprocessor of a large GPU
COLUMNS_OF_A_BLOCK = 128  # of sums down columns
LEAST_OF_A_PART = 2048  # elements that are worth a block


def split_reductions(items: Sequence[Write | Call], device: str = "cpu") -> list[Write | Call]:
    find = how_many_parts if device == "cpu" else how_many_parts_on_gpu
    found: list[Write | Call] = []
    for item in items:
        parts = find(item) if isinstance(item, Write) else None
        if parts is None:
            found.append(item)
        else:
            assert isinstance(item, Write)
            found.extend(split(item, *parts))
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


def how_many_parts(write: Write) -> tuple[int, int] | None:
    """The axis to split, and into how many parts; None where that is impossible or does not pay."""
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
                return axis, parts
    return None


def how_many_parts_on_gpu(write: Write) -> tuple[int, int] | None:
    """As `how_many_parts`. A block takes one result, or some columns; there are to be enough blocks, of enough work."""
    if not can_be_split(write):
        return None
    kept, total = kept_and_total(write)
    blocks = kept if is_along_rows(write) else -(-kept // COLUMNS_OF_A_BLOCK)
    if total < LEAST_ELEMENTS_OF_GPU or blocks >= ENOUGH_BLOCKS:
        return None
    wanted = min(-(-2 * ENOUGH_BLOCKS // blocks), total // (blocks * LEAST_OF_A_PART))
    best: tuple[int, int] | None = None
    for axis in write.axes:
        size = write.shape[axis]
        assert isinstance(size, int)
        parts = next((parts for parts in range(min(wanted, size), 1, -1) if size % parts == 0), 1)
        if parts > (best[1] if best is not None else 1):
            best = axis, parts
    return best


def is_along_rows(write: Write) -> bool:
    """Whether the memory that is read, as far as it is as large as the space, is contiguous along reduced axes."""
    accesses = ir.loads_of(write.value)
    axes = [sum(not is_zero(stride) for stride in access.strides) for access in accesses]
    large = [access for access, count in zip(accesses, axes, strict=True) if count == max(axes)]
    return any(access.strides[axis] == 1 for access in large for axis in write.axes)


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
