"""Kernels: scheduling makes them of writes, and a target generates code from them.

A `Kernel` is one nest of loops. From outside to inside, first come the *kept* loops, then the *reduced* ones (if any).
At each point of the kept loops the reduced loops run once for each *phase*: phase 0 computes what depends on no
reduction of this kernel, phase 1 what depends on the reductions of phase 0, and so on. So softmax is one kernel of
three phases: the maximum, the sum, the quotients. The value of a scan is available at each point of its own phase;
later phases that need it compute the scan again.

`Kernel.text` is the kernel as Python that runs (kernel_text.py has the scalar operations); ``KILN_LOG=ir`` shows it.
The kernel says which loop becomes vectors (``vector``); the target decides how.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from typing import Any

import sympy
import torch

from ..platform.light_dataclass import dataclass
from .ir import Access, Buffer, Expr, show, show_access, walk
from .sizes import Size


@dataclass(frozen=True)
class Loop:
    size: Size
    is_reduced: bool = False


@dataclass(frozen=True)
class Reduction:
    """Reduces ``value`` along all reduced loops; later expressions call the result ``reduced(number)``.

    For "argmax" and "argmin" (whose result is int64) ``position`` is the index of an element, as an expression. With
    ``is_scan`` there is one reduced loop, and ``running(number)`` is the reduction of all points up to the current one.
    """

    number: int
    kind: str
    value: Expr
    dtype: torch.dtype  # of the result
    position: Expr | None = None
    is_scan: bool = False


@dataclass(frozen=True)
class Output:
    """Writes ``value`` to memory: at each point (``is_inner``), or once for each point of the kept loops.

    Accesses and values are over all loops of the kernel; with ``is_inner`` false they do not depend on the reduced
    ones. ``accumulate``: "add", "mul", "max", "min" into the element (see `ir.Write`). The loops that an indirect value
    depends on then run in order, on one thread, and are never the vector loop.
    """

    target: Access
    value: Expr
    is_inner: bool
    accumulate: str | None = None


def roots_of(reductions: Iterable[Reduction], outputs: Iterable[Output]) -> Iterable[Expr]:
    """All expressions of reductions and outputs."""
    for reduction in reductions:
        yield reduction.value
        if reduction.position is not None:
            yield reduction.position
    for output in outputs:
        yield output.value
        yield from output.target.parts


@dataclass(eq=False)
class Kernel:
    """One nest of loops. ``vector`` is the number of the loop that becomes vectors, None where none can."""

    name: str
    loops: tuple[Loop, ...]
    reductions: tuple[Reduction, ...]
    outputs: tuple[Output, ...]
    vector: int | None
    nodes: tuple[Any, ...] = ()  # of the graph, for messages
    buffers: tuple[Buffer, ...] = field(init=False)  # the order of the pointers that a kernel is called with
    sizes: tuple[sympy.Expr, ...] = field(init=False)  # the order of the sizes (only what is no number)
    phases: dict[Expr, int] = field(init=False)
    plan: Any = field(init=False, default=None)  # the target's: how the kernel is run
    table_rows: int = field(init=False, default=0)  # the launches that one launch on a GPU does, at most; 0: always one

    def __post_init__(self) -> None:
        self.buffers = tuple(dict.fromkeys(access.buffer for access in self.accesses()))
        self.sizes = tuple(dict.fromkeys(size for size in self.all_sizes() if not isinstance(size, int)))
        self.phases = phases_of(self)

    def roots(self) -> Iterable[Expr]:
        return roots_of(self.reductions, self.outputs)

    def accesses(self) -> Iterable[Access]:
        yield from (expr.payload for expr in walk(*self.roots()) if expr.kind == "load")
        yield from (output.target for output in self.outputs)

    def all_sizes(self) -> Iterable[Size]:
        yield from (loop.size for loop in self.loops)
        for access in self.accesses():
            yield from access.strides
            yield access.offset
            yield from (stride for _, stride in access.indirect)
        for expr in walk(*self.roots()):
            if expr.kind == "iota":
                yield from expr.payload[0]
                yield expr.payload[1]
            elif expr.kind == "size":
                yield expr.payload
            elif expr.kind == "philox":
                yield from (expr.payload.elements, expr.payload.threads)

    @property
    def kept(self) -> tuple[int, ...]:
        return tuple(number for number, loop in enumerate(self.loops) if not loop.is_reduced)

    @property
    def reduced(self) -> tuple[int, ...]:
        return tuple(number for number, loop in enumerate(self.loops) if loop.is_reduced)

    def sizes_of_launch(self, given: Sequence[Size]) -> Callable[[Size], Size]:
        """A function from sizes of the kernel to the sizes that it is launched with, in the order of ``sizes``."""
        actual = dict(zip(self.sizes, given, strict=True))
        return lambda size: size if isinstance(size, int) else actual[size]

    def phase(self, *exprs: Expr) -> int:
        return max((self.phases[expr] for expr in exprs), default=0)

    def scans_in(self, exprs: Iterable[Expr]) -> list[Reduction]:
        """The scans that expressions read, with those that these read, in order."""
        needed: set[int] = set()
        roots = list(exprs)
        for scan in reversed([reduction for reduction in self.reductions if reduction.is_scan]):
            needed.update(expr.payload for expr in walk(*roots) if expr.kind == "running")
            if scan.number in needed:
                roots.append(scan.value)
        return [reduction for reduction in self.reductions if reduction.number in needed]

    def reductions_in(self, phase: int, outputs: Iterable[Output]) -> list[Reduction]:
        """The reductions that end in a phase, with the scans that these and the outputs of the phase read."""
        ending = [reduction for reduction in self.reductions if self.phase(reduction.value) == phase]
        scans = self.scans_in(roots_of(ending, outputs))
        return [reduction for reduction in self.reductions if reduction in ending or reduction in scans]

    @property
    def text(self) -> str:
        return Printer(self).text()


def phases_of(kernel: Kernel) -> dict[Expr, int]:
    """The phase in which each expression is first known: after the reductions that it reads."""
    ends: dict[int, int] = {}
    phases: dict[Expr, int] = {}

    def note(root: Expr) -> int:
        for expr in walk(root):
            if expr in phases:
                continue
            if expr.kind == "reduced":
                phases[expr] = ends[expr.payload] + 1
            elif expr.kind == "running":
                phases[expr] = ends[expr.payload]
            else:
                parts = expr.payload.parts if expr.kind == "load" else expr.args
                phases[expr] = max((phases[part] for part in parts), default=0)
        return phases[root]

    for reduction in kernel.reductions:  # each only reads earlier ones
        ends[reduction.number] = note(reduction.value)
        if reduction.position is not None:
            note(reduction.position)
    for root in kernel.roots():
        note(root)
    return phases


STARTS = {"sum": "0", "prod": "1", "max": "lowest", "min": "highest", "any": "False", "all": "True"}
STEPS = {
    "sum": "{r} = {r} + {v}",
    "prod": "{r} = {r} * {v}",
    "max": "{r} = maximum({r}, {v})",
    "min": "{r} = minimum({r}, {v})",
    "any": "{r} = {r} | {v}",
    "all": "{r} = {r} & {v}",
    "argmax": "{r} = later_greatest({r}, {v}, {p})",
    "argmin": "{r} = later_least({r}, {v}, {p})",
}
COMBINED = {
    "add": "{t} += {v}",
    "mul": "{t} *= {v}",
    "max": "{t} = maximum({t}, {v})",
    "min": "{t} = minimum({t}, {v})",
}


class Printer:
    """A kernel as a Python function of its buffers (flat sequences) and sizes."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.names = [f"i{number}" for number in range(len(kernel.loops))]
        self.lines: list[str] = []

    def text(self) -> str:
        kernel = self.kernel
        names = [buffer.name for buffer in kernel.buffers] + sorted(
            {str(s) for size in kernel.sizes for s in size.free_symbols}
        )
        vector = f"  # vectors along i{kernel.vector}" if kernel.vector is not None else ""
        self.add(0, f"def {kernel.name}({', '.join(names)}):{vector}")
        depth = 1
        for number in kernel.kept:
            self.add(depth, f"for i{number} in range({kernel.loops[number].size}):")
            depth += 1
        last = max((kernel.phase(r.value) for r in kernel.reductions), default=-1)
        inner_outputs = [output for output in kernel.outputs if output.is_inner]
        last = max([last, *(self.phase_of(output) for output in inner_outputs)])
        for phase in range(last + 1):
            self.run_through(phase, depth)
        for output in kernel.outputs:
            if not output.is_inner:
                self.write(output, depth)
        if depth == 1 and last < 0 and not kernel.outputs:
            self.add(depth, "pass")
        return "\n".join(self.lines) + "\n"

    def add(self, depth: int, line: str) -> None:
        self.lines.append("    " * depth + line)

    def phase_of(self, output: Output) -> int:
        return self.kernel.phase(output.value, *output.target.parts)

    def run_through(self, phase: int, depth: int) -> None:
        kernel = self.kernel
        outputs = [output for output in kernel.outputs if output.is_inner and self.phase_of(output) == phase]
        reductions = kernel.reductions_in(phase, outputs)
        if not reductions and not outputs:
            return
        for r in reductions:
            start = f"({STARTS[r.kind[3:]]}, 0)" if r.kind.startswith("arg") else STARTS[r.kind]
            self.add(depth, f"r{r.number} = {start}")
        inside = depth
        for number in kernel.reduced:
            self.add(inside, f"for i{number} in range({kernel.loops[number].size}):")
            inside += 1
        for r in reductions:
            at = show(r.position, self.names) if r.position is not None else ""
            self.add(inside, STEPS[r.kind].format(r=f"r{r.number}", v=show(r.value, self.names), p=at))
        for output in outputs:
            self.write(output, inside)
        for r in reductions:
            if r.kind.startswith("arg"):
                self.add(depth, f"r{r.number} = r{r.number}[1]")

    def write(self, output: Output, depth: int) -> None:
        access = output.target
        if access.mask is not None:
            self.add(depth, f"if {show(access.mask, self.names)}:")
            depth += 1
            access = Access(access.buffer, access.strides, access.offset, access.indirect)
        target, value = show_access(access, self.names), show(output.value, self.names)
        how = COMBINED[output.accumulate] if output.accumulate else "{t} = {v}"
        self.add(depth, how.format(t=target, v=value))
