"""Reductions of several whole tensors on a GPU, as reductions of rows of one length, which kernels share.

Otherwise the sums of squares of a model's gradients are a kernel for each shape. Rows of 16,384 elements, as many as a
tensor has, are one kernel for all of them, and the sums of the rows another one (kernel_arguments.py); the launches of
each become one (joint_launches.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from kiln.loops import ir
from kiln.loops.ir import Access, Buffer, Expr, Write
from kiln.loops.sizes import contiguous, same
from kiln.loops.steps import Call

from .kernel_arguments import LONG_ROW
from .split_reductions import LEAST_ELEMENTS_OF_GPU, can_be_split, kept_and_total, split_reductions

SEVERAL = 4  # tensors; fewer reductions rather share a kernel with what else reads their tensors
ROW = 16384  # elements
LEAST_ROW = LONG_ROW
MOST_ROWS = 4096


def shorten_reductions(items: Sequence[Write | Call], device: str) -> list[Write | Call]:
    """The items, with reductions of whole tensors cut into rows where there are several; others are split alone. What
    else is computed of such a tensor is cut into the same rows, so that one kernel does both."""
    whole = {item for item in items if isinstance(item, Write) and is_whole(item)}
    if len(whole) < SEVERAL:
        return split_reductions(items, device)
    cut = {access.buffer for write in whole for access in ir.loads_of(write.value) if not is_scalar(access, write)}
    found: list[Write | Call] = []
    for item in items:
        if isinstance(item, Write) and item in whole:
            found.extend(rows_of(item) or split_reductions([item], device))
        elif isinstance(item, Write) and not cut.isdisjoint(item.reads) and is_plain_and_flat(item):
            found.append(in_rows(item))
        else:
            found.extend(split_reductions([item], device))
    return found


def is_whole(write: Write) -> bool:
    """Whether it reduces all elements of tensors that are contiguous in memory, which no kernel makes."""
    if not can_be_split(write) or write.accumulate or not write.target.is_plain:
        return False
    if kept_and_total(write)[0] != 1 or any(expr.kind in ("iota", "size") for expr in ir.walk(write.value)):
        return False
    accesses = ir.loads_of(write.value)
    return any(is_flat(one, write) for one in accesses) and all(
        is_flat(one, write) or is_scalar(one, write) for one in accesses
    )


def is_plain_and_flat(write: Write) -> bool:
    """Whether it computes a tensor, element by element, of numbers and of tensors that are contiguous in memory, none
    of which a kernel makes."""
    if write.reduce or write.accumulate or not all(isinstance(size, int) for size in write.shape):
        return False
    if any(expr.kind in ("iota", "size") for expr in ir.walk(write.value)):
        return False
    if any(buffer.kind not in ("input", "called") for buffer in write.reads) or not is_in_order(write.target, write):
        return False
    return all(is_in_order(one, write) or is_scalar(one, write) for one in ir.loads_of(write.value))


def is_flat(access: Access, write: Write) -> bool:
    return access.buffer.kind in ("input", "called") and is_in_order(access, write)


def is_in_order(access: Access, write: Write) -> bool:
    """Whether an access goes through memory in the order of the write's space."""
    if not access.is_plain:
        return False
    pairs = zip(access.strides, contiguous(write.shape), write.shape, strict=True)
    return all(same(stride, wanted) or size == 1 for stride, wanted, size in pairs)


def is_scalar(access: Access, write: Write) -> bool:
    return access.is_plain and all(
        stride == 0 or size == 1 for stride, size in zip(access.strides, write.shape, strict=True)
    )


def row_length(total: int) -> int:
    """A power of two that divides the number of elements; 0 where none is long enough."""
    length = min(ROW, total & -total)
    while total // length > MOST_ROWS and total % (2 * length) == 0:
        length *= 2
    return length if length >= LEAST_ROW else 0


def rows_of(write: Write) -> list[Write] | None:
    """A reduction as two: of rows, then of the results of the rows. A small one stays one, over a flat space. None if
    the elements have no rows of a usual length."""
    _, total = kept_and_total(write)
    target = write.target
    if total < LEAST_ELEMENTS_OF_GPU:
        value = over_space(write, (1,))
        return [Write(Access(target.buffer, (0,), target.offset), (total,), value, write.reduce, (0,), node=write.node)]
    length = row_length(total)
    if not length:
        return None
    count = total // length
    buffer = Buffer(f"{target.buffer.name}_rows", write.value.dtype, (count,), (1,), "made")
    rows = Access(buffer, (1, 0), 0)
    first = Write(rows, (count, length), over_space(write, (length, 1)), write.reduce, (1,), node=write.node)
    load = ir.load(Access(buffer, (1,), 0))
    place = Access(target.buffer, (0,), target.offset)
    return [first, Write(place, (count,), load, write.reduce, (0,), node=write.node)]


def in_rows(write: Write) -> Write:
    """A plain write over the space that `rows_of` chooses for a reduction of as many elements."""
    _, total = kept_and_total(write)
    length = row_length(total) if total >= LEAST_ELEMENTS_OF_GPU else 0
    if total >= LEAST_ELEMENTS_OF_GPU and not length:
        return write
    shape, strides = ((total // length, length), (length, 1)) if length else ((total,), (1,))
    target = Access(write.target.buffer, strides, write.target.offset)
    return Write(target, shape, over_space(write, strides), node=write.node)


def over_space(write: Write, strides: tuple[int, ...]) -> Expr:
    """The value over another space, whose points have these distances in the flat order."""

    def leaf(part: Expr) -> Expr:
        if part.kind != "load":
            return part
        access: Access = part.payload
        is_moving = is_in_order(access, write)
        return ir.load(Access(access.buffer, strides if is_moving else (0,) * len(strides), access.offset))

    return ir.rewrite(write.value, leaf)
