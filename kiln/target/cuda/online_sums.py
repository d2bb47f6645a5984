"""The code of sums of exponentials (online_plan.py) in one run through a row.

A thread keeps the greatest value that it has seen, and the sum of the exponentials of distances from that. Where a
greater value comes, the sum is scaled. So the statistics of a softmax take one run through memory instead of two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kiln.loops.ir import walk

from ..llvm import reductions
from ..llvm.llvm_text import Lines, float_literal
from ..llvm.loop_code import Body, Index
from ..llvm.math import functions
from ..llvm.math.gpu_functions import RELAXED
from ..llvm.math.vector import Vector
from .exchange import Partial
from .online_plan import OnlineSum

if TYPE_CHECKING:
    from .nest import ThreadNest

LEAST = float_literal(float("-inf"))
NOT_A_NUMBER = float_literal(float("nan"))


class OnlineCode:
    def __init__(self, nest: ThreadNest, online: OnlineSum) -> None:
        self.nest, self.values, self.online = nest, nest.values, online
        self.order = list(walk(online.greatest.value))

    def write(self) -> None:
        """Both reductions; their results are known afterwards."""
        nest, values, lines, online = self.nest, self.values, self.nest.lines, self.online
        zero = float_literal(0.0)
        most, total = nest.loop_through(self.rounds, [("float", LEAST), ("float", zero)])
        ((whole,),) = nest.exchange.combine([Partial(online.greatest, [most])], 1, is_for_all=True)
        v = Vector(lines, torch.float32, 1)
        total = v.mul(total, self.exponential(v, v.sub(most, self.finite(v, whole))))
        ((total,),) = nest.exchange.combine([Partial(online.total, [total])], 1, is_for_all=True)
        total = v.select(v.compare("oeq", whole, float("-inf")), NOT_A_NUMBER, total)  # as of two infinities
        values.remember(online.greatest, whole, 0)
        values.remember(online.total, total, 0)

    def rounds(self, count: int) -> Body:
        def body(lines: Lines, counter: Index, given: list[str]) -> list[str]:
            values, lanes = self.values, self.nest.plan.lanes
            outside = values.levels
            places = self.nest.load_rounds(lines, counter, count, self.order)
            found = []
            for level, counters in places:
                values.levels, values.counters = [*outside, level], counters
                values.compute(self.order, 1)
                found.append(values.get(self.online.greatest.value, 0, lanes))
            values.levels = outside
            return self.step(lines, found, given, lanes)

        return body

    def step(self, lines: Lines, found: list[str], given: list[str], lanes: int) -> list[str]:
        """The greatest value and the sum, with some vectors more."""
        most, total = given
        v, one = Vector(lines, torch.float32, lanes), Vector(lines, torch.float32, 1)
        parts = [[value] for value in found]
        (highest,) = reductions.joined(lines, self.online.greatest, parts, lanes)
        if lanes > 1:
            (highest,) = reductions.across(lines, self.online.greatest, [highest], lanes)
        after = one.intrinsic("maximum", most, highest)
        base = self.finite(one, after)
        wide = lines.splat(base, "float", lanes) if lanes > 1 else base
        powers = [[self.exponential(v, v.sub(value, wide))] for value in found]
        (added,) = reductions.joined(lines, self.online.total, powers, lanes)
        if lanes > 1:
            (added,) = reductions.across(lines, self.online.total, [added], lanes)
        scaled = one.mul(total, self.exponential(one, one.sub(most, base)))
        return [after, one.add(scaled, added)]

    def finite(self, v: Vector, value: str) -> str:
        """What distances are measured from: zero where all values so far are minus infinity."""
        return v.select(v.compare("oeq", value, float("-inf")), 0.0, value)

    def exponential(self, v: Vector, value: str) -> str:
        name = self.values.relaxed.get(self.online.powers)
        if name is not None:
            return RELAXED[name](v, value)
        return functions.emit(v.lines, "exp", [value], v.lanes, torch.float32)
