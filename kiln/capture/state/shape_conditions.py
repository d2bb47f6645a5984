"""Conditions on symbolic sizes and numbers: all that torch's ``ShapeEnv`` assumed, as checks over sources.

Every comparison that the program, or a shape rule of torch, decided on a symbolic number is in the environment's
guards; what the symbols themselves imply (a dynamic size is at least 2, two places share one symbol, a stride is the
product of sizes) is added here. A graph may only run where all of it holds.
"""

from __future__ import annotations

from typing import Any

import torch

from ..._native import is_instance as isinstance
from ...program.shapes.expressions import expression_text, symbol_names
from ..guards.guards import ShapeCondition
from ..guards.source import Source
from .graph_inputs import SymbolInput
from .trace import Trace


def shape_conditions(trace: Trace) -> list[ShapeCondition]:
    """What the program's branches on sizes assumed, in terms of sources."""
    if not trace.inputs.symbols:
        return []
    shapes = trace.fakes.shapes
    conditions = []
    for guard in shapes.guards:
        conditions += condition(trace, guard.expr)
    limits = {str(symbol): limits for symbol, limits in shapes.var_to_range.items()}
    for name, source in trace.inputs.symbols.items():
        if name in limits:
            conditions += range_conditions(limits[name], name, source)
    return list(dict.fromkeys(conditions))


def condition(trace: Trace, expression: Any) -> list[ShapeCondition]:
    names = symbol_names(expression)
    if not names:
        return []
    if any(name not in trace.inputs.symbols for name in names):
        raise trace.fail(
            f"a decision about a size that depends on a tensor's values ({expression})",
            "keep the operation that makes it outside the compiled function",
        )
    floats = [name for name in names if is_float_symbol(trace, name)]
    if floats:  # sympy rounds and reorders floats: the number itself is assumed, exactly
        for name in names:
            pin(trace, name)
        return []
    symbols = tuple((name, trace.inputs.symbols[name]) for name in names)
    return [ShapeCondition(expression_text(expression), symbols)]


def is_float_symbol(trace: Trace, name: str) -> bool:
    return isinstance(symbol_input(trace, name).value, torch.SymFloat)


def symbol_input(trace: Trace, name: str) -> SymbolInput:
    return trace.inputs.numbers[name]


def pin(trace: Trace, name: str) -> None:
    """Assume the number that a symbol stands for in this call."""
    known = symbol_input(trace, name)
    trace.guards.add(known.source, "constant", known.real)


def range_conditions(limits: Any, name: str, source: Source) -> list[ShapeCondition]:
    """Bounds that torch assumes of a symbol (a dynamic size is at least 2: 0 and 1 are special)."""
    found = []
    for bound, sign in ((limits.lower, ">="), (limits.upper, "<=")):
        if getattr(bound, "is_Integer", False) and abs(int(bound)) < 2**60:
            found.append(ShapeCondition(f"{name} {sign} {int(bound)}", ((name, source),)))
    return found


def equal(one: Source, other: Source) -> ShapeCondition:
    """Two places that must hold the same number."""
    return ShapeCondition("a == b", (("a", one), ("b", other)))


def equals_expression(trace: Trace, source: Source, expression: Any) -> ShapeCondition:
    """A place that must hold what an expression of known symbols gives."""
    symbols = tuple((name, trace.inputs.symbols[name]) for name in symbol_names(expression))
    return ShapeCondition(f"here == {expression_text(expression)}", (("here", source), *symbols))
