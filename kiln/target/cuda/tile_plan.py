"""Which loads of a kernel go through tiles in shared memory.

Where vectors go along one loop but a load is contiguous along another, neighbouring threads would touch lines of memory
that are far apart. Such a load goes through a tile: the threads of a block read it along its own loop, and then find
its elements in shared memory. A block computes the points of one tile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kiln.loops.ir import Access
from kiln.loops.kernel import Kernel
from kiln.loops.sizes import is_zero

from ...platform.light_dataclass import dataclass

SIDE = 64  # points of a tile along either loop
PADDING = 4  # bytes between its rows, against conflicts of banks
LEAST_SIZE = 16  # of the loops


@dataclass(frozen=True)
class TiledLoad:
    access: Access
    lanes: int  # that a thread reads at once, along the loop across the vectors
    start: int  # in shared memory

    @property
    def row_bytes(self) -> int:
        return row_bytes(self.access)


@dataclass(frozen=True)
class Tile:
    across: int  # the loop across the vectors
    loads: tuple[TiledLoad, ...]

    @property
    def shared_bytes(self) -> int:
        last = self.loads[-1]
        return last.start + SIDE * last.row_bytes

    def load_of(self, access: Access) -> TiledLoad | None:
        return next((load for load in self.loads if load.access == access), None)


def row_bytes(access: Access) -> int:
    size = access.buffer.dtype.itemsize
    return SIDE * size + max(PADDING, size)


def tile_of(kernel: Kernel, vector: int, most_shared: int, lanes_along: Callable[[Access, int], int]) -> Tile | None:
    """The tiles of a kernel without reductions; None where nothing is transposed. ``lanes_along``: how many elements of
    an access a thread can read at once along a loop."""
    if not is_long(kernel, vector) or any(output.accumulate or output.target.indirect for output in kernel.outputs):
        return None
    written = {output.target.buffer for output in kernel.outputs}
    accesses = [
        access
        for access in dict.fromkeys(loads_of(kernel))
        if is_strided(access, vector) and access.buffer not in written
    ]
    best: tuple[int, int] | None = None
    for loop in range(len(kernel.loops)):
        count = sum(access.buffer.dtype.itemsize for access in accesses if access.strides[loop] == 1)
        if loop != vector and is_long(kernel, loop) and count > (best[0] if best is not None else 0):
            best = count, loop
    if best is None:
        return None
    across, used, found = best[1], 0, []
    for access in accesses:
        if access.strides[across] == 1 and used + SIDE * row_bytes(access) <= most_shared:
            found.append(TiledLoad(access, lanes_along(access, across), used))
            used += -(-SIDE * row_bytes(access) // 16) * 16
    return Tile(across, tuple(found)) if found else None


def loads_of(kernel: Kernel) -> Iterable[Access]:
    stored = len(kernel.outputs)
    accesses = list(kernel.accesses())
    return accesses[: len(accesses) - stored]


def is_long(kernel: Kernel, loop: int) -> bool:
    size = kernel.loops[loop].size
    return isinstance(size, int) and size >= LEAST_SIZE


def is_strided(access: Access, vector: int) -> bool:
    """Whether lanes along the vector loop are apart."""
    stride = access.strides[vector]
    return access.is_plain and not is_zero(stride) and isinstance(stride, int) and abs(stride) > 1
