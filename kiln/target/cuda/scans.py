"""Scans by the threads of a unit: each round, the members take the next elements of the row, one vector each.

A member scans its own elements, then the sums of all members are scanned: within a warp by shuffles, across warps
through shared memory. What all rounds before came to is carried along. Members take part in all rounds, also where the
row has ended for them: what they have then is neutral, and they store nothing. Down columns, one thread goes along the
scanned loop alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kiln.loops.ir import walk
from kiln.loops.kernel import Reduction

from ..llvm import reductions
from ..llvm.llvm_text import REGISTERS, Lines
from ..llvm.loop_code import Carried, Index, plus, write_loop
from ..llvm.phases import Phase
from ..llvm.registers import Level
from ..llvm.value_types import register_type
from .exchange import ALL_LANES, BITS, Exchange, barrier
from .kernel_plan import WARP

if TYPE_CHECKING:
    from .nest import ThreadNest


def has_scans(phase: Phase) -> bool:
    return any(reduction.is_scan for reduction in phase.reductions)


class ScanRounds:
    """Writes one run of a reduced loop with scans."""

    def __init__(self, nest: ThreadNest, phase: Phase) -> None:
        self.nest, self.phase, self.plan = nest, phase, nest.plan
        self.is_across = nest.is_across or self.plan.lanes == 1
        self.places = {r.number: self.reserve() for r in phase.reductions if r.is_scan}

    def reserve(self) -> int:
        """Shared memory for the sums of warps, twice: a round writes while threads still read the one before."""
        return self.nest.exchange.reserve(2 * self.plan.members // WARP) if self.plan.members > WARP else 0

    def start(self, reduction: Reduction) -> Carried:
        """What is carried: one value of a scan along vectors, else one for each lane."""
        return reductions.start(reduction, 1 if reduction.is_scan and self.is_across else self.plan.lanes)

    def run(self) -> list[str]:
        nest, values, plan, phase = self.nest, self.nest.values, self.plan, self.phase
        outside = values.levels
        carried = [pair for reduction in phase.reductions for pair in self.start(reduction)]

        def body(lines: Lines, counter: Index, given: list[str]) -> list[str]:
            values.levels = [*outside, Level(lines)] if plan.reduced else outside
            place, inside = self.position(lines, counter, total)
            nest.set_counters(plan.reduced, place, "i64", lines)
            results, number = list(given), 0
            for reduction in phase.reductions:  # first: later expressions read the scans
                if reduction.is_scan:
                    values.compute(list(walk(reduction.value)), 1)
                    results[number] = self.scan(lines, reduction, given[number], inside, counter)
                number += len(self.start(reduction))
            values.compute(phase.order, 1)
            mask = inside if inside is None or plan.lanes == 1 else lines.splat(inside, "i1", plan.lanes)
            number = 0
            for reduction in phase.reductions:
                count = len(self.start(reduction))
                if not reduction.is_scan:
                    results[number : number + count] = nest.step(reduction, given[number : number + count], 0, mask)
                number += count
            if phase.outputs:
                nest.when(nest.both(nest.alive, inside), lambda: nest.store(phase.outputs, 1))
            values.levels = outside
            return results

        total: Index = nest.units_along(plan.reduced[0]) if plan.reduced else 1
        return write_loop(nest.lines, 0, total, plan.members, carried, body)

    def position(self, lines: Lines, counter: Index, total: Index) -> tuple[str, str | None]:
        """Where a member is in this round, and whether that is inside the row; None: it always is."""
        if self.plan.members == 1:
            return str(counter), None
        member = lines.new(f"zext i32 {self.nest.member} to i64")
        place = str(plus(lines, counter, member))
        if isinstance(total, int) and total % self.plan.members == 0:
            return place, None
        inside = lines.new(f"icmp slt i64 {place}, {total}")
        return lines.new(f"select i1 {inside}, i64 {place}, i64 0"), inside

    def scan(self, lines: Lines, reduction: Reduction, carried: str, inside: str | None, counter: Index) -> str:
        """The scan's values of this round; returns what is carried to the next."""
        values, plan = self.nest.values, self.plan
        value = values.get(reduction.value, 0, plan.lanes)
        if not self.is_across:
            carried, found = reductions.scan(lines, reduction, carried, value, None, plan.lanes, False)
            values.remember(reduction, found, 0)
            return carried
        dtype, kind = reduction.value.dtype, reduction.kind
        wide, element = register_type(dtype, plan.lanes), REGISTERS[dtype]
        parts = [value]
        if plan.lanes > 1:
            parts = [lines.new(f"extractelement {wide} {value}, i32 {lane}") for lane in range(plan.lanes)]
        if inside is not None:
            neutral = reductions.start(reduction, 1)[0][1]
            parts = [lines.new(f"select i1 {inside}, {element} {one}, {element} {neutral}") for one in parts]
        for lane in range(1, plan.lanes):
            parts[lane] = reductions.combined(lines, kind, parts[lane - 1], parts[lane], dtype, 1)
        before, whole = self.members_before(lines, reduction, parts[-1], counter)
        first = carried if before is None else reductions.combined(lines, kind, carried, before, dtype, 1)
        parts = [reductions.combined(lines, kind, first, one, dtype, 1) for one in parts]
        found = parts[0]
        if plan.lanes > 1:
            found = "poison"
            for lane, one in enumerate(parts):
                found = lines.new(f"insertelement {wide} {found}, {element} {one}, i32 {lane}")
        values.remember(reduction, found, 0)
        return parts[-1] if whole is None else reductions.combined(lines, kind, carried, whole, dtype, 1)

    # ---- what members exchange ---------------------------------------------------------------------------------------

    def members_before(
        self, lines: Lines, reduction: Reduction, value: str, counter: Index
    ) -> tuple[str | None, str | None]:
        """The combined values of the members before this one, and of all; None if it is alone."""
        plan, nest = self.plan, self.nest
        if plan.members == 1:
            return None, None
        element, neutral = REGISTERS[reduction.value.dtype], reductions.start(reduction, 1)[0][1]
        width = min(plan.members, WARP)
        lane = nest.member if plan.members <= WARP else lines.new(f"and i32 {nest.thread}, {WARP - 1}")
        scanned = self.inclusive(lines, reduction, value, lane, width)
        is_first = lines.new(f"icmp eq i32 {lane}, 0")
        before = lines.new(
            f"select i1 {is_first}, {element} {neutral}, {element} {shifted_up(lines, scanned, element, 1, width)}"
        )
        if plan.members <= WARP:
            return before, from_lane(lines, scanned, element, str(width - 1), width)
        warps = plan.members // WARP
        exchange, base = Exchange(plan, lines, nest.exchange.shared), self.places[reduction.number]
        warp = lines.new(f"lshr i32 {nest.thread}, 5")
        last = from_lane(lines, scanned, element, str(WARP - 1), WARP)
        exchange.write(base, self.slot(lines, warp, counter, warps), last, element)
        barrier(lines)
        other = lines.new(f"and i32 {nest.thread}, {warps - 1}")
        sums = exchange.read(base, self.slot(lines, other, counter, warps), element)
        sums = self.inclusive(lines, reduction, sums, other, warps)
        of_warps = shifted_up(lines, sums, element, 1, warps)
        of_warps = lines.new(
            f"select i1 {lines.new(f'icmp eq i32 {other}, 0')}, {element} {neutral}, {element} {of_warps}"
        )
        of_warps = from_lane(lines, of_warps, element, warp, warps)
        whole = from_lane(lines, sums, element, str(warps - 1), warps)
        dtype = reduction.value.dtype
        return reductions.combined(lines, reduction.kind, of_warps, before, dtype, 1), whole

    def slot(self, lines: Lines, number: str, counter: Index, warps: int) -> str:
        """The place of a warp's sum: odd rounds use the second half."""
        if isinstance(counter, int):
            return number
        odd = lines.new(f"and i64 {lines.new(f'lshr i64 {counter}, {self.plan.members.bit_length() - 1}')}, 1")
        half = lines.new(f"mul i32 {lines.new(f'trunc i64 {odd} to i32')}, {warps}")
        return lines.new(f"add i32 {number}, {half}")

    def inclusive(self, lines: Lines, reduction: Reduction, value: str, lane: str, width: int) -> str:
        """The combined values of the lanes up to each, in groups of ``width`` lanes."""
        dtype = reduction.value.dtype
        element, distance = REGISTERS[dtype], 1
        while distance < width:
            other = shifted_up(lines, value, element, distance, width)
            both = reductions.combined(lines, reduction.kind, other, value, dtype, 1)
            has = lines.new(f"icmp uge i32 {lane}, {distance}")
            value = lines.new(f"select i1 {has}, {element} {both}, {element} {value}")
            distance *= 2
        return value


