"""Which transposed reads and writes of a kernel go through tiles.

Where vectors go along one loop but an access is contiguous along another, each lane would touch another line of memory.
Such an access goes through a tile: a small block of scratch memory that is transposed square by square in registers.
The loops inside a tile only see memory that is contiguous along the vectors.
"""

from __future__ import annotations

import dataclasses

from kiln.loops.ir import Access, Buffer, Expr, load
from kiln.loops.kernel import Kernel, Output
from kiln.loops.sizes import Size, is_one, is_unit_stride

from ....platform.light_dataclass import dataclass
from ...llvm.phases import Phase, replaced
from ...llvm.registers import Shape

WIDTH = 256  # of a tile, along the vectors
MOST_TILES = 4  # of one kernel: they are to stay in the first cache


@dataclass(frozen=True)
class Tile:
    """How a kernel goes through tiles: the loop across the vectors, how many of its positions a tile has, and what goes
    in and out through tiles."""

    across: int
    height: int
    loads: tuple[tuple[Access, Buffer], ...]
    stores: tuple[tuple[Access, Buffer], ...]


def tile_of(kernel: Kernel, shape: Shape, phase: Phase, vector_bytes: int) -> tuple[Tile, Phase] | None:
    """The tiles of a kernel without reductions, and the phase inside them; None where nothing is transposed."""
    vector = shape.vector
    if vector is None or any(output.accumulate or output.target.indirect for output in kernel.outputs):
        return None
    loads = [expr for expr in phase.order if expr.kind == "load" and is_strided(expr.payload, vector)]
    stores = [output for output in phase.outputs if is_strided(output.target, vector)]
    best: tuple[int, int] | None = None
    for loop in shape.depths:
        count = sum(
            is_one(access.strides[loop]) for access in (*(e.payload for e in loads), *(o.target for o in stores))
        )
        if loop != vector and count and (best is None or count > best[0]):
            best = count, loop
    if best is None or is_short(kernel.loops[best[1]].size, 4) or is_short(kernel.loops[vector].size, 8):
        return None
    across = best[1]
    loads = [expr for expr in loads if is_one(expr.payload.strides[across])][:MOST_TILES]
    stores = [output for output in stores if is_one(output.target.strides[across])][: MOST_TILES - len(loads)]
    widest = max(access.buffer.dtype.itemsize for access in (*(e.payload for e in loads), *(o.target for o in stores)))
    height = min(16, vector_bytes // widest)
    return with_tiles(kernel, phase, Tile(across, height, (), ()), loads, stores, vector)


def with_tiles(
    kernel: Kernel, phase: Phase, tile: Tile, loads: list[Expr], stores: list[Output], vector: int
) -> tuple[Tile, Phase]:
    """The phase with tiles in place of strided accesses."""
    strides: list[Size] = [0] * len(kernel.loops)
    strides[tile.across], strides[vector] = WIDTH, 1

    def new(access: Access) -> Buffer:
        return Buffer("tile", access.buffer.dtype, (tile.height * WIDTH,), (1,), "scratch")

    incoming, outgoing = [], []
    for expr in loads:
        buffer = new(expr.payload)
        incoming.append((expr.payload, buffer))
        phase = replaced(phase, expr, load(Access(buffer, tuple(strides), 0)))
    outputs = list(phase.outputs)
    for output in stores:
        place = next(
            n for n, other in enumerate(outputs) if other.target is output.target or other.target == output.target
        )
        buffer = new(output.target)
        outgoing.append((output.target, buffer))
        outputs[place] = dataclasses.replace(outputs[place], target=Access(buffer, tuple(strides), 0))
    tile = dataclasses.replace(tile, loads=tuple(incoming), stores=tuple(outgoing))
    return tile, Phase(phase.reductions, outputs)


def is_strided(access: Access, vector: int) -> bool:
    """Whether lanes access memory with a stride, by an affine access."""
    return access.is_plain and not is_unit_stride(access.strides[vector])


def is_short(size: Size, least: int) -> bool:
    return isinstance(size, int) and size < least
