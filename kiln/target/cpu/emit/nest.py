"""The nest of loops of a kernel, as the body of one function: a run of the kept points, from ``start`` to ``end``.

All kept loops but the last are one loop that counts up their positions, so a run may begin and end anywhere, and no
round divides. The last kept loop is a loop of its own. If it is the vector loop, a round takes several vectors, and a
masked vector takes the rest; otherwise vectors are along the innermost reduced loop. At each point the reduced loops
run once for each phase.
"""

from __future__ import annotations

from collections.abc import Callable

from kiln.loops.ir import walk
from kiln.loops.kernel import Kernel, Output, Reduction

from ...llvm import reductions
from ...llvm.llvm_text import Lines
from ...llvm.loop_code import (
    Body,
    Carried,
    Index,
    ceil_div,
    counted_up,
    lane_mask,
    minus,
    plus,
    round_down,
    smaller,
    split_position,
    times,
    write_loop,
)
from ...llvm.phases import Phase
from ...llvm.reductions import is_serial_scan
from ...llvm.registers import Level, Values
from .kernel_plan import Plan
from .tiles import write_tile

MANY = 64  # loops of more rounds add up blocks first, so that small terms are not lost in a large sum
BLOCK = 64  # the rounds of a long loop that do so; of very long ones, so many blocks do so in turn


