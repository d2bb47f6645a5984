"""Transposed reads and writes, in tiles.

Where vectors go along one loop but something is read or written element by element along another, single elements of
far apart lines of memory would be touched one at a time. Instead the kernel goes through tiles: what is read so is
brought into a small tile of memory of our own first, in squares that are turned round in registers, and what is written
so leaves through such a tile. The loops inside a tile only see memory that lies along the vectors.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from kiln.lower.ir import Access, Buffer, Expr, Size, load
from kiln.lower.kernel import Kernel, Output

from .emit_loops import Index, plus, smaller, times, write_loop
from .emit_phases import Phase, replaced
from .emit_types import MEMORY
from .emit_values import Level, Shape
from .lines import Lines

if TYPE_CHECKING:
    from .emit_nest import Nest

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
    """The tiles of a kernel without reductions, and what it does inside them; None where there is nothing to turn."""
    vector = shape.vector
    if vector is None or any(output.accumulate or output.target.indirect for output in kernel.outputs):
        return None
    loads = [expr for expr in phase.order if expr.kind == "load" and is_far(expr.payload, vector)]
    stores = [output for output in phase.outputs if is_far(output.target, vector)]
    best: tuple[int, int] | None = None
    for loop in shape.depths:
        count = sum(is_one_step(access, loop) for access in (*(e.payload for e in loads), *(o.target for o in stores)))
        if loop != vector and count and (best is None or count > best[0]):
            best = count, loop
    if best is None or is_short(kernel.loops[best[1]].size, 4) or is_short(kernel.loops[vector].size, 8):
        return None
    across = best[1]
    loads = [expr for expr in loads if is_one_step(expr.payload, across)][:MOST_TILES]
    stores = [output for output in stores if is_one_step(output.target, across)][: MOST_TILES - len(loads)]
    widest = max(access.buffer.dtype.itemsize for access in (*(e.payload for e in loads), *(o.target for o in stores)))
    height = min(16, vector_bytes // widest)
    return with_tiles(kernel, phase, Tile(across, height, (), ()), loads, stores, vector)


def with_tiles(
    kernel: Kernel, phase: Phase, tile: Tile, loads: list[Expr], stores: list[Output], vector: int
) -> tuple[Tile, Phase]:
    """The phase with tiles in place of what is far."""
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


def is_far(access: Access, vector: int) -> bool:
    """Whether lanes are apart, at places that the loops alone say."""
    stride = access.strides[vector]
    return access.is_plain and not (isinstance(stride, int) and -1 <= stride <= 1)


def is_one_step(access: Access, loop: int) -> bool:
    stride = access.strides[loop]
    return isinstance(stride, int) and stride == 1


def is_short(size: Size, least: int) -> bool:
    return isinstance(size, int) and size < least


# ---- one tile --------------------------------------------------------------------------------------------------------


def write_tile(nest: Nest, lines: Lines, unit: Index) -> None:
    """A tile: fill what is read through tiles, run the loops inside, empty what is written through them."""
    tile, values, vector = nest.plan.tile, nest.values, nest.shape.vector
    assert tile is not None and vector is not None
    height, sizes = tile.height, nest.kernel.loops
    low = times(lines, unit, WIDTH)
    high = smaller(lines, plus(lines, low, WIDTH), values.size(sizes[vector].size))
    first = times(lines, values.counters[tile.across], height)
    end = smaller(lines, plus(lines, first, height), values.size(sizes[tile.across].size))
    # A tile's first element is at the positions (first, low): as the loops count, it begins that far before itself.
    before = plus(lines, times(lines, first, WIDTH), low)
    before = -before if isinstance(before, int) else lines.new(f"sub i64 0, {before}")
    starts = {}
    for _, buffer in (*tile.loads, *tile.stores):
        starts[buffer] = values.scratch(buffer)
        element = MEMORY[buffer.dtype]
        values.levels[0].values[buffer] = lines.new(f"getelementptr {element}, ptr {starts[buffer]}, i64 {before}")
    turning = Turning(nest, lines, low, high, first, end)
    for access, buffer in tile.loads:
        turning.turn(access, starts[buffer], buffer, is_load=True)

    def row(inner: Lines, counter: Index, carried: list[str]) -> list[str]:
        levels = values.levels
        values.levels = [*levels, Level(inner)]
        values.counters[tile.across] = counter
        nest.vector_loop(
            inner, low, high, [], lambda lines, at, none, copies, mask: nest.inside(vector, at, lines, copies, mask)
        )
        values.levels = levels
        return []

    write_loop(lines, first, end, 1, [], row, True)
    for access, buffer in tile.stores:
        turning.turn(access, starts[buffer], buffer, is_load=False)


@dataclass
class Turning:
    """Copies between memory and a tile, square by square."""

    nest: Nest
    lines: Lines
    low: Index
    high: Index
    first: Index
    end: Index

    def turn(self, access: Access, start: str, buffer: Buffer, is_load: bool) -> None:
        nest, lines, tile = self.nest, self.lines, self.nest.plan.tile
        assert tile is not None and nest.shape.vector is not None
        element, size = MEMORY[buffer.dtype], buffer.dtype.itemsize
        vector = nest.shape.vector
        outer = [0 if loop in (tile.across, vector) else stride for loop, stride in enumerate(access.strides)]
        far = nest.values.pointer(Access(access.buffer, tuple(outer), access.offset))
        far = lines.new(f"getelementptr {element}, ptr {far}, i64 {self.first}")
        stride = nest.values.size(access.strides[vector])
        side = tile.height
        function, text = turn_function(f"i{8 * size}", side)
        lines.declare(text)

        def square(inner: Lines, counter: Index, carried: list[str]) -> list[str]:
            away = inner.new(f"getelementptr {element}, ptr {far}, i64 {times(inner, counter, stride)}")
            inside = inner.new(f"sub i64 {counter}, {self.low}")
            near = inner.new(f"getelementptr {element}, ptr {start}, i64 {inside}")
            along = smaller(inner, inner.new(f"sub i64 {self.high}, {counter}"), side)
            across = inner.new(f"sub i64 {self.end}, {self.first}")
            steps = times(inner, stride, size), WIDTH * size
            source, target = (away, near) if is_load else (near, away)
            from_step, to_step = steps if is_load else steps[::-1]
            rows, columns = (along, across) if is_load else (across, along)
            inner.add(
                f"call void @{function}(ptr {source}, i64 {from_step}, ptr {target}, i64 {to_step}, "
                f"i64 {rows}, i64 {columns})"
            )
            return []

        write_loop(lines, self.low, self.high, side, [], square, True)


@lru_cache(None)
def turn_function(element: str, side: int) -> tuple[str, str]:
    """A function of the module, by name and text: rows of a source become columns of a target. Steps are in bytes.
    Whole squares are turned in registers, in stages that swap halves, quarters and so on; smaller ones go element by
    element."""
    kind, function = f"<{side} x {element}>", f"kiln.turn.v{side}{element}"
    size = int(element[1:]) // 8
    text = [
        f"define internal void @{function}(ptr %from, i64 %fs, ptr %to, i64 %ts, i64 %rows, i64 %columns) nounwind {{",
        "entry:",
        f"%r = icmp eq i64 %rows, {side}",
        f"%c = icmp eq i64 %columns, {side}",
        "%whole = and i1 %r, %c",
        "br i1 %whole, label %square, label %row",
        "square:",
    ]
    rows = []
    for row in range(side):
        text += [
            f"%m{row} = mul i64 %fs, {row}",
            f"%p{row} = getelementptr i8, ptr %from, i64 %m{row}",
            f"%a{row} = load {kind}, ptr %p{row}, align {size}",
        ]
        rows.append(f"%a{row}")
    distance, stage = side // 2, 0
    while distance:
        stage += 1
        for row in range(side):
            if row & distance:
                continue
            pair = rows[row], rows[row + distance]
            upper = [c if not c & distance else side + c - distance for c in range(side)]
            lower = [c + distance if not c & distance else side + c for c in range(side)]
            for place, mask in ((row, upper), (row + distance, lower)):
                chosen = ", ".join([f"i32 {index}" for index in mask])
                name = f"%s{stage}.{place}"
                text.append(f"{name} = shufflevector {kind} {pair[0]}, {kind} {pair[1]}, <{side} x i32> <{chosen}>")
                rows[place] = name
        distance //= 2
    for row in range(side):
        text += [
            f"%n{row} = mul i64 %ts, {row}",
            f"%q{row} = getelementptr i8, ptr %to, i64 %n{row}",
            f"store {kind} {rows[row]}, ptr %q{row}, align {size}",
        ]
    text += [
        "ret void",
        "row:",
        "%i = phi i64 [ 0, %entry ], [ %i.next, %row.end ]",
        "%i.from = mul i64 %i, %fs",
        "%row.from = getelementptr i8, ptr %from, i64 %i.from",
        f"%row.to = getelementptr {element}, ptr %to, i64 %i",
        "br label %one",
        "one:",
        "%j = phi i64 [ 0, %row ], [ %j.next, %one ]",
        f"%one.from = getelementptr {element}, ptr %row.from, i64 %j",
        "%j.to = mul i64 %j, %ts",
        "%one.to = getelementptr i8, ptr %row.to, i64 %j.to",
        f"%value = load {element}, ptr %one.from, align {size}",
        f"store {element} %value, ptr %one.to, align {size}",
        "%j.next = add i64 %j, 1",
        "%more = icmp slt i64 %j.next, %columns",
        "br i1 %more, label %one, label %row.end",
        "row.end:",
        "%i.next = add i64 %i, 1",
        "%others = icmp slt i64 %i.next, %rows",
        "br i1 %others, label %row, label %end",
        "end:",
        "ret void",
        "}",
    ]
    return function, "\n".join(text)
