"""The code of a thread that takes several points of a kernel without reductions (turn_plan.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.loops.ir import walk

from ...llvm.llvm_text import Lines
from ...llvm.loop_code import Index, plus, round_down, times
from ...llvm.registers import Level
from .turn_plan import Turns

if TYPE_CHECKING:
    from ..nest import ThreadNest


def first_position(lines: Lines, place: Index, turns: Turns) -> Index:
    """Where the first turn of a thread is, along the loop of the turns."""
    start = round_down(lines, place, turns.apart)
    return plus(lines, place, times(lines, start, turns.count - 1))


def write_turns(nest: ThreadNest, turns: Turns) -> None:
    """All points of a thread: loads of several, then their values and stores."""
    values, outputs, order = nest.values, nest.plan.closing.outputs, nest.plan.closing.order
    first, outside, before = values.counters[turns.loop], values.levels, dict(values.counters)
    step = nest.plan.lanes if turns.loop == nest.plan.shape.vector else 1
    loaded = set(walk(*(expr for expr in order if expr.kind == "load")))
    early = [expr for expr in order if expr in loaded]
    for start in range(0, turns.count, turns.together):
        levels = []
        for turn in range(start, min(start + turns.together, turns.count)):
            position = plus(nest.lines, first, turn * turns.apart * step)
            level, values.counters = Level(nest.lines), {**before, turns.loop: position}
            levels.append((level, values.counters))
            values.levels = [*outside, level]
            values.compute(early, 1)
        for level, values.counters in levels:
            values.levels = [*outside, level]
            values.compute(order, 1)
            for output in outputs:
                values.store(output, 0, level)
    values.levels, values.counters = outside, before