# ---- shuffles --------------------------------------------------------------------------------------------------------


def shifted_up(lines: Lines, value: str, element: str, distance: int, width: int) -> str:
    """The value of the lane that is ``distance`` before; its own where there is none in the group."""
    bound = str((WARP - width) << 8)

    def shuffle(word: str) -> str:
        arguments = [("i32", ALL_LANES), ("i32", word), ("i32", str(distance)), ("i32", bound)]
        return lines.call("llvm.nvvm.shfl.sync.up.i32", "i32", arguments)

    return by_words(lines, value, element, shuffle)


def from_lane(lines: Lines, value: str, element: str, lane: str, width: int) -> str:
    """The value of one lane of the group."""
    bound = str(((WARP - width) << 8) | (WARP - 1))

    def shuffle(word: str) -> str:
        arguments = [("i32", ALL_LANES), ("i32", word), ("i32", lane), ("i32", bound)]
        return lines.call("llvm.nvvm.shfl.sync.idx.i32", "i32", arguments)

    return by_words(lines, value, element, shuffle)


def by_words(lines: Lines, value: str, element: str, shuffle: Callable[[str], str]) -> str:
    """A value that lanes exchange in words of 32 bits."""
    bits = BITS[element]
    whole = value if element.startswith("i") else lines.new(f"bitcast {element} {value} to i{bits}")
    if bits == 64:
        low = shuffle(lines.new(f"trunc i64 {whole} to i32"))
        high = shuffle(lines.new(f"trunc i64 {lines.new(f'lshr i64 {whole}, 32')} to i32"))
        wide = [lines.new(f"zext i32 {part} to i64") for part in (low, high)]
        found = lines.new(f"or i64 {lines.new(f'shl i64 {wide[1]}, 32')}, {wide[0]}")
    elif bits == 32:
        found = shuffle(whole)
    else:
        found = lines.new(f"trunc i32 {shuffle(lines.new(f'zext {element} {whole} to i32'))} to {element}")
    return found if element.startswith("i") else lines.new(f"bitcast i{bits} {found} to {element}")
