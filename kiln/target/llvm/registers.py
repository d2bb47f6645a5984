"""Expressions of a kernel as registers, each computed as far outside in the nest of loops as it can be.

The nest has levels: 0 before all loops, 1 inside the outer kept loops, 2 inside the last kept one, then one for each
reduced loop. An expression belongs to the level of the innermost loop that it depends on; where the loop that becomes
vectors is among those, it is a vector, else one value, which is spread when a vector needs it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import field
from typing import Any

import sympy

from kiln.loops.ir import Access, Buffer, Expr
from kiln.loops.kernel import Kernel, Output, Reduction
from kiln.loops.philox import ROUNDS
from kiln.loops.sizes import Size, is_one, is_zero

from ...platform.light_dataclass import dataclass
from .integers import COMPARISONS
from .llvm_text import REGISTERS, Lines, constant
from .loads_and_stores import Place, beyond_the_end, load_at, store_at
from .loop_code import Index, number, plus, times
from .operations import operate
from .philox import Elements, keys_of
from .value_types import MEMORY, from_memory, to_memory

WIDE = 2**31 - 1  # positions below it fit into 32 bits
STACK = 1 << 15  # bytes of a value that is kept on the stack


@dataclass
class Level:
    lines: Lines
    values: dict[Any, str] = field(default_factory=dict)
    offsets: dict[Any, Index] = field(default_factory=dict)  # sums of strides times counters


@dataclass(frozen=True)
class Shape:
    """How the loops of a kernel are nested: at which level each is, and how wide vectors are."""

    kernel: Kernel
    depths: dict[int, int]  # of the loops that are not of size 1
    vector: int | None
    lanes: int
    row: int = 2  # the level at which reductions end


def known_factor(size: Size) -> int:
    """A number that is known to divide a size."""
    return size if isinstance(size, int) else int(size.as_coeff_Mul()[0])


class Values:
    """The registers of expressions at a place in the nest; computes what is missing at the right level."""

    def __init__(self, shape: Shape, entry: Lines, exprs: Iterable[Expr] = ()) -> None:
        self.shape = shape
        self.kernel = shape.kernel
        self.entry = entry
        self.levels: list[Level] = [Level(entry)]
        self.counters: dict[int, Index] = {}
        self.mask: str | None = None  # which lanes there are, at the end of the vector loop
        self.facts: dict[Expr, tuple[int, bool]] = {}
        self.results: dict[int, list[Expr]] = {}  # the expressions of each reduction's result
        self.groups: dict[int, list[int]] = {}
        for loop, depth in shape.depths.items():
            self.groups.setdefault(depth, []).append(loop)
        self.size_numbers = {size: number for number, size in enumerate(self.kernel.sizes)}
        self.borrowed: list[str] = []  # memory to give back at the end
        self.classify(exprs)

    # ---- where expressions belong ------------------------------------------------------------------------------------

    def classify(self, exprs: Iterable[Expr]) -> None:
        """Find the level of each expression (parts come first), and whether it is a vector."""
        facts, vector = self.facts, self.shape.vector
        for expr in exprs:
            if expr in facts:
                continue
            kind = expr.kind
            if kind in ("reduced", "running"):
                self.results.setdefault(expr.payload, []).append(expr)
                is_inner = kind == "running"
                wide = vector is not None and (is_inner or not self.kernel.loops[vector].is_reduced)
                facts[expr] = (max([self.shape.row, *self.shape.depths.values()]) if is_inner else self.shape.row, wide)
                continue
            depth, is_vector = 0, False
            if kind == "load" or kind == "iota":
                depth, is_vector = self.depth_of(expr.payload.strides if kind == "load" else expr.payload[0])
            for part in expr.payload.parts if kind == "load" else expr.args:
                deeper, wide = facts[part]
                depth, is_vector = max(depth, deeper), is_vector or wide
            facts[expr] = (depth, is_vector)

    def depth_of(self, strides: tuple[Size, ...]) -> tuple[int, bool]:
        """The level of the innermost loop along which a place moves, and whether it does along the vector's."""
        depth, is_vector = 0, False
        for loop, level in self.shape.depths.items():
            stride = strides[loop]
            if not is_zero(stride):
                depth = max(depth, level)
                is_vector = is_vector or loop == self.shape.vector
        return depth, is_vector

    # ---- computing ---------------------------------------------------------------------------------------------------

    def compute(self, order: Iterable[Expr], copies: int) -> None:
        """Computes all these (parts first) into registers; vectors ``copies`` times, consecutive along the loop."""
        lanes = self.shape.lanes
        for copy in range(copies):
            for expr in order:
                if expr.kind in ("const", "iota"):
                    continue  # made when they are asked for
                depth, is_vector = self.facts[expr]
                level = self.levels[depth]
                key = (expr, copy) if is_vector else expr
                if key not in level.values:
                    level.values[key] = self.make(expr, copy, level.lines, lanes if is_vector else 1)

    def remember(self, reduction: Reduction, value: str, copy: int) -> None:
        """Sets the register of a reduction's result, or of a scan's value."""
        for expr in self.results.get(reduction.number, ()):
            self.levels[-1].values[(expr, copy) if self.facts[expr][1] else expr] = value

    def get(self, expr: Expr, copy: int, lanes: int) -> str:
        """The register (or constant) of a computed expression, as one value or as a vector."""
        if expr.kind == "const":
            return constant(expr.payload, expr.dtype, lanes)
        depth, is_vector = self.facts[expr]
        level = self.levels[depth]
        values = level.values
        if expr.kind == "iota":
            key = (expr, copy) if is_vector else expr
            if key not in values:
                values[key] = self.make(expr, copy, level.lines, self.shape.lanes if is_vector else 1)
        if is_vector:
            return values[expr, copy]
        value = values[expr]
        if lanes == 1:
            return value
        spread = values.get((expr, "spread"))
        if spread is None:
            spread = values[expr, "spread"] = self.splat(self.levels[depth].lines, value, REGISTERS[expr.dtype])
        return spread

    def splat(self, lines: Lines, value: Index, element: str) -> str:
        if isinstance(value, int):
            return f"splat ({element} {value})"
        return lines.splat(value, element, self.shape.lanes)

    def make(self, expr: Expr, copy: int, lines: Lines, lanes: int) -> str:
        kind = expr.kind
        if kind == "load":
            return self.load(expr.payload, copy, lines, lanes)
        if kind == "iota":
            return self.iota(expr.payload[0], expr.payload[1], copy, lines, lanes)
        if kind == "size":
            size = self.size(expr.payload)
            return size if isinstance(size, str) else str(size)
        if kind == "philox":
            return self.philox(expr, copy, lines, lanes)
        assert kind not in ("reduced", "running"), "a reduction is read before it ends"
        if lanes > 1 and kind in COMPARISONS and self.is_narrow(expr):
            return self.compare_positions(expr, copy, lines)
        operands = [self.get(arg, copy, lanes) for arg in expr.args]
        return operate(lines, kind, operands, expr.args[-1].dtype, expr.dtype, lanes)

    # ---- random numbers ----------------------------------------------------------------------------------------------

    def philox(self, expr: Expr, copy: int, lines: Lines, lanes: int) -> str:
        """Lanes that are neighbouring elements of one call of the generator are computed together."""
        seed, offset, element = expr.args
        threads = self.size(expr.payload.threads)
        elements = Elements(lines, expr.payload, threads, self.philox_keys(seed), self.get(offset, copy, 1))
        if lanes == 1:
            return elements.numbers(self.get(element, copy, 1), 1)[0]
        together = self.neighbours(element, expr.payload.group, lanes)
        if together > 1:
            strides, start = element.payload
            first = plus(lines, self.position(strides, start, lines), self.copy_offset(1, copy))
            firsts = [str(plus(lines, first, lane)) for lane in range(0, lanes, together)]
        else:
            places = self.get(element, copy, lanes)
            firsts = [lines.new(f"extractelement <{lanes} x i64> {places}, i32 {lane}") for lane in range(lanes)]
        found = "poison"
        values = [value for first in firsts for value in elements.numbers(first, together)]
        for lane, value in enumerate(values):
            found = lines.new(f"insertelement <{lanes} x i64> {found}, i64 {value}, i32 {lane}")
        return found

    def philox_keys(self, seed: Expr) -> list[list[str]]:
        level = self.levels[self.facts[seed][0]]
        places = [(seed, "keys", number) for number in range(ROUNDS)]
        if places[0] not in level.values:
            keys = keys_of(level.lines, self.get(seed, 0, 1))
            level.values.update({place: " ".join(pair) for place, pair in zip(places, keys, strict=True)})
        return [level.values[place].split() for place in places]

    def neighbours(self, element: Expr, group: int, lanes: int) -> int:
        """How many lanes are elements of one group: a power of two."""
        if element.kind != "iota" or self.shape.vector is None:
            return 1
        strides, start = element.payload
        if strides[self.shape.vector] != 1:
            return 1
        others = [stride for loop, stride in enumerate(strides) if loop != self.shape.vector]
        return math.gcd(group, lanes, *map(known_factor, (start, *others)))

    # ---- numbers -----------------------------------------------------------------------------------------------------

    def size(self, size: Size) -> Index:
        """A size: a number, or loaded at the beginning."""
        if isinstance(size, int):
            return size
        values = self.levels[0].values
        found = values.get(("size", size))
        if found is not None:
            return found
        number = self.size_numbers.get(size)
        if number is None:
            return self.product(size)
        place = self.entry.new(f"getelementptr i64, ptr %sizes, i64 {number}")
        found = values["size", size] = self.entry.new(f"load i64, ptr {place}")
        return found

    def product(self, size: sympy.Expr) -> Index:
        """A size of scratch memory, which is the product of sizes that the kernel is called with."""
        if size.is_Integer:
            return int(size)
        assert size.is_Mul or size.is_Pow, size
        total: Index = 1
        for factor in size.args if size.is_Mul else [size.base] * int(size.exp):
            total = times(self.entry, total, self.size(factor))
        return total

    def moved(self, strides: tuple[Size, ...], depth: int) -> Index:
        """How far the loops of one level have moved a place."""
        loops = [loop for loop in self.groups.get(depth, ()) if not is_zero(strides[loop])]
        if not loops:
            return 0
        level = self.levels[depth]
        key = (depth, tuple([strides[loop] for loop in loops]), tuple(loops))
        total = level.offsets.get(key)
        if total is None:
            total = 0
            for loop in loops:
                total = plus(level.lines, total, times(level.lines, self.counters[loop], self.size(strides[loop])))
            level.offsets[key] = total
        return total

    def lane_offsets(self, stride: Size) -> str:
        """How far each lane is from the first, in elements."""
        lanes, lines = self.shape.lanes, self.entry
        step = self.size(stride)
        if isinstance(step, int):
            return "<" + ", ".join([f"i64 {lane * step}" for lane in range(lanes)]) + ">"
        values = self.levels[0].values
        found = values.get(("lanes", stride))
        if found is None:
            ramp = "<" + ", ".join([f"i64 {lane}" for lane in range(lanes)]) + ">"
            wide = self.splat(lines, step, "i64")
            found = values["lanes", stride] = lines.new(f"mul <{lanes} x i64> {ramp}, {wide}")
        return found

    def copy_offset(self, stride: Size, copy: int) -> Index:
        """How far a copy is from the first one."""
        return times(self.entry, self.size(stride), copy * self.shape.lanes) if copy else 0

    def iota(self, strides: tuple[Size, ...], offset: Size, copy: int, lines: Lines, lanes: int) -> str:
        total = self.position(strides, offset, lines)
        if lanes == 1:
            return str(total)
        assert self.shape.vector is not None
        stride = strides[self.shape.vector]
        total = plus(lines, total, self.copy_offset(stride, copy))
        return lines.new(f"add <{lanes} x i64> {self.splat(lines, total, 'i64')}, {self.lane_offsets(stride)}")

    def position(self, strides: tuple[Size, ...], offset: Size, lines: Lines) -> Index:
        """An affine sum at the first lane of the first copy."""
        total: Index = self.size(offset)
        for depth in sorted(self.groups):
            total = plus(lines, total, self.moved(strides, depth))
        return total

    # ---- comparisons of positions ------------------------------------------------------------------------------------

    def is_narrow(self, expr: Expr) -> bool:
        """Whether a comparison is of positions, with one another or with one number: 32 bits are enough for these."""
        sides = [self.is_position(arg) for arg in expr.args]
        return any(sides) and all(
            is_known or not self.facts[arg][1] for is_known, arg in zip(sides, expr.args, strict=True)
        )

    def is_position(self, expr: Expr) -> bool:
        """A vector of positions that are known to fit into 32 bits."""
        if expr.kind != "iota" or not self.facts[expr][1]:
            return False
        strides, offset = expr.payload
        total = abs(offset) if isinstance(offset, int) else WIDE
        for loop, stride in zip(self.kernel.loops, strides, strict=True):
            if is_zero(stride):
                continue
            both = isinstance(loop.size, int) and isinstance(stride, int)
            total += loop.size * abs(stride) if both else WIDE
        return total < WIDE

    def compare_positions(self, expr: Expr, copy: int, lines: Lines) -> str:
        sides = [self.narrow(arg, copy, lines) for arg in expr.args]
        return lines.new(f"icmp {COMPARISONS[expr.kind]} <{self.shape.lanes} x i32> {sides[0]}, {sides[1]}")

    def narrow(self, expr: Expr, copy: int, lines: Lines) -> str:
        """Positions, or a number that they are compared with, in 32 bits. Numbers out of range are clamped."""
        lanes = self.shape.lanes
        depth, is_vector = self.facts[expr]
        level = self.levels[depth]
        key = (expr, copy, "narrow") if is_vector else (expr, "narrow")
        found = level.values.get(key)
        if found is not None:
            return found
        lines = level.lines
        if is_vector:
            strides, offset = expr.payload
            stride = strides[self.shape.vector]
            total = plus(lines, self.position(strides, offset, lines), self.copy_offset(stride, copy))
            ramp = "<" + ", ".join([f"i32 {lane * stride}" for lane in range(lanes)]) + ">"
            first = total if isinstance(total, int) else lines.new(f"trunc i64 {total} to i32")
            found = lines.new(f"add <{lanes} x i32> {self.splat(lines, first, 'i32')}, {ramp}")
        else:
            value = self.get(expr, copy, 1)
            low = lines.call("llvm.smax.i64", "i64", [("i64", value), ("i64", str(1 - WIDE))])
            both = lines.call("llvm.smin.i64", "i64", [("i64", low), ("i64", str(WIDE - 1))])
            found = self.splat(lines, lines.new(f"trunc i64 {both} to i32"), "i32")
        level.values[key] = found
        return found

    # ---- memory ------------------------------------------------------------------------------------------------------

    def base(self, buffer: Buffer) -> str:
        values = self.levels[0].values
        found = values.get(buffer)
        if found is None and buffer.kind == "scratch":
            found = values[buffer] = self.scratch(buffer)
        if found is None:
            place = self.entry.new(f"getelementptr ptr, ptr %pointers, i64 {self.kernel.buffers.index(buffer)}")
            found = values[buffer] = self.entry.new(f"load ptr, ptr {place}")
        return found

    def scratch(self, buffer: Buffer) -> str:
        """Scratch memory: on the stack if it is small."""
        count = buffer.shape[0]
        if isinstance(count, int) and count * buffer.dtype.itemsize <= STACK:
            return self.entry.new(f"alloca [{count} x {MEMORY[buffer.dtype]}], align 64")
        size = times(self.entry, self.size(count), buffer.dtype.itemsize)
        found = self.entry.call("malloc", "ptr", [("i64", str(size))])
        self.entry.declare("declare void @free(ptr)")
        self.borrowed.append(found)
        return found

    def pointer(self, access: Access) -> str:
        """To the element at the loops' positions (the first lane of the first copy), indirect values apart."""
        element = MEMORY[access.buffer.dtype]
        key = (access.buffer, access.strides, access.offset)
        deepest = self.depth_of(access.strides)[0]
        found = self.levels[deepest].values.get(key)
        if found is not None:
            return found
        pointer = self.base(access.buffer)
        if not is_zero(access.offset):
            pointer = self.entry.new(f"getelementptr {element}, ptr {pointer}, i64 {self.size(access.offset)}")
        for depth in sorted(self.groups):
            moved = self.moved(access.strides, depth)
            if moved != 0:
                pointer = self.levels[depth].lines.new(f"getelementptr {element}, ptr {pointer}, i64 {moved}")
        self.levels[deepest].values[key] = pointer
        return pointer

    def place(self, access: Access, copy: int, lines: Lines, lanes: int) -> Place:
        """The address of an access, of ``lanes`` lanes."""
        pointer, element = self.pointer(access), MEMORY[access.buffer.dtype]
        vector = self.shape.vector
        stride: Size = access.strides[vector] if vector is not None else 0
        offset: Index = 0
        if lanes > 1:
            offset = self.copy_offset(stride, copy)
        wide: list[str] = []
        for expr, step in access.indirect:
            if lanes > 1 and self.facts[expr][1]:
                index = self.get(expr, copy, lanes)
                factor = self.size(step)
                if factor != 1:
                    index = lines.new(f"mul <{lanes} x i64> {index}, {self.splat(lines, factor, 'i64')}")
                wide.append(index)
            else:
                offset = plus(lines, offset, times(lines, number(self.get(expr, copy, 1)), self.size(step)))
        if offset != 0:
            pointer = lines.new(f"getelementptr {element}, ptr {pointer}, i64 {offset}")
        if lanes == 1:
            mask = None if access.mask is None else self.get(access.mask, copy, 1)
            return Place(pointer, mask=mask)
        mask = self.both(lines, self.mask, None if access.mask is None else self.get(access.mask, copy, lanes))
        if not wide and is_one(stride):
            return Place(pointer, mask=mask)
        if not wide and mask is None and isinstance(stride, int) and stride == -1:
            last = lines.new(f"getelementptr {element}, ptr {pointer}, i64 {1 - lanes}")
            return Place(last, is_reversed=True)
        if not is_zero(stride) or not wide:
            wide.append(self.lane_offsets(stride))
        offsets = wide[0]
        for other in wide[1:]:
            offsets = lines.new(f"add <{lanes} x i64> {offsets}, {other}")
        return Place(pointer, False, offsets, mask)

    def both(self, lines: Lines, a: str | None, b: str | None) -> str | None:
        if a is None or b is None:
            return a or b
        return lines.new(f"and <{self.shape.lanes} x i1> {a}, {b}")

    def load(self, access: Access, copy: int, lines: Lines, lanes: int) -> str:
        dtype = access.buffer.dtype
        place = self.place(access, copy, lines, lanes)
        beyond = "zeroinitializer" if access.mask is not None else beyond_the_end(dtype)
        return from_memory(lines, load_at(lines, place, dtype, lanes, beyond), dtype, lanes)

    # ---- outputs -----------------------------------------------------------------------------------------------------

    def store(self, output: Output, copy: int, level: Level) -> None:
        """Stores the value of an output, at this level."""
        access, dtype = output.target, output.target.buffer.dtype
        parts = (output.value, *access.parts)
        is_vector = self.depth_of(access.strides)[1] or any(self.facts[part][1] for part in parts)
        lanes, lines = self.shape.lanes if is_vector else 1, level.lines
        value = self.get(output.value, copy, lanes)
        place = self.place(access, copy, lines, lanes)
        if lanes == 1 and place.mask is not None:
            self.store_if(output, place, value, level)
            return
        if output.accumulate is not None:
            value = self.combined(output, place, value, lines, lanes)
        store_at(lines, place, to_memory(lines, value, dtype, lanes), dtype, lanes)

    def combined(self, output: Output, place: Place, value: str, lines: Lines, lanes: int) -> str:
        dtype = output.target.buffer.dtype
        there = from_memory(lines, load_at(lines, place, dtype, lanes, beyond_the_end(dtype)), dtype, lanes)
        assert output.accumulate is not None
        name = {"max": "maximum", "min": "minimum"}.get(output.accumulate, output.accumulate)
        return operate(lines, name, [there, value], dtype, dtype, lanes)

    def store_if(self, output: Output, place: Place, value: str, level: Level) -> None:
        """Stores one value where its mask is true: a branch."""
        lines, dtype = level.lines, output.target.buffer.dtype
        yes, after = lines.fresh("store"), lines.fresh("stored")
        lines.branch_if(str(place.mask), yes, after)
        lines.label(yes)
        place = Place(place.pointer)
        if output.accumulate is not None:
            value = self.combined(output, place, value, lines, 1)
        store_at(lines, place, to_memory(lines, value, dtype, 1), dtype, 1)
        lines.branch(after)
        lines.label(after)
