"""The code of a kernel whose transposed loads go through tiles in shared memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.loops.ir import Access

from ..llvm.llvm_text import Lines, llvm_type
from ..llvm.loads_and_stores import Place, load_at
from ..llvm.registers import Level
from ..llvm.value_types import MEMORY
from .exchange import barrier
from .kernel_plan import alignment
from .tile_plan import SIDE, TiledLoad

if TYPE_CHECKING:
    from .nest import ThreadNest


class TileCode:
    """Writes a block's tile: its loads into shared memory, then its points."""

    def __init__(self, nest: ThreadNest, shared: str) -> None:
        self.nest, self.plan, self.values, self.lines = nest, nest.plan, nest.values, nest.lines
        assert nest.plan.tile is not None
        self.tile, self.shared = nest.plan.tile, shared
        self.vector = self.plan.kept[-1]
        self.sizes = {loop: int(nest.kernel.loops[loop].size) for loop in (self.tile.across, self.vector)}
        self.first: dict[int, str] = {}  # the positions of both loops at which the tile begins, in 32 bits

    def write(self) -> None:
        values = self.values
        self.find_tile()
        outside = values.levels = [values.levels[0], Level(self.lines)]
        loaded = [
            (tiled, number, self.load(tiled, number)) for tiled in self.tile.loads for number in self.rounds(tiled)
        ]
        for tiled, number, value in loaded:
            self.put(tiled, number, value)
        barrier(self.lines)
        values.levels = outside
        self.write_points()

    # ---- positions ---------------------------------------------------------------------------------------------------

    def find_tile(self) -> None:
        """The tile of a block: the last loops count tiles."""
        lines, nest = self.lines, self.nest
        number = nest.block
        for loop in reversed(self.plan.kept):
            size = nest.kernel.loops[loop].size
            count = -(-size // SIDE) if loop in self.sizes else size
            place = number
            if loop != self.plan.kept[0]:
                place = lines.new(f"urem i32 {number}, {count}")
                number = lines.new(f"udiv i32 {number}, {count}")
            if loop in self.sizes:
                self.first[loop] = lines.new(f"mul i32 {place}, {SIDE}")
            else:
                self.values.counters[loop] = lines.new(f"zext i32 {place} to i64")

    def within(self, number: int, loop: int, lanes: int) -> dict[int, str]:
        """The position of a thread's vector in the tile, the number-th of its own, where vectors go along a loop."""
        lines, per_row = self.lines, SIDE // lanes
        other = next(one for one in self.sizes if one != loop)
        flat = lines.new(f"add i32 {self.nest.thread}, {number * self.plan.threads}")
        column = lines.new(f"and i32 {flat}, {per_row - 1}")
        return {
            other: lines.new(f"lshr i32 {flat}, {per_row.bit_length() - 1}"),
            loop: lines.new(f"mul i32 {column}, {lanes}"),
        }

    def set_counters(self, places: dict[int, str], most: dict[int, int] | None) -> None:
        """The positions of both loops, clamped to the last ones."""
        lines = self.lines
        for loop, place in places.items():
            position = lines.new(f"add i32 {self.first[loop]}, {place}")
            if most is not None and self.sizes[loop] % SIDE:
                bounds = [("i32", position), ("i32", str(most[loop]))]
                position = lines.call("llvm.umin.i32", "i32", bounds)
            self.values.counters[loop] = lines.new(f"zext i32 {position} to i64")

    # ---- into shared memory ------------------------------------------------------------------------------------------

    def rounds(self, tiled: TiledLoad) -> range:
        return range(SIDE * SIDE // tiled.lanes // self.plan.threads)

    def load(self, tiled: TiledLoad, number: int) -> str:
        """A vector along the loop across. Beyond the end of a loop its last elements are read again."""
        values, across = self.values, self.tile.across
        most = {loop: size - (tiled.lanes if loop == across else 1) for loop, size in self.sizes.items()}
        self.set_counters(self.within(number, across, tiled.lanes), most)
        values.levels = [values.levels[0], Level(self.lines)]
        align = alignment(tiled.access, across, tiled.lanes)
        place = Place(values.pointer(tiled.access), align=align)
        return load_at(self.lines, place, tiled.access.buffer.dtype, tiled.lanes, "poison")

    def put(self, tiled: TiledLoad, number: int, value: str) -> None:
        lines, element, size = self.lines, MEMORY[tiled.access.buffer.dtype], tiled.access.buffer.dtype.itemsize
        address = self.address(tiled, self.within(number, self.tile.across, tiled.lanes))
        total = tiled.lanes * size
        word = "i32" if total % 4 == 0 and size <= 4 else element
        width = 4 if word == "i32" else size
        kind = llvm_type(word, total // width)
        if kind != llvm_type(element, tiled.lanes):
            value = lines.new(f"bitcast {llvm_type(element, tiled.lanes)} {value} to {kind}")
        for place in range(total // width):
            one = value if total == width else lines.new(f"extractelement {kind} {value}, i32 {place}")
            there = lines.new(f"getelementptr i8, ptr addrspace(3) {address}, i32 {place * width}")
            lines.add(f"store {word} {one}, ptr addrspace(3) {there}, align {width}")

    def address(self, tiled: TiledLoad, places: dict[int, str]) -> str:
        """Where an element is: a row of the tile is contiguous along the loop across."""
        lines, size = self.lines, tiled.access.buffer.dtype.itemsize
        row = lines.new(f"mul i32 {places[self.vector]}, {tiled.row_bytes}")
        column = lines.new(f"mul i32 {places[self.tile.across]}, {size}")
        offset = lines.new(f"add i32 {lines.new(f'add i32 {row}, {column}')}, {tiled.start}")
        return lines.new(f"getelementptr i8, ptr addrspace(3) {self.shared}, i32 {offset}")

    # ---- points ------------------------------------------------------------------------------------------------------

    def write_points(self) -> None:
        """The points of a tile, vectors along the last loop. Where all are there, all are computed before any is
        stored."""
        nest, values, lanes = self.nest, self.values, self.plan.lanes
        outside, is_whole = values.levels, all(size % SIDE == 0 for size in self.sizes.values())
        levels = []
        for number in range(SIDE * SIDE // lanes // self.plan.threads):
            places = self.within(number, self.vector, lanes)
            self.set_counters(places, None)
            values.levels = [outside[0], Level(self.lines)]
            values.tile_reader = TileReader(self, places)
            if is_whole:
                values.compute(self.plan.closing.order, 1)
                levels.append((values.levels, dict(values.counters)))
            else:
                nest.when(self.is_inside(), lambda: nest.write_closing(None))
        for level, counters in levels:
            values.levels, values.counters = level, counters
            nest.store(self.plan.closing.outputs, 1)

    def is_inside(self) -> str:
        lines = self.lines
        checks = [lines.new(f"icmp slt i64 {self.values.counters[loop]}, {size}") for loop, size in self.sizes.items()]
        return lines.new(f"and i1 {checks[0]}, {checks[1]}")


class TileReader:
    """Reads the elements of a vector from a tile."""

    def __init__(self, code: TileCode, places: dict[int, str]) -> None:
        self.code, self.places = code, places

    def load(self, lines: Lines, access: Access, lanes: int) -> str | None:
        """The vector, as it is in memory; None for an access without a tile."""
        tiled = self.code.tile.load_of(access)
        if tiled is None:
            return None
        element, size = MEMORY[access.buffer.dtype], access.buffer.dtype.itemsize
        address = self.code.address(tiled, self.places)
        found = "poison"
        for lane in range(lanes):
            there = lines.new(f"getelementptr i8, ptr addrspace(3) {address}, i32 {lane * tiled.row_bytes}")
            one = lines.new(f"load {element}, ptr addrspace(3) {there}, align {size}")
            if lanes == 1:
                return one
            found = lines.new(f"insertelement {llvm_type(element, lanes)} {found}, {element} {one}, i32 {lane}")
        return found
