"""Views of expressions: a view changes the space of loops, and with it the strides of the leaves.

Lowering computes with `Tensor`s: a shape, and the expression of an element. A whole buffer is one load. All views but
one are affine: each old position is a sum of new positions (`affine`). The exception is a `reshape` that joins loops:
it needs leaves whose strides allow it. Where they do not, it returns None, and lowering materializes the value first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ..platform.light_dataclass import dataclass
from .ir import Access, Expr, assured, iota, load, op, rewrite, size_value
from .sizes import Size, Strides, divides, is_one, same


@dataclass(frozen=True, eq=False)
class Tensor:
    """An expression over a space of this shape."""

    shape: tuple[Size, ...]
    expr: Expr

    @property
    def dtype(self) -> torch.dtype:
        return self.expr.dtype

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def access(self) -> Access | None:
        """The access, if the tensor is a plain load."""
        return self.expr.payload if self.expr.kind == "load" and self.expr.payload.is_plain else None


class DynamicFloat(Tensor):
    """A float that may differ in each call (float64), read from memory. Type promotion treats it as a Python number."""


StridesAndOffset = tuple[Strides, Size]


def map_leaves(
    expr: Expr, change: Callable[[Strides, Size], StridesAndOffset], known: dict[Expr, Expr] | None = None
) -> Expr:
    """The expression with the strides and offset of each leaf changed."""

    def leaf(part: Expr) -> Expr:
        if part.kind == "iota":
            return iota(*change(*part.payload))
        if part.kind == "load":
            access: Access = part.payload
            strides, offset = change(access.strides, access.offset)
            return load(Access(access.buffer, strides, offset, access.indirect, access.mask))
        return part

    return rewrite(expr, leaf, known)


Row = tuple[dict[int, Size], Size]  # how an old position is made: {new axis: factor}, plus an offset


def affine(tensor: Tensor, shape: Sequence[Size], rows: Sequence[Row]) -> Tensor:
    """The tensor over a new space: ``rows[d]`` says how position d is computed: {new axis: factor}, plus an offset."""
    shape = tuple(shape)
    return Tensor(
        shape, map_leaves(tensor.expr, lambda strides, offset: moved_strides(strides, offset, len(shape), rows))
    )


def moved_strides(strides: Strides, offset: Size, rank: int, rows: Sequence[Row]) -> StridesAndOffset:
    """Strides and offset over the new space."""
    new: list[Size] = [0] * rank
    for stride, (factors, start) in zip(strides, rows, strict=True):
        if stride == 0 and isinstance(stride, int):
            continue
        for axis, factor in factors.items():
            new[axis] = new[axis] + stride * factor
        if start != 0:
            offset = offset + stride * start
    return tuple(new), offset


def indexed(tensor: Tensor, shape: Sequence[Size], rows: Sequence[Row | Tensor]) -> Tensor:
    """As `affine`, but a position may also be data: a tensor (int64, of the new shape, with indices within the
    range)."""
    shape = tuple(shape)
    known = [row_of_data(row) if isinstance(row, Tensor) else row for row in rows]
    data = {d: row.expr for d, row in enumerate(rows) if isinstance(row, Tensor) and row.expr.kind != "iota"}

    def leaf(part: Expr) -> Expr:
        if part.kind not in ("load", "iota"):
            return part
        strides, offset = part.payload if part.kind == "iota" else (part.payload.strides, part.payload.offset)
        place = moved_strides(strides, offset, len(shape), known)
        found = tuple((expr, strides[d]) for d, expr in data.items() if strides[d] != 0)
        if part.kind == "load":
            access: Access = part.payload
            return load(Access(access.buffer, *place, (*access.indirect, *found), access.mask))
        total = iota(*place)
        for expr, stride in found:
            total = op("add", total, op("mul", expr, size_value(stride)))
        return total

    return Tensor(shape, rewrite(tensor.expr, leaf))


def row_of_data(tensor: Tensor) -> Row:
    """The affine part of a position that is data: all of it for an iota, otherwise nothing."""
    if tensor.expr.kind != "iota":
        return {}, 0
    strides, offset = tensor.expr.payload
    return {axis: stride for axis, stride in enumerate(strides) if stride != 0}, offset


def permute(tensor: Tensor, dims: Sequence[int]) -> Tensor:
    inverse = {dim: axis for axis, dim in enumerate(dims)}
    return affine(tensor, [tensor.shape[dim] for dim in dims], [({inverse[d]: 1}, 0) for d in range(tensor.rank)])


def expand(tensor: Tensor, shape: Sequence[Size]) -> Tensor:
    """Broadcast to a shape of at least as many axes (sizes, not -1)."""
    if tuple(shape) == tensor.shape:
        return tensor
    lead = len(shape) - tensor.rank
    rows = [
        ({} if is_one(size) and not is_one(shape[lead + d]) else {lead + d: 1}, 0)
        for d, size in enumerate(tensor.shape)
    ]
    return affine(tensor, shape, rows)


def unsqueeze(tensor: Tensor, dim: int) -> Tensor:
    shape = [*tensor.shape[:dim], 1, *tensor.shape[dim:]]
    return affine(tensor, shape, [({d + (d >= dim): 1}, 0) for d in range(tensor.rank)])


def select(tensor: Tensor, dim: int, index: Size) -> Tensor:
    """One (non-negative) position of an axis, without the axis."""
    shape = [*tensor.shape[:dim], *tensor.shape[dim + 1 :]]
    rows = [({}, index) if d == dim else ({d - (d > dim): 1}, 0) for d in range(tensor.rank)]
    return affine(tensor, shape, rows)


def squeeze(tensor: Tensor, dims: Sequence[int]) -> Tensor:
    for dim in sorted(dims, reverse=True):
        tensor = select(tensor, dim, 0)
    return tensor


def slice_(tensor: Tensor, dim: int, start: Size, length: Size, step: Size = 1) -> Tensor:
    shape = [length if d == dim else size for d, size in enumerate(tensor.shape)]
    rows = [({d: step}, start) if d == dim else ({d: 1}, 0) for d in range(tensor.rank)]
    return affine(tensor, shape, rows)


def shift(tensor: Tensor, shape: Sequence[Size], offsets: Sequence[Size]) -> Tensor:
    """Over another space, whose position p is position ``p - offset`` of the tensor. Positions may be out of range: the
    caller guards the loads with `masked`."""
    return affine(tensor, shape, [({d: 1}, -offset) for d, offset in enumerate(offsets)])


def flip(tensor: Tensor, dims: Sequence[int]) -> Tensor:
    rows = [({d: -1}, size - 1) if d in dims else ({d: 1}, 0) for d, size in enumerate(tensor.shape)]
    return affine(tensor, tensor.shape, rows)


def masked(tensor: Tensor, mask: Tensor) -> Tensor:
    """The tensor, loaded only where the mask (of the same shape) is true; elsewhere its value is undefined. What is
    assured is so only there."""

    def leaf(part: Expr) -> Expr:
        if part.kind == "assured":
            condition, value = part.args
            return assured(op("or", op("not", mask.expr), condition), value, part.payload)
        if part.kind != "load":
            return part
        access: Access = part.payload
        both = mask.expr if access.mask is None else op("and", access.mask, mask.expr)
        return load(Access(access.buffer, access.strides, access.offset, access.indirect, both))

    return Tensor(tensor.shape, rewrite(tensor.expr, leaf))


# ---- reshape ---------------------------------------------------------------------------------------------------------


def matching_axes(old: Sequence[Size], new: Sequence[Size]) -> list[tuple[list[int], list[int]]] | None:
    """Cuts two shapes of equal numbers of elements into runs of axes with equal products; None where that is
    unknown."""
    runs: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        a, b = [], []
        left: Size = 1
        right: Size = 1
        if i < len(old):
            a.append(i)
            left = old[i]
            i += 1
        if j < len(new):
            b.append(j)
            right = new[j]
            j += 1
        while not same(left, right):
            smaller_left = isinstance(left, int) and isinstance(right, int) and left < right
            if not isinstance(left, int) or not isinstance(right, int):
                smaller_left = divides(left, right)
                if not smaller_left and not divides(right, left):
                    return None
            if smaller_left:
                if i >= len(old):
                    return None
                a.append(i)
                left = left * old[i]
                i += 1
            else:
                if j >= len(new):
                    return None
                b.append(j)
                right = right * new[j]
                j += 1
        runs.append((a, b))
    return runs


def reshape(tensor: Tensor, shape: Sequence[Size]) -> Tensor | None:
    """The elements in the same order in another shape; None where a leaf's strides do not allow it."""
    shape = tuple(shape)
    if len(shape) == tensor.rank and all(same(a, b) for a, b in zip(shape, tensor.shape, strict=True)):
        return tensor
    runs = matching_axes(tensor.shape, shape)
    if runs is None:
        return None

    class Impossible(Exception):
        pass

    def change(strides: Strides, offset: Size) -> StridesAndOffset:
        new: list[Size] = [0] * len(shape)
        for old_axes, new_axes in runs:
            inner = joined_stride([tensor.shape[d] for d in old_axes], [strides[d] for d in old_axes])
            if inner is None:
                inner = split_strides(
                    [tensor.shape[d] for d in old_axes], [strides[d] for d in old_axes], [shape[d] for d in new_axes]
                )
                if inner is None:
                    raise Impossible
                for axis, stride in zip(new_axes, inner, strict=True):
                    new[axis] = stride
                continue
            for axis in reversed(new_axes):
                new[axis] = inner if not is_one(shape[axis]) else 0
                inner = inner * shape[axis]
        return tuple(new), offset

    try:
        return Tensor(shape, map_leaves(tensor.expr, change))
    except Impossible:
        return None


