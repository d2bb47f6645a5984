"""Which kernels without reductions have threads that take several points, one after another.

What is the same for all rows (the weights of a normalization of channels) is loaded by each thread. Where that is more
than what a point has of its own, those loads take longer than the memory itself: 256 bytes of eight vectors of float32,
beside 48 bytes of two inputs and a result. So a thread takes points along a loop and loads what they share once. So it
does along the vectors of rows that are found by an index: the index is there before any of them can be loaded.

Points of a block are side by side in each turn: position ``p`` of a thread becomes, in turn ``t``, the position
``p // apart * apart * count + t * apart + p % apart``.
"""

from __future__ import annotations

from collections.abc import Sequence

from kiln.loops.ir import Access, varies_along
from kiln.loops.kernel import Kernel
from kiln.loops.sizes import is_zero

from ....platform.light_dataclass import dataclass

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
    space = Space(kernel, kept, vector, lanes, units_of_block)
    if is_found_by_index(kernel, vector):
        return space.turns_along(vector, min(most, MOST_TURNS_OF_INDICES), MOST_TURNS_OF_INDICES)
    accesses = tuple(dict.fromkeys(kernel.accesses()))
    sums = {loop: space.own_and_shared(accesses, loop) for loop in kept if loop != vector}
    loops = [loop for loop, (own, shared) in sums.items() if shared > own]
    if not loops:
        return None
    loop = max(loops, key=lambda one: sums[one][1])
    own, shared = sums[loop]
    return space.turns_along(loop, min(most, MOST_TURNS, power_of_two(-(-shared // own))), BYTES_TOGETHER // own)


@dataclass(frozen=True)
class Space:
    """The loops of a kernel, and how threads take their points."""

    kernel: Kernel
    kept: list[int]
    vector: int
    lanes: int
    units_of_block: int

    def own_and_shared(self, accesses: Sequence[Access], loop: int) -> tuple[int, int]:
        """The bytes that each point along a loop accesses, and those that are the same for all of them."""
        own = shared = 0
        for access in accesses:
            size = access.buffer.dtype.itemsize * (1 if is_zero(access.strides[self.vector]) else self.lanes)
            if is_zero(access.strides[loop]) and not access.parts:
                shared += size
            else:
                own += size
        return own, shared

    def units_along(self, loop: int) -> int:
        length = self.kernel.loops[loop].size
        assert isinstance(length, int)
        return length // self.lanes if loop == self.vector else length

    def turns_along(self, loop: int, most: int, together: int) -> Turns | None:
        """As many turns along a loop as are wanted, if its length allows them."""
        size, count, apart, inside = self.units_along(loop), 1, 1, 1
        while 2 * count <= most and size % (2 * count) == 0:
            count *= 2
        if count == 1:
            return None
        for other in self.kept[self.kept.index(loop) + 1 :]:
            inside *= self.units_along(other)
        while 2 * apart * inside <= self.units_of_block and size % (2 * apart * count) == 0:
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
