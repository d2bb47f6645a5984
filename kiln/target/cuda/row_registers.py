"""What a thread keeps of its part of a row between the phases of a kernel.

A phase hands to later ones what they need of the values that were computed so far: not all that was loaded, but the
last values on the way to what is needed. Of float16 and bfloat16 it keeps what was loaded, which takes half the
registers, and widens it again.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from kiln.loops.ir import HALF_TYPES, Expr, children
from kiln.loops.sizes import is_zero

from ..llvm.phases import Phase


def kept_after(phases: Sequence[Phase], number: int, loop: int) -> dict[Expr, None]:
    """The values along a reduced loop that phases after one need and that are known by then."""
    known = set().union(*(varying(phase.order, loop) for phase in phases[: number + 1]))
    found: dict[Expr, None] = {}
    seen: set[Expr] = set()
    stack = [root for phase in phases[number + 1 :] for root in phase.roots()]
    while stack:
        expr = stack.pop()
        if expr in seen:
            continue
        seen.add(expr)
        if expr in known and not is_recomputed(expr, known):
            if expr.kind not in ("const", "iota"):
                found[expr] = None
        else:
            stack.extend(children(expr))
    return found


def order_after(phase: Phase, kept: Container[Expr]) -> list[Expr]:
    """What a phase computes where some values are there already, parts first."""
    needed: set[Expr] = set()
    stack = list(phase.roots())
    while stack:
        expr = stack.pop()
        if expr not in needed:
            needed.add(expr)
            if expr not in kept or is_half_load(expr):
                stack.extend(children(expr))
    return [expr for expr in phase.order if expr in needed]


def varying(order: Sequence[Expr], loop: int) -> set[Expr]:
    """Those of some expressions (parts first) that change along a loop."""
    found: set[Expr] = set()
    for expr in order:
        strides = expr.payload.strides if expr.kind == "load" else expr.payload[0] if expr.kind == "iota" else ()
        if (strides and not is_zero(strides[loop])) or any(part in found for part in children(expr)):
            found.add(expr)
    return found


def is_recomputed(expr: Expr, known: set[Expr]) -> bool:
    """Whether it is computed again, in at most three instructions, from one vector of float16 or bfloat16 that was
    loaded: its cast, or that minus a value of the whole row."""
    steps = 0
    while expr.kind in ("cast", "add", "sub", "mul"):
        parts = [part for part in expr.args if part in known]
        steps += 1
        if len(parts) != 1 or steps > 3:
            return False
        expr = parts[0]
    return steps > 0 and is_half_load(expr)


def is_half_load(expr: Expr) -> bool:
    return expr.kind == "load" and expr.dtype in HALF_TYPES


def most_registers(phases: Sequence[Phase], loop: int) -> float:
    """How many registers of 32 bits an element of a row takes at most: what is kept, and what a phase loads besides."""
    counts = [0.0]
    for number, phase in enumerate(phases):
        kept = kept_after(phases, number - 1, loop) if number else {}
        moving = varying(phase.order, loop)
        loaded = [expr for expr in order_after(phase, kept) if expr.kind == "load" and expr in moving]
        counts.append(sum(map(registers_of, {**kept, **dict.fromkeys(loaded)})))
    return max(counts)


def loads_of_later_phases(phases: Sequence[Phase]) -> list[Expr]:
    """What phases after the first load anew, where only the positions of the loops tell from where."""
    first = set(phases[0].order) if phases else set()
    found = dict.fromkeys(expr for phase in phases[1:] for expr in phase.order)
    return [expr for expr in found if expr not in first and expr.kind == "load" and not expr.payload.parts]


def registers_with(phases: Sequence[Phase], loop: int, loads: Sequence[Expr]) -> float:
    """How many registers an element of a row takes at most if these loads run in the first phase."""
    moving = varying(loads, loop)
    return most_registers(phases, loop) + sum(registers_of(expr) for expr in loads if expr in moving)


def registers_of(expr: Expr) -> float:
    if is_half_load(expr):
        return 0.5
    return 2.0 if expr.dtype.itemsize == 8 else 1.0