def joined_stride(sizes: Sequence[Size], strides: Sequence[Size]) -> Size | None:
    """The stride of several axes as one axis; None where strides do not allow it."""
    kept = [(size, stride) for size, stride in zip(sizes, strides, strict=True) if not is_one(size)]
    if not kept:
        return 0
    for (_, outer), (size, inner) in zip(kept, kept[1:], strict=False):
        if not same(outer, inner * size):
            return None
    return kept[-1][1]


def split_strides(sizes: Sequence[Size], strides: Sequence[Size], new: Sequence[Size]) -> list[Size] | None:
    """Strides for a run of axes that do not all join, if each new axis is within axes that do."""
    found: list[Size] = [0] * len(new)
    place = len(new) - 1
    end = len(sizes)
    while end > 0:
        start = end - 1
        while start > 0 and joined_stride(sizes[start - 1 : end], strides[start - 1 : end]) is not None:
            start -= 1
        stride = joined_stride(sizes[start:end], strides[start:end])
        total: Size = 1
        for size in sizes[start:end]:
            total = total * size
        covered: Size = 1
        assert stride is not None
        while not same(covered, total):
            if place < 0:
                return None
            found[place] = stride if not is_one(new[place]) else 0
            stride = stride * new[place]
            covered = covered * new[place]
            if isinstance(covered, int) and isinstance(total, int) and covered > total:
                return None
            place -= 1
        end = start
    return found if all(is_one(size) for size in new[: place + 1]) else None
