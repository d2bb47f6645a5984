"""Scans along rows, several rows at once: an addition waits for the one before it in its row, but for no other row's.

This is a change of the kernel: one loop has fewer rounds, each of which does what several did.
"""

from __future__ import annotations

from dataclasses import replace

from kiln.loops.ir import Access, Expr, load, make, rewrite
from kiln.loops.kernel import Kernel, Loop
from kiln.loops.tensor_views import Row, Tensor, affine

from ...llvm.reductions import is_serial_scan

COUNTS = (4, 3, 2)  # rows that are taken at once
MOST_OPERATIONS = 12  # of a row's elements: there is less to wait for where there is more to do


def has_serial_scans(kernel: Kernel) -> bool:
    """Whether it scans along its vectors, lane by lane."""
    return kernel.vector in kernel.reduced and any(map(is_serial_scan, kernel.reductions))


def with_interleaved_rows(kernel: Kernel) -> Kernel:
    """The kernel, with the last kept loop in rounds of several rows where it is a short scan along them."""
    is_long = sum(bool(expr.args) for expr in kernel.phases) > MOST_OPERATIONS
    if not has_serial_scans(kernel) or is_long or kernel.sizes or not kernel.kept:
        return kernel
    loop = kernel.kept[-1]
    size = kernel.loops[loop].size
    assert isinstance(size, int)
    count = next((count for count in COUNTS if size % count == 0), 1)
    return interleave_rows(kernel, loop, count) if count > 1 else kernel


def interleave_rows(kernel: Kernel, loop: int, count: int) -> Kernel:
    size = kernel.loops[loop].size
    loops = tuple(Loop(size // count) if at == loop else other for at, other in enumerate(kernel.loops))
    rows = [RowCopy(kernel, loop, count, number) for number in range(count)]
    reductions = tuple(
        replace(
            reduction,
            number=row.renumbered(reduction.number),
            value=row.of(reduction.value),
            position=row.of(reduction.position) if reduction.position is not None else None,
        )
        for reduction in kernel.reductions
        for row in rows
    )
    outputs = tuple(
        replace(output, target=row.access(output.target), value=row.of(output.value))
        for output in kernel.outputs
        for row in rows
    )
    found = Kernel(kernel.name, loops, reductions, outputs, kernel.vector, kernel.nodes)
    assert found.buffers == kernel.buffers
    return found


class RowCopy:
    """A kernel's expressions for one of the rows of a round."""

    def __init__(self, kernel: Kernel, loop: int, count: int, number: int) -> None:
        self.shape = tuple(other.size for other in kernel.loops)
        self.rows: list[Row] = [
            ({at: count}, number) if at == loop else ({at: 1}, 0) for at in range(len(kernel.loops))
        ]
        self.count, self.number = count, number

    def renumbered(self, number: int) -> int:
        return number * self.count + self.number

    def of(self, expr: Expr) -> Expr:
        moved = affine(Tensor(self.shape, expr), self.shape, self.rows).expr
        return rewrite(moved, self.leaf)

    def leaf(self, part: Expr) -> Expr:
        if part.kind in ("reduced", "running"):
            return make(part.kind, (), part.dtype, self.renumbered(part.payload))
        return part

    def access(self, access: Access) -> Access:
        moved: Access = self.of(load(access)).payload
        return moved