class Nest:
    """Writes the body of a kernel's function."""

    def __init__(self, plan: Plan, entry: Lines) -> None:
        self.plan = plan
        self.shape = plan.shape
        self.kernel: Kernel = plan.shape.kernel
        self.values = Values(
            plan.shape, entry, [expr for phase in (*plan.phases, plan.closing) for expr in phase.order]
        )
        self.sums: list[tuple[str, str] | None] = []  # of what the phase carries: type and zero, where it is a sum

    # ---- the kept loops ----------------------------------------------------------------------------------------------

    def write(self, start: Index, end: Index) -> None:
        """The whole body, into the entry's lines."""
        self.kept_loops(start, end)
        for buffer in self.values.borrowed:
            self.values.entry.add(f"call void @free(ptr {buffer})")

    def kept_loops(self, start: Index, end: Index) -> None:
        values, plan = self.values, self.plan
        if plan.last is None:
            values.levels += [Level(values.entry), Level(values.entry)]
            self.write_point(1)
            return
        size = values.size(self.kernel.loops[plan.last].size)
        units = ceil_div(values.entry, size, plan.unit)
        if not plan.outer:
            values.levels.append(Level(values.entry))
            self.last_loop(start, end, size, values.levels[0])
            return
        self.outer_loop(start, end, size, units)

    def outer_loop(self, start: Index, end: Index, size: Index, units: Index) -> None:
        """All kept loops but the last, as one that counts up their positions."""
        values, entry, outer = self.values, self.values.entry, self.plan.outer
        sizes = [self.plan.rounds(loop, values, entry) for loop in outer]
        first: list[Index]
        first, begins = split_position(entry, 0 if self.plan.is_by_columns else start, [*sizes, units])
        names = [f"%{entry.fresh('at')}" for _ in outer]
        done, begin = f"%{entry.fresh('done')}", f"%{entry.fresh('begin')}"
        head, after = entry.fresh("outer"), entry.fresh("end")
        level = Level(Lines(entry.names, head))
        values.levels.append(level)
        lines = level.lines
        values.counters.update(zip(outer, names, strict=True))
        is_whole = self.plan.is_by_columns or (isinstance(units, int) and start == 0)
        if self.plan.is_by_columns:  # a part of each row
            begin_value, finish = start, end
            start, end, units = 0, self.product(sizes), 1
        elif is_whole:
            begin_value, finish = 0, units
        else:
            left = lines.new(f"sub i64 {end}, {done}")
            room = lines.new(f"sub i64 {units}, {begin}")
            taken = smaller(lines, left, room)
            finish = lines.new(f"add i64 {begin}, {taken}")
            begin_value = begin
        self.last_loop(begin_value, finish, size, level)
        step: Index = units if is_whole else taken
        next_done = plus(lines, done, step)
        next_names = counted_up(lines, names, sizes)
        more = lines.new(f"icmp slt i64 {next_done}, {end}")
        latch = lines.block
        lines.branch_if(more, head, after)
        entry.branch(head)
        phis = [(done, start, next_done), *zip(names, first, next_names, strict=True)]
        if not is_whole:
            phis.append((begin, begins, 0))
        before = entry.block
        entry.label(head)
        for name, from_start, from_round in phis:
            entry.add(f"{name} = phi i64 [ {from_start}, %{before} ], [ {from_round}, %{latch} ]")
        entry.text += lines.text
        entry.label(after)

    def product(self, sizes: list[Index]) -> Index:
        total: Index = 1
        for size in sizes:
            total = times(self.values.entry, total, size)
        return total

    def last_loop(self, begin: Index, finish: Index, size: Index, level: Level) -> None:
        """The last kept loop, from one unit of work to another."""
        plan = self.plan
        loop = plan.last
        assert loop is not None
        if plan.tile is not None:

            def tile(lines: Lines, counter: Index, carried: list[str]) -> list[str]:
                write_tile(plan, self.values, lines, counter, row_of_tile)
                return []

            def row_of_tile(lines: Lines, low: Index, high: Index) -> None:
                self.vector_loop(
                    lines,
                    low,
                    high,
                    [],
                    lambda inner, at, _, copies, mask: self.write_inside(loop, at, inner, copies, mask),
                )

            write_loop(level.lines, begin, finish, 1, [], tile, known_nonempty=True)
            return
        if loop != self.shape.vector:

            def body(lines: Lines, counter: Index, carried: list[str]) -> list[str]:
                return self.write_inside(loop, counter, lines, 1, None, self.row if plan.has_rows else None)

            write_loop(level.lines, begin, finish, 1, [], body, known_nonempty=True)
            return
        lines = level.lines
        low = times(lines, begin, plan.unit)
        high = smaller(lines, times(lines, finish, plan.unit), size)
        self.vector_loop(
            lines,
            low,
            high,
            [],
            lambda lines, counter, carried, copies, mask: self.write_inside(loop, counter, lines, copies, mask),
        )

    def row(self, copies: int) -> None:
        """A short row of vectors, at a point of the other kept loops."""
        vector, values = self.shape.vector, self.values
        assert vector is not None
        size = values.size(self.kernel.loops[vector].size)

        def body(lines: Lines, counter: Index, carried: list[str], copies: int, mask: str | None) -> list[str]:
            return self.write_inside(vector, counter, lines, copies, mask)

        self.vector_loop(values.levels[-1].lines, 0, size, [], body)

    def write_inside(
        self,
        loop: int,
        counter: Index,
        lines: Lines,
        copies: int,
        mask: str | None,
        then: Callable[[int], None] | None = None,
    ) -> list[str]:
        """Writes what is done at a point (or at ``copies`` vectors of points) of the kept loops. It carries nothing."""
        values = self.values
        levels, old_mask = values.levels, values.mask
        values.levels = [*levels, Level(lines)]
        values.counters[loop], values.mask = counter, mask
        (then or self.write_point)(copies)
        values.levels, values.mask = levels, old_mask
        return []

    def vector_loop(
        self,
        lines: Lines,
        low: Index,
        high: Index,
        carried: Carried,
        body: Callable[[Lines, Index, list[str], int, str | None], list[str]],
    ) -> list[str]:
        """A loop in vectors: several at a time, then masked ones for the rest. ``body`` returns the carried values."""
        lanes, copies = self.shape.lanes, self.plan.copies
        width = lanes * copies
        count = minus(lines, high, low)
        middle = plus(lines, low, round_down(lines, count, width))
        results = [value for _, value in carried]
        if middle != low:
            results = self.long_loop(
                lines, low, middle, width, carried, lambda inner, at, given: body(inner, at, given, copies, None)
            )
        if middle == high:
            return results
        kinds = [kind for kind, _ in carried]

        def masked(inner: Lines, counter: Index, values: list[str]) -> list[str]:
            return body(inner, counter, values, 1, lane_mask(inner, minus(inner, high, counter), lanes))

        return write_loop(lines, middle, high, lanes, list(zip(kinds, results, strict=True)), masked)

    # ---- a point of the kept loops -----------------------------------------------------------------------------------

    def write_point(self, copies: int) -> None:
        """All phases at a point of the kept loops, then the outputs that each point has one of."""
        for phase in self.plan.phases:
            self.run_through(phase, copies)
        closing = self.plan.closing
        if closing.outputs:
            self.values.compute(closing.order, copies)
            self.store(closing.outputs, copies)

    def store(self, outputs: list[Output], copies: int) -> None:
        for copy in range(copies):
            for output in outputs:
                if copy == 0 or self.is_vector(output):
                    self.values.store(output, copy, self.values.levels[-1])

    def is_vector(self, output: Output) -> bool:
        facts = self.values.facts
        parts = (output.value, *output.target.parts)
        return self.values.depth_of(output.target.strides)[1] or any(facts[part][1] for part in parts)

    def run_through(self, phase: Phase, copies: int) -> None:
        """One run of the reduced loops; its reductions are available afterwards."""
        values = self.values
        vector, lanes = self.shape.vector, self.shape.lanes
        is_across = vector is not None and vector in self.plan.reduced
        inner_copies = self.plan.copies if is_across else copies
        width = lanes if vector is not None else 1
        carried: Carried = []
        self.sums = []
        for reduction in phase.reductions:
            is_sum = reduction.kind == "sum" and reduction.value.dtype.is_floating_point and not reduction.is_scan
            for _ in range(inner_copies):
                for pair in reductions.start(reduction, 1 if is_serial_scan(reduction) and is_across else width):
                    carried.append(pair)
                    self.sums.append(pair if is_sum else None)
        results = self.reduced_loops(phase, 0, carried, copies)
        level = values.levels[-1]
        place = 0
        for reduction in phase.reductions:
            count = 2 if reduction.position is not None else 1
            found = []
            for _ in range(inner_copies):
                found.append(results[place : place + count])
                place += count
            if reduction.is_scan:
                continue  # which was known at each point
            if is_across:
                whole = reductions.joined(level.lines, reduction, found, lanes)
                found = [whole]
            self.keep_result(reduction, found, width, is_across, level)

    def keep_result(
        self, reduction: Reduction, found: list[list[str]], width: int, is_across: bool, level: Level
    ) -> None:
        """Makes the result of a reduction available."""
        for copy, carried in enumerate(found):
            self.values.remember(reduction, reductions.finish(level.lines, reduction, carried, width, is_across), copy)

    def reduced_loops(self, phase: Phase, number: int, carried: Carried, copies: int) -> list[str]:
        """The reduced loops from one on, inside those before it."""
        values, plan = self.values, self.plan
        if number == len(plan.reduced):
            return self.body(phase, [value for _, value in carried], copies)
        loop = plan.reduced[number]
        kinds = [kind for kind, _ in carried]
        size = values.size(self.kernel.loops[loop].size)
        outside = values.levels[-1].lines

        def enter(lines: Lines, counter: Index, given: list[str], inner_copies: int, mask: str | None) -> list[str]:
            levels, old_mask = values.levels, values.mask
            values.levels = [*levels, Level(lines)]
            values.counters[loop] = counter
            if mask is not None:
                values.mask = mask
            inner = list(zip(kinds, given, strict=True))
            if is_apart:
                inner = self.restarted(inner)
            results = self.reduced_loops(phase, number + 1, inner, inner_copies)
            values.levels, values.mask = levels, old_mask
            return self.add_to_carried(lines, given, results) if is_apart else results

        is_apart = number + 1 < len(plan.reduced) and self.rounds_from(number + 1) > MANY
        if loop == self.shape.vector:
            return self.vector_loop(outside, 0, size, carried, enter)
        return self.long_loop(
            outside, 0, size, 1, carried, lambda inner, at, given: enter(inner, at, given, copies, None)
        )

    # ---- long sums ---------------------------------------------------------------------------------------------------

    def rounds_from(self, number: int) -> int:
        """How many rounds the reduced loops from one on go; many where that is not known."""
        total = 1
        for loop in self.plan.reduced[number:]:
            size = self.kernel.loops[loop].size
            if not isinstance(size, int):
                return MANY + 1
            total *= -(-size // (self.shape.lanes * self.plan.copies)) if loop == self.shape.vector else size
        return total

    def restarted(self, carried: Carried) -> Carried:
        """The carried values, with sums restarted at 0."""
        return [pair if start is None else start for pair, start in zip(carried, self.sums, strict=True)]

    def add_to_carried(self, lines: Lines, before: list[str], results: list[str]) -> list[str]:
        """The sums of some rounds added to those before them."""
        return [
            result if start is None else lines.new(f"fadd {start[0]} {old}, {result}")
            for old, result, start in zip(before, results, self.sums, strict=True)
        ]

    def long_loop(self, outside: Lines, low: Index, high: Index, step: int, carried: Carried, body: Body) -> list[str]:
        """A loop whose sums, if it is long, are added up in blocks."""
        kinds = [kind for kind, _ in carried]

        def run(lines: Lines, low: Index, high: Index, given: list[str], rounds: int, is_known: bool) -> list[str]:
            """The rounds from low to high, in blocks of ``rounds`` rounds."""
            now = list(zip(kinds, given, strict=True))
            if rounds == 1:
                return write_loop(lines, low, high, step, now, body, is_known)

            def block(inner: Lines, counter: Index, before: list[str]) -> list[str]:
                end = smaller(inner, plus(inner, counter, rounds * step), high)
                fresh = [value for _, value in self.restarted(list(zip(kinds, before, strict=True)))]
                results = run(inner, counter, end, fresh, rounds // BLOCK, True)
                return self.add_to_carried(inner, before, results)

            return write_loop(lines, low, high, rounds * step, now, block, is_known)

        rounds = BLOCK * BLOCK
        if not carried or not any(self.sums):
            rounds = 1
        while isinstance(low, int) and isinstance(high, int) and rounds > 1 and high - low <= 2 * rounds * step:
            rounds //= BLOCK
        return run(outside, low, high, [value for _, value in carried], rounds, False)

    # ---- a point of all loops ----------------------------------------------------------------------------------------

    def body(self, phase: Phase, carried: list[str], copies: int) -> list[str]:
        """What is done at each point of all loops: values, reductions, outputs."""
        values = self.values
        results = list(carried)
        all_copies = len(carried) // max(1, sum(1 + (r.position is not None) for r in phase.reductions))
        places, place = [], 0
        for reduction in phase.reductions:
            places.append(place)
            place += all_copies * (1 + (reduction.position is not None))
        pairs = list(zip(phase.reductions, places, strict=True))
        for reduction, place in pairs:  # first: later expressions read the scans
            if reduction.is_scan:
                values.compute(walk(reduction.value), copies)
                self.step(reduction, results, place, copies)
        values.compute(phase.order, copies)
        for reduction, place in pairs:
            if not reduction.is_scan:
                self.step(reduction, results, place, copies)
        self.store(phase.outputs, copies)
        return results

    def step(self, reduction: Reduction, carried: list[str], place: int, copies: int) -> None:
        """One step of a reduction, whose registers are carried from ``place`` on."""
        values, vector = self.values, self.shape.vector
        lines = values.levels[-1].lines
        width = self.shape.lanes if vector is not None else 1
        is_across = vector in self.plan.reduced
        mask = values.mask if is_across else None
        for copy in range(copies):
            value = values.get(reduction.value, copy, width)
            if reduction.is_scan:
                carried[place], found = reductions.scan(lines, reduction, carried[place], value, mask, width, is_across)
                values.remember(reduction, found, copy)
                place += 1
                continue
            position = values.get(reduction.position, copy, width) if reduction.position is not None else None
            count = 1 if position is None else 2
            carried[place : place + count] = reductions.step(
                lines,
                reduction,
                carried[place : place + count],
                value,
                position,
                mask,
                width,
                len(self.plan.reduced) <= 1,
            )
            place += count
