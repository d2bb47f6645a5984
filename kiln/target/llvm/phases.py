"""The phases of a kernel: what each run of the reduced loops computes, and what it saves for later phases.

A costly value that a later phase needs again (the exponentials of a softmax) is saved in a row of scratch memory: the
phase that computes it first stores it, later phases load it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

from kiln.loops.ir import Access, Buffer, Expr, children, load, rewrite, walk
from kiln.loops.kernel import Kernel, Output, Reduction, roots_of
from kiln.loops.sizes import Size, is_unit_stride, is_zero

from ...platform.light_dataclass import dataclass

COSTLY_OPERATIONS = frozenset(
    "pow exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh erf "
    "erfc erfinv lgamma digamma sigmoid gelu_erf floordiv truncdiv remainder fmod hypot".split()
)
MOST_SAVED = 1 << 20  # elements of a row that is kept


@dataclass
class Phase:
    """What one run of the reduced loops computes; ``order``: all expressions it needs, parts first."""

    reductions: list[Reduction]
    outputs: list[Output]
    order: list[Expr] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self.order = walk(*self.roots())

    def roots(self) -> Iterable[Expr]:
        return roots_of(self.reductions, self.outputs)


def phases_of(kernel: Kernel) -> tuple[tuple[Phase, ...], Phase]:
    """The phases that have anything to do, and the outputs after them."""
    outputs: dict[int, list[Output]] = {}
    closing = []
    for output in kernel.outputs:
        if output.is_inner and kernel.reduced:
            outputs.setdefault(kernel.phase(output.value, *output.target.parts), []).append(output)
        else:
            closing.append(output)
    numbers = sorted({*(kernel.phase(reduction.value) for reduction in kernel.reductions), *outputs})
    phases = [Phase(kernel.reductions_in(n, outputs.get(n, [])), outputs.get(n, [])) for n in numbers]
    return tuple(phases), Phase([], closing)


# ---- values that are kept --------------------------------------------------------------------------------------------


def with_saved_values(
    kernel: Kernel, phases: tuple[Phase, ...], reduced: tuple[int, ...], vector: int | None
) -> tuple[Phase, ...]:
    """The phases, with costly values that are needed again saved. ``reduced``: the reduced loops, from outside."""
    if len(phases) < 2 or (vector is not None and vector not in reduced) or not reduced:
        return phases
    strides: list[Size] = [0] * len(kernel.loops)
    count: Size = 1
    for loop in reversed(reduced):
        strides[loop] = count
        count = count * kernel.loops[loop].size
    if isinstance(count, int) and count > MOST_SAVED:
        return phases
    found = list(phases)
    known: list[set[Expr]] = [set(phase.order) for phase in phases]
    is_costly = CostlyTest(reduced, vector)
    for later in range(1, len(found)):
        before: set[Expr] = set().union(*known[:later])
        for expr in outermost(found[later].roots(), before, is_costly):
            first = next(number for number in range(later) if expr in known[number])
            buffer = Buffer(f"kept{len(known)}", expr.dtype, (count,), (1,), "scratch")
            access = Access(buffer, tuple(strides), 0)
            found[first] = Phase(found[first].reductions, [*found[first].outputs, Output(access, expr, True)])
            for number in range(first + 1, len(found)):
                found[number] = replaced(found[number], expr, load(access))
    return tuple(found)


class CostlyTest:
    """Whether an expression is worth saving: it has a costly part that changes along the reduced loops."""

    def __init__(self, reduced: tuple[int, ...], vector: int | None) -> None:
        self.reduced, self.vector = reduced, vector
        self.known: dict[Expr, tuple[bool, bool]] = {}  # whether it changes, whether it is costly

    def __call__(self, root: Expr) -> bool:
        for expr in walk(root):
            if expr not in self.known:
                self.known[expr] = self.judge(expr)
        return self.known[root][1]

    def judge(self, expr: Expr) -> tuple[bool, bool]:
        if expr.kind == "running":
            return True, True
        parts = [self.known[part] for part in children(expr)]
        changes = any(part[0] for part in parts)
        is_costly = any(part[1] for part in parts)
        if expr.kind in ("load", "iota"):
            strides = expr.payload.strides if expr.kind == "load" else expr.payload[0]
            changes = changes or any(not is_zero(strides[loop]) for loop in self.reduced)
            if expr.kind == "load" and expr.payload.buffer.kind == "scratch":
                return changes, False
        if expr.kind in COSTLY_OPERATIONS:
            is_costly = is_costly or changes
        elif expr.kind == "load":
            is_costly = is_costly or (changes and self.is_gathered(expr.payload))
        return changes, is_costly

    def is_gathered(self, access: Access) -> bool:
        stride: Size = access.strides[self.vector] if self.vector is not None else 0
        return bool(access.indirect) or not is_unit_stride(stride)


def outermost(roots: Iterable[Expr], among: set[Expr], is_wanted: Callable[[Expr], bool]) -> list[Expr]:
    """The expressions of ``among`` that are wanted and not part of another such expression."""
    found: dict[Expr, None] = {}
    seen: set[Expr] = set()
    stack = list(roots)
    while stack:
        expr = stack.pop()
        if expr in seen:
            continue
        seen.add(expr)
        if expr in among and is_wanted(expr):
            found[expr] = None
        else:
            stack.extend(children(expr))
    return list(found)


def replaced(phase: Phase, old: Expr, new: Expr) -> Phase:
    """A phase with one expression in place of another."""
    known = {old: new}

    def changed(expr: Expr) -> Expr:
        return rewrite(expr, lambda part: part, known)

    reductions = [
        dataclasses.replace(r, value=changed(r.value), position=changed(r.position) if r.position is not None else None)
        for r in phase.reductions
    ]
    outputs = [
        dataclasses.replace(output, target=output.target.with_parts(changed), value=changed(output.value))
        for output in phase.outputs
    ]
    return Phase(reductions, outputs)
