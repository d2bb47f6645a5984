"""Where a function of float32 may have a larger error, because nobody can see it: faster instructions do then.

- exp and sigmoid, where all that is made of the result is rounded to float16 or bfloat16. Their relative error grows
  with the size of the argument, up to 1e-5 for results that are hardly above zero. A quotient with such a value below
  the line is no longer rounded correctly.
- exp of distances from the greatest value, where it is summed up: the sum is at least 1, so small terms matter little.
- tanh, where it is only added to one, or its square is taken from one. Its absolute error is that of the sum.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

import torch

from kiln.loops.ir import HALF_TYPES, Expr, children, walk
from kiln.loops.kernel import Kernel

FUNCTIONS = frozenset("exp sigmoid tanh div".split())
ARITHMETIC = frozenset("add sub mul div neg fma where cast".split())


class Uses:
    """Who reads each expression of a kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self.readers: dict[Expr, list[Expr]] = {}
        self.is_seen: dict[Expr, bool] = {}  # whether it is stored or reduced
        self.hidden: dict[Expr, bool] = {}
        self.greatest = {r.number: r.value for r in kernel.reductions if r.kind == "max"}
        for expr in walk(*kernel.roots()):
            self.is_seen[expr] = False
            for part in children(expr):
                self.readers.setdefault(part, []).append(expr)
        for reduction in kernel.reductions:
            if reduction.kind != "sum" or reduction.is_scan or not self.is_power_of_distance(reduction.value):
                self.is_seen[reduction.value] = True
            if reduction.position is not None:
                self.is_seen[reduction.position] = True
        for output in kernel.outputs:
            for part in (output.value, *output.target.parts):
                self.is_seen[part] = True

    def is_hidden(self, expr: Expr) -> bool:
        """Whether all that is made of a value is rounded to 16 bits, or summed up."""
        if expr not in self.hidden:
            readers = self.readers.get(expr, ())
            self.hidden[expr] = expr.dtype in HALF_TYPES or (
                not self.is_seen[expr]
                and all(reader.kind in ARITHMETIC and self.is_hidden(reader) for reader in readers)
            )
        return self.hidden[expr]

    def is_power_of_distance(self, expr: Expr) -> bool:
        """Whether it is the exponential of the distance from the greatest value."""
        distance = expr.args[0] if expr.kind == "exp" else None
        if distance is None or distance.kind != "sub" or distance.args[1].kind != "reduced":
            return False
        return self.greatest.get(distance.args[1].payload) is distance.args[0]

    def is_beside_one(self, expr: Expr) -> bool:
        """Whether a value is only added to one, or its square taken from one."""
        readers = self.readers.get(expr, ())
        return not self.is_seen[expr] and all(
            self.is_added_to_one(reader) or (is_square(reader) and self.is_taken_from_one(reader)) for reader in readers
        )

    def is_added_to_one(self, expr: Expr) -> bool:
        return expr.kind in ("add", "sub") and any(map(is_one, expr.args))

    def is_taken_from_one(self, expr: Expr) -> bool:
        return not self.is_seen[expr] and all(map(self.is_added_to_one, self.readers.get(expr, ())))


def is_one(expr: Expr) -> bool:
    return expr.kind == "const" and expr.payload == 1


def is_square(expr: Expr) -> bool:
    return expr.kind == "square" or (expr.kind == "mul" and expr.args[0] is expr.args[1])


def relaxed_functions(kernel: Kernel, exprs: Iterable[Expr]) -> dict[Expr, str]:
    """Those of a kernel's expressions that may have a larger error, and the function of `gpu_functions.RELAXED` that
    computes them."""
    found: dict[Expr, str] = {}
    exprs = [expr for expr in exprs if expr.kind in FUNCTIONS and expr.dtype is not torch.float64]
    if all(expr.kind == "div" for expr in exprs):
        return found
    uses = Uses(kernel)
    for expr in dict.fromkeys(exprs):
        if expr.kind == "tanh":
            name = "tanh" if uses.is_beside_one(expr) else None
        elif not uses.is_hidden(expr):
            name = None
        elif expr.kind == "exp":
            name = "exp" if uses.is_beside_one(expr) else "exp with denormals"
        else:
            name = expr.kind if expr.kind == "sigmoid" or is_inexact(expr.args[1], found) else None
        if name is not None:
            found[expr] = name
    return found


def is_inexact(expr: Expr, relaxed: Container[Expr]) -> bool:
    """Whether a value has an error before it is rounded, so that eager's bits cannot be promised."""
    return expr in relaxed or (
        expr.dtype not in HALF_TYPES
        and expr.kind in ARITHMETIC
        and any(is_inexact(part, relaxed) for part in expr.args)
    )
