"""The kernel of a group of writes: expressions over the group's loops, what is stored, which kernels are equal.

A value that only its own kernel reads is not stored. Kernels that differ only in their buffers are one kernel, launched
with other buffers (`signature`).
"""

from __future__ import annotations

from typing import Any

from kiln.loops import ir
from kiln.loops.ir import Access, Buffer, Expr, Write
from kiln.loops.kernel import Kernel, Output, Reduction
from kiln.loops.sizes import Size, contiguous
from kiln.loops.tensor_views import Tensor, affine, matching_axes

from .fusion import Group, Member
from .loop_order import LoopOrder


class KernelMaker:
    """Makes the kernel of one group."""

    def __init__(self, group: Group, readers: dict[Any, set[int]]) -> None:
        self.group, self.readers = group, readers
        self.values: dict[Buffer, Expr] = {}  # of what the group makes, over its space
        self.reductions: list[Reduction] = []
        self.outputs: list[Output] = []

    def make(self, name: str) -> Kernel:
        for member in self.group.members:
            self.add(member)
        order = LoopOrder(self.group, self.reductions, self.outputs)
        shape = tuple(axis.size for axis in self.group.space)
        return order.kernel(name, shape, tuple(dict.fromkeys(m.write.node for m in self.group.members)))

    def add(self, member: Member) -> None:
        write, group = member.write, self.group
        value = self.inlined(self.over_space(member, write.value))
        if write.reduce is not None:
            position = None
            if write.reduce.startswith("arg"):
                within = dict(zip(write.axes, contiguous([write.shape[axis] for axis in write.axes]), strict=True))
                place = ir.iota(tuple(within.get(axis, 0) for axis in range(len(write.shape))))
                position = self.over_space(member, place)
            value = self.reduction(write, value, position)
        self.values[write.buffer] = value
        if self.is_stored(write):
            target = self.target(member)
            is_inner = member.is_inner and (write.reduce is None or write.is_scan)
            self.outputs.append(Output(target, value, is_inner and group.is_reduction, write.accumulate))

    def reduction(self, write: Write, value: Expr, position: Expr | None) -> Expr:
        """The result of a reduction or a scan; equal reductions are computed once."""
        assert write.reduce is not None
        dtype, result = write.buffer.dtype, ir.running if write.is_scan else ir.reduced
        for number, other in enumerate(self.reductions):
            if other == Reduction(number, write.reduce, value, dtype, position, write.is_scan):
                return result(number, dtype)
        number = len(self.reductions)
        self.reductions.append(Reduction(number, write.reduce, value, dtype, position, write.is_scan))
        return result(number, dtype)

    def is_stored(self, write: Write) -> bool:
        readers = self.readers.get(write.buffer, set())
        return bool(write.accumulate) or bool(readers - {self.group.number}) or not write.target.is_plain

    def target(self, member: Member) -> Access:
        target = member.write.target
        strides = self.group.strides_of(member, target.strides)
        assert strides is not None
        return target.with_parts(lambda part: self.inlined(self.over_space(member, part)), strides)

    def over_space(self, member: Member, expr: Expr) -> Expr:
        """A member's expression over the group's space."""
        group = self.group
        shape = [axis.size for axis in group.space]
        axes = group.axes_for(member)
        runs = matching_axes(member.sizes, [shape[axis] for axis in axes])
        assert runs is not None
        rows: list[tuple[dict[int, Size], Size]] = [({}, 0) for _ in member.write.shape]
        for mine, theirs in runs:
            factors: dict[int, Size] = {}
            factor: Size = 1
            for place in reversed(theirs):
                factors[axes[place]] = factor
                factor = factor * shape[axes[place]]
            if mine:
                rows[member.axes[mine[0]]] = (factors, 0)
        return affine(Tensor(member.write.shape, expr), shape, rows).expr

    def inlined(self, expr: Expr) -> Expr:
        """The expression, with loads of buffers that the group makes replaced by their values."""

        def leaf(part: Expr) -> Expr:
            if part.kind == "load" and part.payload.buffer in self.values:
                return self.values[part.payload.buffer]
            return part

        return ir.rewrite(expr, leaf) if self.values else expr


# ---- equal kernels ---------------------------------------------------------------------------------------------------


def own_sizes(kernel: Kernel) -> tuple[Size, ...]:
    """The sizes of a kernel that is launched with no others: where some are computed of symbols, what is computed of
    them in turn (as a number of blocks is) cannot be told for others."""
    return () if all(size.is_Symbol for size in kernel.sizes) else kernel.sizes


def signature(kernel: Kernel) -> Any:
    """What the code of a kernel depends on: everything but the identity of its buffers and symbols."""
    numbers: dict[Any, int] = {}
    buffers = {buffer: (n, buffer.dtype, buffer.kind == "drawn") for n, buffer in enumerate(kernel.buffers)}
    symbols = {size: f"s{n}" for n, size in enumerate(kernel.sizes)}

    def size(value: Size) -> Any:
        return value if isinstance(value, int) else symbols[value]

    def place(access: Access) -> Any:
        return (
            buffers[access.buffer],
            tuple(map(size, access.strides)),
            size(access.offset),
            tuple((numbers[part], size(stride)) for part, stride in access.indirect),
            numbers[access.mask] if access.mask is not None else None,
        )

    def payload(expr: Expr) -> Any:
        if expr.kind == "load":
            return place(expr.payload)
        if expr.kind == "iota":
            return tuple(map(size, expr.payload[0])), size(expr.payload[1])
        if expr.kind == "size":
            return size(expr.payload)
        if expr.kind == "philox":
            return tuple(one if isinstance(one, bool) else size(one) for one in expr.payload)
        return repr(expr.payload)

    rows = []
    for expr in ir.walk(*kernel.roots()):
        numbers[expr] = len(numbers)
        rows.append((expr.kind, tuple(numbers[arg] for arg in expr.args), str(expr.dtype), payload(expr)))
    reductions = tuple(
        (
            (r.number, r.kind, r.is_scan, numbers[r.value], str(r.dtype)),
            numbers[r.position] if r.position is not None else None,
        )
        for r in kernel.reductions
    )
    outputs = tuple((place(o.target), numbers[o.value], o.is_inner, o.accumulate) for o in kernel.outputs)
    loops = tuple((size(loop.size), loop.is_reduced) for loop in kernel.loops)
    return tuple(rows), reductions, outputs, loops, kernel.vector
