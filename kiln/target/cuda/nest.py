"""The code of one thread: which unit it takes, the phases of its reduced loops, what members of a unit exchange.

A thread whose unit is beyond the last one ends at once if it works alone. Where members exchange values, all threads
must take part: such a thread computes the last unit again, and stores nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

from kiln.loops.ir import Expr
from kiln.loops.kernel import Output, Reduction
from kiln.loops.sizes import Size

from ..llvm import reductions
from ..llvm.llvm_text import Lines
from ..llvm.loop_code import (
    Body,
    Carried,
    Index,
    ceil_div,
    lane_mask,
    minus,
    plus,
    split_position,
    times,
    write_loop,
)
from ..llvm.phases import Phase
from ..llvm.registers import Level
from .exchange import Exchange, Partial
from .kernel_plan import CudaPlan, units_of
from .online_sums import OnlineCode
from .parts.turns import first_position, write_turns
from .row_registers import is_half_load, kept_after, order_after
from .scans import ScanRounds, has_scans
from .tiles import TileCode
from .values import ThreadValues

MOST_UNITS_OF_32_BITS = 1 << 31
END = "end"


class ThreadNest:
    """Writes the body of a kernel's function, for a block of this number."""

    def __init__(self, plan: CudaPlan, entry: Lines, shared: str, block: str) -> None:
        self.plan, self.lines, self.block = plan, entry, block
        self.kernel = plan.shape.kernel
        self.values = ThreadValues(plan, entry)
        self.exchange = Exchange(plan, entry, shared)
        self.thread = self.slot = self.member = "0"
        self.alive: str | None = None  # whether the thread's unit is there; None: it always is
        self.active: str | None = None  # whether the thread has a last copy; None: all have
        self.row = Level(entry)  # of the values that stay in registers between phases

    def write(self) -> None:
        if self.plan.tile is not None:
            self.thread = self.lines.call("llvm.nvvm.read.ptx.sreg.tid.x", "i32", [])
            TileCode(self, self.exchange.shared).write()
            self.exchange.peak = self.plan.tile.shared_bytes
            self.lines.branch(END)
            self.lines.label(END)
            return
        self.find_unit()
        self.values.levels = [Level(self.lines), Level(self.lines)]
        if self.plan.reduced or self.plan.phases:
            self.write_unit()
        else:
            self.write_points()
        self.lines.branch(END)
        self.lines.label(END)

    # ---- which unit --------------------------------------------------------------------------------------------------

    def find_unit(self) -> None:
        lines, plan = self.lines, self.plan
        self.thread = lines.call("llvm.nvvm.read.ptx.sreg.tid.x", "i32", [])
        count = plan.units_of_block
        if plan.members == 1:
            self.slot = self.thread
        elif plan.is_by_columns:
            self.slot = lines.new(f"and i32 {self.thread}, {count - 1}")
            self.member = lines.new(f"lshr i32 {self.thread}, {count.bit_length() - 1}")
        else:
            self.slot = lines.new(f"lshr i32 {self.thread}, {plan.members.bit_length() - 1}")
            self.member = lines.new(f"and i32 {self.thread}, {plan.members - 1}")
        self.exchange.set_thread(self.thread, self.slot, self.member)
        units = units_of(self.kernel, plan.kept, plan.shape.vector, plan.lanes)
        if plan.turns is not None:
            units = units // plan.turns.count
        if isinstance(units, int) and units + count < MOST_UNITS_OF_32_BITS:
            self.count_kept("i32", self.block, self.slot, units)
            return
        wide = [lines.new(f"zext i32 {value} to i64") for value in (self.block, self.slot)]
        total: Index = 1
        for loop in plan.kept:
            total = times(lines, total, self.units_along(loop))
        self.count_kept("i64", wide[0], wide[1], total)

    def units_along(self, loop: int) -> Index:
        size, turns = self.values.size(self.kernel.loops[loop].size), self.plan.turns
        if turns is not None and loop == turns.loop:
            assert isinstance(size, int)
            return size // (turns.count * (self.plan.lanes if loop == self.plan.shape.vector else 1))
        return ceil_div(self.lines, size, self.plan.lanes) if loop == self.plan.shape.vector else size

    def count_kept(self, kind: str, block: str, slot: str, total: Index) -> None:
        """The positions of the kept loops, from a unit's number in an integer type."""
        lines, count = self.lines, self.plan.units_of_block
        first = lines.new(f"mul {kind} {block}, {count}")
        unit = lines.new(f"add {kind} {first}, {slot}")
        if not isinstance(total, int) or total % count:
            is_there = lines.new(f"icmp ult {kind} {unit}, {total}")
            if self.plan.members == 1:
                go = lines.fresh("unit")
                lines.branch_if(is_there, go, END)
                lines.label(go)
            else:
                self.alive = is_there
                last = total - 1 if isinstance(total, int) else lines.new(f"sub {kind} {total}, 1")
                unit = lines.new(f"select i1 {is_there}, {kind} {unit}, {kind} {last}")
        self.set_counters(self.plan.kept, unit, kind, lines)

    def set_counters(self, loops: tuple[int, ...], position: str, kind: str, lines: Lines) -> None:
        """The positions of loops, from a flat one in vectors."""
        sizes = [self.units_along(loop) for loop in loops]
        if kind == "i64":
            if not loops:
                return
            found, last = split_position(lines, position, sizes)
            places = [*found, last]
        else:
            places = [lines.new(f"zext i32 {place} to i64") for place in split_narrow(lines, position, sizes)]
        for loop, place in zip(loops, places, strict=True):
            step = self.plan.lanes if loop == self.plan.shape.vector else 1
            if self.plan.turns is not None and loop == self.plan.turns.loop:
                place = first_position(lines, place, self.plan.turns)
            self.values.counters[loop] = times(lines, place, step)

    # ---- without reductions ------------------------------------------------------------------------------------------

    def write_points(self) -> None:
        """The points of a unit. At the end of a loop of dynamic size, some lanes are missing."""
        vector = self.plan.shape.vector
        if self.plan.turns is not None:
            write_turns(self, self.plan.turns)
            return
        size: Size = self.kernel.loops[vector].size if vector is not None else 0
        if vector is None or (isinstance(size, int) and size % self.plan.lanes == 0):
            self.write_closing(None)
            return
        lines, values = self.lines, self.values
        left = minus(lines, values.size(size), values.counters[vector])
        is_whole = lines.new(f"icmp sge i64 {left}, {self.plan.lanes}")
        whole, part, after = lines.fresh("whole"), lines.fresh("part"), lines.fresh("written")
        lines.branch_if(is_whole, whole, part)
        for label in (whole, part):
            lines.label(label)
            kept = self.saved()
            values.mask = lane_mask(lines, left, self.plan.lanes) if label == part else None
            self.write_closing(None)
            self.restore(kept)
            lines.branch(after)
        values.mask = None
        lines.label(after)

    def write_closing(self, condition: str | None) -> None:
        """The outputs that each point of the kept loops has one of."""
        closing = self.plan.closing
        if closing.outputs:
            self.values.compute(closing.order, 1)
            self.when(condition, lambda: self.store(closing.outputs, 1))

    def store(self, outputs: list[Output], copies: int, first: int = 0) -> None:
        level = self.values.levels[-1]
        for copy in range(first, copies):
            for output in outputs:
                self.values.store(output, copy, level)

    # ---- conditions --------------------------------------------------------------------------------------------------

    def saved(self) -> list[tuple[dict[object, str], dict[object, Index]]]:
        return [(dict(level.values), dict(level.offsets)) for level in self.values.levels]

    def restore(self, kept: list[tuple[dict[object, str], dict[object, Index]]]) -> None:
        """Forget the registers that were set in a block that does not always run."""
        for level, (values, offsets) in zip(self.values.levels, kept, strict=True):
            level.values, level.offsets = values, offsets

    def when(self, condition: str | None, write: Callable[[], None]) -> None:
        """Code that only runs where the condition is true; None: everywhere."""
        if condition is None:
            write()
            return
        lines = self.values.levels[-1].lines
        yes, after = lines.fresh("when"), lines.fresh("then")
        lines.branch_if(condition, yes, after)
        lines.label(yes)
        kept = self.saved()
        write()
        self.restore(kept)
        lines.branch(after)
        lines.label(after)

    def both(self, a: str | None, b: str | None) -> str | None:
        if a is None or b is None:
            return a or b
        return self.values.levels[-1].lines.new(f"and i1 {a}, {b}")

    # ---- reductions --------------------------------------------------------------------------------------------------

    def write_unit(self) -> None:
        """All phases of a unit, then its closing outputs, which the first member writes."""
        phases = self.plan.phases
        if self.plan.online is not None:
            OnlineCode(self, self.plan.online).write()
            phases = phases[2:]
        for phase in phases:
            self.run_through(phase, phase is phases[-1])
        first = None
        if self.plan.members > 1 and self.plan.closing.outputs:
            first = self.lines.new(f"icmp eq i32 {self.member}, 0")
        self.write_closing(self.both(self.alive, first))

    @property
    def is_across(self) -> bool:
        """Whether the lanes of a vector are elements of one reduction."""
        return self.plan.shape.vector in self.plan.reduced

    def run_through(self, phase: Phase, is_last: bool) -> None:
        """One run of the reduced loops; its reductions are available afterwards."""
        values, width = self.values, self.plan.lanes
        carried: Carried = []
        for reduction in phase.reductions:
            carried += reductions.start(reduction, width)
        outside = values.levels
        if has_scans(phase):
            results = ScanRounds(self, phase).run()
        elif self.plan.copies:
            results = self.through_registers(phase, carried)
        else:
            results = self.through_loop(phase, carried)
        values.levels = outside
        partials, place, lanes = [], 0, width
        if self.is_across and width > 1:
            lanes = 1
        for reduction in phase.reductions:
            count = 1 + (reduction.position is not None)
            found = results[place : place + count]
            place += count
            if reduction.is_scan:
                continue
            if lanes != width:
                found = reductions.across(self.lines, reduction, found, width)
            partials.append(Partial(reduction, found))
        combined = self.exchange.combine(partials, lanes, is_for_all=not is_last)
        for (reduction, _), found in zip(partials, combined, strict=True):
            values.remember(reduction, reductions.finish(self.lines, reduction, found, lanes, False), 0)

    def step(self, reduction: Reduction, carried: list[str], copy: int, mask: str | None) -> list[str]:
        values, width = self.values, self.plan.lanes
        lines = values.levels[-1].lines
        value = values.get(reduction.value, copy, width)
        position = values.get(reduction.position, copy, width) if reduction.position is not None else None
        return reductions.step(lines, reduction, carried, value, position, mask, width, False)

    def add_up(self, phase: Phase, carried: list[str], copy: int, mask: str | None) -> list[str]:
        results, place = [], 0
        for reduction in phase.reductions:
            count = 1 + (reduction.position is not None)
            results += self.step(reduction, carried[place : place + count], copy, mask)
            place += count
        return results

    # ---- rows in registers -------------------------------------------------------------------------------------------

    def through_registers(self, phase: Phase, carried: Carried) -> list[str]:
        """Each thread has its part of the row in registers; what later phases need stays there."""
        values, plan, lines = self.values, self.plan, self.lines
        (loop,) = plan.reduced
        if loop not in values.counters:
            self.begin_row(loop)
        number = plan.phases.index(phase)
        kept = kept_after(plan.phases, number - 1, loop) if number else {}
        self.row = Level(lines, self.kept_values(kept))
        values.levels = [*values.levels, self.row]
        order = order_after(phase, kept)
        values.compute([expr for expr in order if is_loaded_first(expr)], plan.copies)
        if number == 0:
            values.compute(plan.early, plan.copies)
        values.compute(order, plan.copies)
        results = [value for _, value in carried]
        for copy in range(plan.copies):
            condition = self.active if copy == plan.copies - 1 else None
            mask = lines.splat(condition, "i1", plan.lanes) if condition is not None else None
            results = self.add_up(phase, results, copy, mask)
            if phase.outputs:
                self.store_copy(phase.outputs, copy, self.both(self.alive, condition))
        return results

    def kept_values(self, kept: Container[Expr]) -> dict[object, str]:
        """The registers of the phase before that the next one needs. Other values are computed again if need be."""
        return {
            key: value
            for key, value in self.row.values.items()
            if isinstance(key, tuple) and (key[0] in kept or key[0] in self.plan.early) and not is_half_load(key[0])
        }

    def store_copy(self, outputs: list[Output], copy: int, condition: str | None) -> None:
        self.when(condition, lambda: self.store(outputs, copy + 1, copy))

    def begin_row(self, loop: int) -> None:
        values, plan, lines = self.values, self.plan, self.lines
        rounds = units_of(self.kernel, plan.reduced, plan.shape.vector, plan.lanes)
        assert isinstance(rounds, int)
        if rounds % plan.members:
            last = rounds - (plan.copies - 1) * plan.members
            self.active = lines.new(f"icmp slt i32 {self.member}, {last}")
            values.has_last_copy = (plan.copies - 1, self.active)
        wide = lines.new(f"zext i32 {self.member} to i64")
        values.counters[loop] = times(lines, wide, plan.lanes)
        if plan.copies == 1 and self.active is not None:  # stay inside the row
            values.counters[loop] = lines.new(f"select i1 {self.active}, i64 {values.counters[loop]}, i64 0")

    # ---- long rows ---------------------------------------------------------------------------------------------------

    def through_loop(self, phase: Phase, carried: Carried) -> list[str]:
        """The members take the elements of the reduced loops in turns, several of them at once."""
        return self.loop_through(lambda count: self.rounds(phase, count), carried)

    def loop_through(self, rounds: Callable[[int], Body], carried: Carried) -> list[str]:
        """The loop of a thread through its rounds; ``rounds`` gives the code of several of them."""
        plan, lines = self.plan, self.lines
        if not plan.reduced:
            return rounds(1)(lines, 0, [value for _, value in carried])
        total: Index = 1
        for loop in plan.reduced:
            total = times(lines, total, self.units_along(loop))
        first: Index = 0
        if plan.members > 1:
            first = lines.new(f"zext i32 {self.member} to i64")
        together = plan.members * plan.at_once
        whole: Index = total
        if plan.at_once > 1 and isinstance(total, int):
            whole = total - total % together
        elif plan.at_once > 1:
            whole = minus(lines, total, lines.new(f"urem i64 {total}, {together}"))
        kinds = [kind for kind, _ in carried]
        is_run = isinstance(whole, int) and whole >= together
        results = write_loop(lines, first, whole, together, carried, rounds(plan.at_once), is_run)
        if whole == total:
            return results
        left = list(zip(kinds, results, strict=True))
        return write_loop(lines, plus(lines, first, whole), total, plan.members, left, rounds(1))

    def load_rounds(
        self, lines: Lines, counter: Index, count: int, order: Sequence[Expr]
    ) -> list[tuple[Level, dict[int, Index]]]:
        """The loads of several rounds, with the level and the counters of each."""
        values, outside, places = self.values, self.values.levels, []
        for number in range(count):
            level = Level(lines)
            values.levels = [*outside, level]
            position = plus(lines, counter, number * self.plan.members)
            self.set_counters(self.plan.reduced, *self.narrowed(lines, position), lines)
            places.append((level, dict(values.counters)))
            values.compute([expr for expr in order if is_loaded_first(expr)], 1)
        values.levels = outside
        return places

    def rounds(self, phase: Phase, count: int) -> Body:
        """The code of ``count`` rounds. All of them load before any of them stores, so that loads do not wait."""
        values = self.values

        def body(lines: Lines, counter: Index, given: list[str]) -> list[str]:
            outside = values.levels
            places = self.load_rounds(lines, counter, count, phase.order)
            for level, counters in places:
                values.levels, values.counters = [*outside, level], counters
                values.compute(phase.order, 1)
                given = self.add_up(phase, given, 0, None)
            for level, counters in places if phase.outputs else ():
                values.levels, values.counters = [*outside, level], counters
                self.when(self.alive, lambda: self.store(phase.outputs, 1))
            values.levels = outside
            return given

        return body

    def narrowed(self, lines: Lines, position: Index) -> tuple[str, str]:
        """A flat position of the reduced loops and its type: 32 bits where it has to be divided and they suffice."""
        total = units_of(self.kernel, self.plan.reduced, self.plan.shape.vector, self.plan.lanes)
        if len(self.plan.reduced) < 2 or not isinstance(total, int) or total >= MOST_UNITS_OF_32_BITS:
            return str(position), "i64"
        if isinstance(position, int):
            return str(position), "i32"
        return lines.new(f"trunc i64 {position} to i32"), "i32"


def is_loaded_first(expr: Expr) -> bool:
    """Whether an expression is a load that needs nothing but the positions of the loops."""
    return expr.kind == "load" and not expr.payload.parts


def split_narrow(lines: Lines, position: str, sizes: list[Index]) -> list[str]:
    """A flat position as positions of loops, in 32 bits."""
    found: list[str] = []
    for size in reversed(sizes[1:]):
        found.append(lines.new(f"urem i32 {position}, {size}"))
        position = lines.new(f"udiv i32 {position}, {size}")
    return [*([position] if sizes else []), *reversed(found)]
