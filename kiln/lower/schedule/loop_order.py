"""The order of a kernel's loops, and which loop becomes vectors.

The loop along which most memory is contiguous becomes vectors. The others are ordered by strides, the longest outside.
Neighbouring loops are joined into one where every access allows it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from kiln.loops import ir
from kiln.loops.ir import Access, Expr, varies_along
from kiln.loops.kernel import Kernel, Loop, Output, Reduction
from kiln.loops.sizes import Size, Strides, hint, product, same
from kiln.loops.tensor_views import Tensor, affine

from .fusion import Group


class LoopOrder:
    """Chooses the order of the loops, joins neighbours, and builds the kernel."""

    def __init__(self, group: Group, reductions: list[Reduction], outputs: list[Output]) -> None:
        self.group, self.reductions, self.outputs = group, reductions, outputs
        self.sizes = [axis.size for axis in group.space]
        roots = [reduction.value for reduction in reductions]
        roots += [part for output in outputs for part in (output.value, *output.target.parts)]
        self.loads = ir.loads_of(*roots)
        self.stores = [output.target for output in outputs]

    def kernel(self, name: str, shape: tuple[Size, ...], nodes: tuple[Any, ...]) -> Kernel:
        order, vector = self.choose()
        groups = self.join(order, vector)
        loops = tuple(
            Loop(product(self.sizes[axis] for axis in axes), self.group.space[axes[0]].is_reduced) for axes in groups
        )
        rows: list[tuple[dict[int, Size], Size]] = [({}, 0)] * len(shape)
        for number, axes in enumerate(groups):
            for axis in axes:  # joined neighbours: the inner one's strides are those of the whole, as if it were alone
                rows[axis] = ({number: 1}, 0) if axis == axes[-1] else ({}, 0)
        space = tuple(loop.size for loop in loops)

        def over(expr: Expr) -> Expr:
            return affine(Tensor(shape, expr), space, rows).expr

        def strides_over(strides: Strides) -> Strides:
            return tuple(strides[axes[-1]] for axes in groups)

        reductions = tuple(
            replace(r, value=over(r.value), position=over(r.position) if r.position is not None else None)
            for r in self.reductions
        )
        outputs = tuple(
            replace(o, target=o.target.with_parts(over, strides_over(o.target.strides)), value=over(o.value))
            for o in self.outputs
        )
        place = next((n for n, axes in enumerate(groups) if vector in axes), None)
        return Kernel(name, loops, reductions, outputs, place, nodes)

    # ---- which loop, which order -------------------------------------------------------------------------------------

    def choose(self) -> tuple[list[int], int | None]:
        """The axes from outside to inside, kept ones first, and the one that becomes vectors."""
        axes = list(range(len(self.sizes)))
        kept = [axis for axis in axes if not self.group.space[axis].is_reduced]
        reduced = [axis for axis in axes if self.group.space[axis].is_reduced]
        vector = self.vector_axis(axes)
        kept, reduced = self.sorted_by_strides(kept), self.sorted_by_strides(reduced)
        if vector is not None:
            for part in (kept, reduced):
                if vector in part:
                    part.remove(vector)
                    part.append(vector)
        return kept + reduced, vector

    def vector_axis(self, axes: list[int]) -> int | None:
        free = [axis for axis in axes if not self.is_ordered(axis)]
        if not free:
            return None
        return max(free, key=lambda axis: (self.vector_gain(axis), axis))

    def is_ordered(self, axis: int) -> bool:
        """Whether several points along an axis may write one element, in order."""
        for output in self.outputs:
            if any(varies_along(part, axis) for part, _ in output.target.indirect):
                return True
            if output.accumulate and same(output.target.strides[axis], 0):
                return True
        return False

    def vector_gain(self, axis: int) -> float:
        """How much vectors along an axis bring: contiguous accesses count, strided ones cost, each by how many points
        make it: an access that a row makes once matters little beside those of its elements."""
        total = 0.0
        for access, weight in [*((load, 1.0) for load in self.loads), *((store, 1.5) for store in self.stores)]:
            if access.indirect and any(varies_along(part, axis) for part, _ in access.indirect):
                continue
            stride = access.strides[axis]
            if same(stride, 1) or same(stride, -1):
                total += weight * 2 * self.access_rate(access)
            elif not same(stride, 0):
                total -= weight * 2 * self.access_rate(access)
        size = hint(self.sizes[axis])
        return total * (0.2 if size < 4 else 0.6 if size < 8 else 1.0) if total > 0 else total

    def access_rate(self, access: Access) -> float:
        """The share of the points of the space that access an element of their own."""
        share = 1.0
        for size, stride in zip(self.sizes, access.strides, strict=True):
            if same(stride, 0) and not access.indirect:
                share /= max(hint(size), 1)
        return share

    def sorted_by_strides(self, axes: list[int]) -> list[int]:
        """From the longest strides to the shortest, by the accesses that move most memory."""
        accesses = self.stores + self.loads
        accesses.sort(key=lambda access: -sum(not same(access.strides[axis], 0) for axis in axes))

        def steps(axis: int) -> list[int]:
            return [-abs(hint(access.strides[axis])) for access in accesses[:4]]

        return sorted(axes, key=steps)

    # ---- joining neighbours ------------------------------------------------------------------------------------------

    def join(self, order: list[int], vector: int | None) -> list[list[int]]:
        """Joins neighbouring axes that are one axis for every access."""
        groups: list[list[int]] = []
        for axis in order:
            if groups and self.can_join(groups[-1][-1], axis, vector):
                groups[-1].append(axis)
            else:
                groups.append([axis])
        return groups

    def can_join(self, outer: int, inner: int, vector: int | None) -> bool:
        space = self.group.space
        if space[outer].is_reduced != space[inner].is_reduced or outer == vector:
            return False
        if any(self.is_ordered(axis) for axis in (outer, inner)) and not all(map(self.is_ordered, (outer, inner))):
            return False
        return all(same(strides[outer], strides[inner] * self.sizes[inner]) for strides in self.all_strides())

    def all_strides(self) -> Iterable[Strides]:
        yield from (access.strides for access in (*self.loads, *self.stores))
        roots = [part for r in self.reductions for part in (r.value, r.position) if part is not None]
        roots += [part for output in self.outputs for part in (output.value, *output.target.parts)]
        for expr in ir.walk(*roots):
            if expr.kind == "iota":
                yield expr.payload[0]
