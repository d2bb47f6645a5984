"""Which kernels without reductions have threads that take several points, one after another.

What is the same for all rows (the weights of a normalization of channels) is loaded by each thread. Where that is more
than what a point has of its own, those loads take longer than the memory itself: 256 bytes of four vectors of float32
for each of two inputs, beside 48 bytes. So a thread takes points along a loop and loads what they share once. So it does along the vectors of rows that are
found by an index: the index is there before any of them can be loaded.

Points of a block are side by side in each turn: position ``p`` of a thread becomes, in turn ``t``, the position
``p // apart * apart * count + t * apart + p % apart``.
"""

from __future__ import annotations

from collections.abc import Callable

from kiln.loops.ir import Access, varies_along
from kiln.loops.kernel import Kernel
from kiln.loops.sizes import is_zero

from ...platform.light_dataclass import dataclass

MOST_TURNS = 8
MOST_TURNS_OF_INDICES = 4
BYTES_TOGETHER = 128  # that a thread loads before it computes


@dataclass(frozen=True)
class Turns:
    """A thread takes ``count`` points along a loop, which are ``apart``; it loads for ``together`` of them at once."""

    loop: int
    count: int
    apart: int
    together: int


def turns_of(
    kernel: Kernel, kept: list[int], vector: int | None, lanes: int, most: int, units_of_block: int
) -> Turns | None:
    """The turns of a kernel whose threads take ``lanes`` points along the vector loop; ``most`` of them leave threads
    enough. None: a thread takes one point."""
    if vector is None or lanes == 1 or kernel.reductions:
        return None
    if any(output.accumulate is not None or not output.target.is_plain for output in kernel.outputs):
        return None
    if any(not isinstance(kernel.loops[loop].size, int) for loop in kept):
        return None

    def load_bytes(of: Callable[[Access], bool]) -> int:
        accesses = dict.fromkeys(kernel.accesses())
        return sum(
            access.buffer.dtype.itemsize * (lanes if not is_zero(access.strides[vector]) else 1)
            for access in accesses
            if of(access)
        )

    if is_found_by_index(kernel, vector):
        return turns_along(kernel, kept, vector, vector, lanes, min(most, MOST_TURNS_OF_INDICES), units_of_block)
    best: tuple[int, int] | None = None
    for loop in kept:
        if loop != vector:
            moving = load_bytes(lambda access, loop=loop: moves(access, loop))
            shared = load_bytes(lambda access, loop=loop: not moves(access, loop))
            if shared > moving and (best is None or shared > best[0]):
                best = shared, loop
    if best is None:
        return None
    shared, loop = best
    moving = load_bytes(lambda access: moves(access, loop))
    most = min(most, MOST_TURNS, power_of_two(-(-shared // moving)))
    return turns_along(kernel, kept, vector, loop, lanes, most, units_of_block, BYTES_TOGETHER // moving)


def turns_along(
    kernel: Kernel,
    kept: list[int],
    vector: int,
    loop: int,
    lanes: int,
    most: int,
    units_of_block: int,
    together: int = 8,
) -> Turns | None:
    """As many turns along a loop as are wanted, if its length allows them."""

    def units(other: int) -> int:
        length = kernel.loops[other].size
        assert isinstance(length, int)
        return length // lanes if other == vector else length

    size, count, apart, inside = units(loop), 1, 1, 1
    while 2 * count <= most and size % (2 * count) == 0:
        count *= 2
    if count == 1:
        return None
    for other in kept[kept.index(loop) + 1 :]:
        inside *= units(other)
    while 2 * apart * inside <= units_of_block and size % (2 * apart * count) == 0:
        apart *= 2
    return Turns(loop, count, apart, max(1, min(count, together)))


def power_of_two(number: int) -> int:
    """The least power of two that is not below a number."""
    return 1 << max(0, number - 1).bit_length()


def is_found_by_index(kernel: Kernel, vector: int) -> bool:
    """Whether all that moves along the vectors is loaded from places that an index gives, one for a row."""
    moving = [access for access in kernel.accesses() if not is_zero(access.strides[vector])]
    loads = [access for access in moving if all(access is not output.target for output in kernel.outputs)]
    return bool(loads) and all(
        access.indirect and not any(varies_along(part, vector) for part in access.parts) for access in loads
    )


def moves(access: Access, loop: int) -> bool:
    """Whether an access may be to another element at another position of a loop."""
    return not is_zero(access.strides[loop]) or bool(access.parts)
