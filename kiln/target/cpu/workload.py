"""The work of a kernel: the units that threads share, and their approximate cost.

A kernel's function computes a run of units; kiln/native/program/launches.cpp distributes them among threads.
"""

from __future__ import annotations

from collections.abc import Callable

from kiln.loops.sizes import Size, is_unit_stride, is_zero, product
from kiln.platform.torch_shapes import FloorDiv

from ...platform.light_dataclass import dataclass
from ..llvm.phases import COSTLY_OPERATIONS
from .emit.kernel_plan import Plan, is_ordered

WHOLE_LOOP = 1 << 48  # positions of a loop that are one unit: all of them, if there are any
# What work costs, in picoseconds for each element (measured roughly: only whether threads pay depends on it).
CHEAP, COSTLY, MEMORY, GATHERED, SCALAR, SCANNED = 15, 250, 60, 600, 8, 1000
WORK_PER_THREAD = (
    3_000_000  # picoseconds of work for each thread that takes part: a parallel region costs 1.1 microseconds
)


@dataclass(frozen=True)
class Extent:
    """The units of a kernel are the product of the units of its loops; a unit of a loop is some positions of it."""

    loops: tuple[tuple[Size, int], ...]
    points: tuple[Size, ...]
    cost: int  # of each point, in picoseconds
    is_whole: bool  # for one thread: there is an order to keep, or little to do

    def units(self, actual: Callable[[Size], Size] = lambda size: size) -> Size:
        return product(ceil_div(actual(size), by) for size, by in self.loops)

    def work(self, actual: Callable[[Size], Size] = lambda size: size) -> Size:
        return product(map(actual, self.points)) * self.cost


def extent_of(plan: Plan) -> Extent:
    kernel = plan.shape.kernel
    points = tuple(loop.size for loop in kernel.loops)
    loops = [(kernel.loops[loop].size, WHOLE_LOOP if plan.is_by_columns else plan.height(loop)) for loop in plan.outer]
    loops += [(kernel.loops[plan.last].size, plan.unit)] if plan.last is not None else []
    loops += [(0, 1)] if any(not loop.is_reduced and is_zero(loop.size) for loop in kernel.loops) else []
    cost = cost_of(plan)
    is_little = all(isinstance(size, int) for size in points) and product(points) * cost < 2 * WORK_PER_THREAD
    is_stuck = is_ordered(kernel) and not plan.is_by_columns
    return Extent(tuple(loops), points, cost, plan.last is None or is_stuck or is_little)


def cost_of(plan: Plan) -> int:
    """Picoseconds for each point of all loops."""
    kernel, vector = plan.shape.kernel, plan.shape.vector
    cost = 0
    for expr in kernel.phases:
        if expr.kind == "load":
            access = expr.payload
            near = vector is not None and not access.indirect and is_unit_stride(access.strides[vector])
            cost += MEMORY if near else GATHERED
        elif expr.args:
            cost += COSTLY if expr.kind in COSTLY_OPERATIONS else CHEAP
    cost += MEMORY * sum(output.is_inner for output in kernel.outputs)
    if vector in kernel.reduced:
        cost += SCANNED * sum(reduction.is_scan for reduction in kernel.reductions)
    return max(1, cost * (SCALAR if vector is None else 1))


def ceil_div(size: Size, by: int) -> Size:
    if isinstance(size, int):
        return -(-size // by)
    return size if by == 1 else FloorDiv(size + (by - 1), by)
