"""Writes the code of one tile: fill it, run the loops inside it, empty it (tile_plan.py chooses the tiles)."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from kiln.loops.ir import Access, Buffer

from ....platform.light_dataclass import dataclass
from ...llvm.llvm_text import Lines
from ...llvm.loop_code import Index, plus, smaller, times, write_loop
from ...llvm.registers import Level, Values
from ...llvm.value_types import MEMORY
from .kernel_plan import Plan
from .tile_plan import WIDTH, Tile


def write_tile(
    plan: Plan, values: Values, lines: Lines, unit: Index, write_row: Callable[[Lines, Index, Index], None]
) -> None:
    """One tile: fill what is read through tiles, run the loops inside, empty what is written through them.

    ``write_row`` writes the loop of vectors of one row of the tile, from one position to another.
    """
    tile, vector = plan.tile, plan.shape.vector
    assert tile is not None and vector is not None
    height, sizes = tile.height, plan.shape.kernel.loops
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
    transposer = Transposer(tile, vector, values, lines, low, high, first, end)
    for access, buffer in tile.loads:
        transposer.copy(access, starts[buffer], buffer, is_load=True)

    def row(inner: Lines, counter: Index, carried: list[str]) -> list[str]:
        levels = values.levels
        values.levels = [*levels, Level(inner)]
        values.counters[tile.across] = counter
        write_row(inner, low, high)
        values.levels = levels
        return []

    write_loop(lines, first, end, 1, [], row, True)
    for access, buffer in tile.stores:
        transposer.copy(access, starts[buffer], buffer, is_load=False)


@dataclass
class Transposer:
    """Copies between memory and a tile, square by square."""

    tile: Tile
    vector: int
    values: Values
    lines: Lines
    low: Index
    high: Index
    first: Index
    end: Index

    def copy(self, access: Access, start: str, buffer: Buffer, is_load: bool) -> None:
        lines, tile, vector = self.lines, self.tile, self.vector
        element, size = MEMORY[buffer.dtype], buffer.dtype.itemsize
        outer = [0 if loop in (tile.across, vector) else stride for loop, stride in enumerate(access.strides)]
        far = self.values.pointer(Access(access.buffer, tuple(outer), access.offset))
        far = lines.new(f"getelementptr {element}, ptr {far}, i64 {self.first}")
        stride = self.values.size(access.strides[vector])
        side = tile.height
        function, text = transpose_function(f"i{8 * size}", side)
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
def transpose_function(element: str, side: int) -> tuple[str, str]:
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
