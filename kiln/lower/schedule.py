"""Kernels out of groups: the order of the loops, which one becomes vectors, what is stored, which kernels are alike.

The loop that most of what is read and written inside goes along element by element becomes vectors; the others are
ordered by strides, and neighbours are joined where all places allow it. Values that only the kernel itself reads are
never stored. Kernels that differ only in their buffers are one kernel, launched with other buffers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import sympy
import torch

from . import ir
from .calls import Call, View
from .fusion import Group, Member, fuse
from .ir import Access, Buffer, Expr, Size, Strides, Write
from .kernel import Kernel, Loop, Output, Reduction
from .layouts import contiguous, hint
from .lowering import Lowered
from .order import as_late_as_useful
from .splitting import split_reductions
from .views import Tensor, affine, is_one, matched, same


@dataclass(eq=False)
class Launch:
    """A kernel run with these buffers and sizes, in the order of ``kernel.buffers`` and ``kernel.sizes``."""

    kernel: Kernel
    buffers: tuple[Buffer, ...]
    sizes: tuple[Size, ...]
    nodes: tuple[Any, ...] = ()


@dataclass
class Scheduled:
    """A graph as steps: launches of kernels and calls of ATen."""

    inputs: list[Any]
    steps: list[Launch | Call]
    outputs: list[Any]
    called: dict[str, str] = field(default_factory=dict)
    code: Any = None  # what holds the machine code in memory

    @property
    def kernels(self) -> list[Kernel]:
        return list(dict.fromkeys(step.kernel for step in self.steps if isinstance(step, Launch)))


def schedule(lowered: Lowered) -> Scheduled:
    """Fuse the writes of a lowered graph, and make kernels of them."""
    items = [without_reduction(item) for item in lowered.items if not is_empty(item)]
    items = drop_unused(split_reductions(items), lowered.outputs)
    groups = fuse(items)
    users = uses(groups, lowered.outputs)
    known: dict[Any, Kernel] = {}
    steps: list[Launch | Call] = []
    for group in groups:
        if group.call is not None:
            steps.append(group.call)
            continue
        kernel, sizes = for_any_length(KernelMaker(group, users).make(f"kernel{len(known)}"))
        same_kernel = known.setdefault(signature(kernel), kernel)
        steps.append(Launch(same_kernel, kernel.buffers, sizes, kernel.nodes))
    return Scheduled(lowered.inputs, as_late_as_useful(steps, lowered.outputs), lowered.outputs, lowered.called)


def is_empty(item: Write | Call) -> bool:
    """A write of nothing."""
    if isinstance(item, Call):
        return False
    kept = [size for axis, size in enumerate(item.shape) if item.is_scan or axis not in item.axes]
    return any(isinstance(size, int) and size == 0 for size in kept)


def without_reduction(item: Write | Call) -> Write | Call:
    """A reduction along axes of one element is none: it must not become one when it shares its loops with another."""
    if isinstance(item, Call) or item.reduce is None or not all(is_one(item.shape[axis]) for axis in item.axes):
        return item
    value = ir.constant(0, torch.int64) if item.reduce.startswith("arg") else item.value
    return Write(item.target, item.shape, value, node=item.node)


def drop_unused(items: Sequence[Write | Call], outputs: Sequence[Any]) -> list[Write | Call]:
    """Without what nobody reads. Calls stay: they may have effects, and eager makes them too."""
    wanted = {output.buffer for output in outputs if isinstance(output, View)}
    kept: list[Write | Call] = []
    for item in reversed(items):
        if isinstance(item, Write) and item.buffer not in wanted:
            continue
        wanted.update(buffer for buffer in item.reads if isinstance(buffer, Buffer))
        kept.append(item)
    return kept[::-1]


def uses(groups: Iterable[Group], outputs: Sequence[Any]) -> dict[Buffer, set[int]]:
    """The groups that read each buffer, or add to it; -1 stands for the outside."""
    found: dict[Buffer, set[int]] = {}
    for group in groups:
        if group.call is not None:
            for buffer in group.call.reads:
                found.setdefault(buffer, set()).add(group.number)  # type: ignore[arg-type]
        for member in group.members:
            for buffer in member.write.reads:
                found.setdefault(buffer, set()).add(group.number)
            if member.write.accumulate:
                found.setdefault(member.write.buffer, set()).add(-1)
    for output in outputs:
        if isinstance(output, View):
            found.setdefault(output.buffer, set()).add(-1)
    return found


# ---- one kernel ------------------------------------------------------------------------------------------------------


class KernelMaker:
    """Makes the kernel of one group."""

    def __init__(self, group: Group, users: dict[Buffer, set[int]]) -> None:
        self.group, self.users = group, users
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
        """The result of a reduction, or what a scan has come to; the same one is done once."""
        assert write.reduce is not None
        dtype, result = write.buffer.dtype, ir.running if write.is_scan else ir.reduced
        for number, other in enumerate(self.reductions):
            if other == Reduction(number, write.reduce, value, dtype, position, write.is_scan):
                return result(number, dtype)
        number = len(self.reductions)
        self.reductions.append(Reduction(number, write.reduce, value, dtype, position, write.is_scan))
        return result(number, dtype)

    def is_stored(self, write: Write) -> bool:
        readers = self.users.get(write.buffer, set())
        return bool(write.accumulate) or bool(readers - {self.group.number}) or not write.target.is_plain

    def target(self, member: Member) -> Access:
        target = member.write.target
        strides = self.group.spread(member, target.strides)
        assert strides is not None
        indirect = tuple((self.inlined(self.over_space(member, part)), stride) for part, stride in target.indirect)
        mask = self.inlined(self.over_space(member, target.mask)) if target.mask is not None else None
        return Access(target.buffer, strides, target.offset, indirect, mask)

    def over_space(self, member: Member, expr: Expr) -> Expr:
        """An expression of a member's over the group's space."""
        group = self.group
        shape = [axis.size for axis in group.space]
        axes = group.axes_for(member)
        runs = matched(member.sizes, [shape[axis] for axis in axes])
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
        """With what the group itself makes in place of the loads of it."""

        def leaf(part: Expr) -> Expr:
            if part.kind == "load" and part.payload.buffer in self.values:
                return self.values[part.payload.buffer]
            return part

        return ir.rewrite(expr, leaf) if self.values else expr


class LoopOrder:
    """Finds the order of the loops, joins neighbours, and builds the kernel."""

    def __init__(self, group: Group, reductions: list[Reduction], outputs: list[Output]) -> None:
        self.group, self.reductions, self.outputs = group, reductions, outputs
        self.sizes = [axis.size for axis in group.space]
        roots = [reduction.value for reduction in reductions]
        roots += [part for output in outputs for part in (output.value, *output.target.parts)]
        self.loads = ir.loads_of(*roots)
        self.stores = [output.target for output in outputs]

    def kernel(self, name: str, shape: tuple[Size, ...], nodes: tuple[Any, ...]) -> Kernel:
        order, vector = self.find()
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
        outputs = []
        for output in self.outputs:
            access = output.target
            indirect = tuple((over(part), stride) for part, stride in access.indirect)
            mask = over(access.mask) if access.mask is not None else None
            target = Access(access.buffer, strides_over(access.strides), access.offset, indirect, mask)
            outputs.append(Output(target, over(output.value), output.is_inner, output.accumulate))
        place = next((n for n, axes in enumerate(groups) if vector in axes), None)
        return Kernel(name, loops, reductions, tuple(outputs), place, nodes)

    # ---- which loop, which order -------------------------------------------------------------------------------------

    def find(self) -> tuple[list[int], int | None]:
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
        return max(free, key=lambda axis: (self.gain(axis), axis))

    def is_ordered(self, axis: int) -> bool:
        """Whether points along an axis may meet in one place, and count in order."""
        for output in self.outputs:
            if any(depends(part, axis) for part, _ in output.target.indirect):
                return True
            if output.accumulate and same(output.target.strides[axis], 0):
                return True
        return False

    def gain(self, axis: int) -> float:
        """How much going along an axis in vectors brings: contiguous places count, others cost, each by how often it is
        gone to: what a row has once is little beside its elements."""
        total = 0.0
        for access, weight in [*((load, 1.0) for load in self.loads), *((store, 1.5) for store in self.stores)]:
            if access.indirect and any(depends(part, axis) for part, _ in access.indirect):
                continue
            stride = access.strides[axis]
            if same(stride, 1) or same(stride, -1):
                total += weight * 2 * self.often(access)
            elif not same(stride, 0):
                total -= weight * 2 * self.often(access)
        size = hint(self.sizes[axis])
        return total * (0.2 if size < 4 else 0.6 if size < 8 else 1.0) if total > 0 else total

    def often(self, access: Access) -> float:
        """How many of the points of the space have a place of their own."""
        share = 1.0
        for size, stride in zip(self.sizes, access.strides, strict=True):
            if same(stride, 0) and not access.indirect:
                share /= max(hint(size), 1)
        return share

    def sorted_by_strides(self, axes: list[int]) -> list[int]:
        """From the longest steps to the shortest, by what moves most memory."""
        accesses = self.stores + self.loads
        accesses.sort(key=lambda access: -sum(not same(access.strides[axis], 0) for axis in axes))

        def steps(axis: int) -> list[int]:
            return [-abs(hint(access.strides[axis])) for access in accesses[:4]]

        return sorted(axes, key=steps)

    # ---- joining neighbours ------------------------------------------------------------------------------------------

    def join(self, order: list[int], vector: int | None) -> list[list[int]]:
        """Neighbouring axes that all places see as one."""
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


def depends(expr: Expr, axis: int) -> bool:
    """Whether an expression changes along an axis."""
    for part in ir.walk(expr):
        strides = part.payload[0] if part.kind == "iota" else part.payload.strides if part.kind == "load" else ()
        if strides and not same(strides[axis], 0):
            return True
    return False


def product(sizes: Iterable[Size]) -> Size:
    total: Size = 1
    for size in sizes:
        total = total * size
    return total


# ---- kernels that are alike ------------------------------------------------------------------------------------------


LENGTH = sympy.Symbol("length", integer=True, positive=True)


def for_any_length(kernel: Kernel) -> tuple[Kernel, tuple[Size, ...]]:
    """A kernel that is one plain loop serves all lengths; and the sizes to launch it with."""
    if len(kernel.loops) != 1 or kernel.reductions or kernel.sizes or not long_enough(kernel.loops[0].size):
        return kernel, kernel.sizes
    found = Kernel(kernel.name, (Loop(LENGTH),), (), kernel.outputs, kernel.vector, kernel.nodes)
    return found, (kernel.loops[0].size,)


def long_enough(size: Size) -> bool:
    return isinstance(size, int) and size >= 64


def signature(kernel: Kernel) -> Any:
    """What code depends on: all of a kernel but which buffers and symbols it is about."""
    numbers: dict[Any, int] = {}
    buffers = {buffer: (n, buffer.dtype) for n, buffer in enumerate(kernel.buffers)}
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
