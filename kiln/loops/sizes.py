"""Sizes, strides and offsets: ints, or sympy expressions where shapes are dynamic."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import sympy

Size: TypeAlias = int | sympy.Expr
Strides: TypeAlias = tuple[Size, ...]

ASSUMED_SIZE = 64  # of a symbol, where only speed depends on it
ROW_LENGTH = sympy.Symbol("row_length", integer=True, positive=True)  # of a kernel that reduces one row of any length
ASSUMED_SIZES = {ROW_LENGTH: 4096}


def plain_size(size: Size) -> Size:
    """The size as an int where it is a number: sympy's arithmetic gives sympy numbers (``0 * s``)."""
    if type(size) is int:
        return size
    return int(size) if isinstance(size, int) or size.is_Integer else size


def is_zero(size: Size) -> bool:
    return isinstance(size, int) and size == 0


def is_one(size: Size) -> bool:
    return isinstance(size, int) and size == 1


def is_unit_stride(stride: Size) -> bool:
    """Whether elements are known to be neighbours, forwards or backwards, or all the same one."""
    return isinstance(stride, int) and -1 <= stride <= 1


def is_empty(shape: Iterable[Size]) -> bool:
    """Whether a tensor of this shape is known to have no elements."""
    return any(isinstance(size, int) and size == 0 for size in shape)


def same(a: Size, b: Size) -> bool:
    """Whether two sizes are known to be equal."""
    return bool(a == b) if isinstance(a, int) or isinstance(b, int) or a is b else bool(a == b) or (a - b).expand() == 0


def divides(a: Size, b: Size) -> bool:
    """Whether a is known to divide b."""
    quotient = sympy.cancel(sympy.sympify(b) / sympy.sympify(a))
    return bool(sympy.denom(quotient) == 1)


def product(sizes: Iterable[Size]) -> Size:
    total: Size = 1
    for size in sizes:
        total = total * size
    return total


def hint(size: Size) -> int:
    """A size, or a guess for a dynamic one, where only speed depends on it."""
    if isinstance(size, int):
        return size
    return int(size.subs({symbol: ASSUMED_SIZES.get(symbol, ASSUMED_SIZE) for symbol in size.free_symbols}))


def span_of(shape: Iterable[Size], strides: Iterable[Size]) -> Size:
    """The number of elements from the first to the last, both included."""
    total: Size = 1
    for size, stride in zip(shape, strides, strict=True):
        if is_zero(size):
            return 0
        total = total + (size - 1) * stride
    return total


def fills_memory(shape: Sequence[Size], strides: Sequence[Size], order: Iterable[int]) -> bool:
    """Whether elements are known to fill memory without holes and overlap, with axes in order of their strides."""
    step: Size = 1
    for axis in order:
        if not is_one(shape[axis]):
            if not same(strides[axis], step):
                return False
            step = step * shape[axis]
    return True


def contiguous(shape: Sequence[Size]) -> Strides:
    """The strides of a contiguous tensor of this shape."""
    strides: list[Size] = []
    step: Size = 1
    for size in reversed(shape):
        strides.append(step)
        if not (isinstance(size, int) and size <= 1):
            step = step * size
    return tuple(reversed(strides))
