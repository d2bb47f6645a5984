"""Graphs and kernels in float64, to tell a wrong result from a rounding error.

Where sums cancel, two correct orders of adding give results far apart; the result in float64 shows how large rounding
errors are. The graph runs operator by operator, with each result widened. Random numbers, and operators that do not
take float64, keep the values of the eager run. A kernel is run by the reference interpreter.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from ..loops.ir import HALF_TYPES, Buffer, Expr
from ..loops.reference import FUNCTIONS, Reference
from ..loops.steps import Launch
from ..program.operators.operator_table import find_operator

NARROW_TYPES = (*HALF_TYPES, torch.float32)


def to_float64(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype in NARROW_TYPES:
        return value.double()
    return type(value)(map(to_float64, value)) if type(value) in (list, tuple) else value


class Float64Graph(torch.fx.Interpreter):
    """The values of a graph's nodes in float64, given those of eager."""

    def __init__(self, module: torch.fx.GraphModule, eager: dict[torch.fx.Node, Any]) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.eager = eager

    def run_node(self, n: torch.fx.Node) -> Any:
        called = find_operator(n.target)
        given = called is not None and (called.random or called.leaves_unwritten)
        if n.op == "call_function" and not given:
            try:
                return to_float64(super().run_node(n))
            except Exception:  # an operator that does not take float64, or other types than these
                pass
        return to_float64(self.eager[n])


def float64_values(module: torch.fx.GraphModule, eager: dict[torch.fx.Node, Any]) -> dict[torch.fx.Node, Any]:
    interpreter = Float64Graph(module, eager)
    for node in module.graph.nodes:
        interpreter.env[node] = interpreter.run_node(node) if node.op != "output" else None
    return interpreter.env


class Float64Reference(Reference):
    """A kernel in float64, on the memory of another run."""

    def __init__(self, other: Reference) -> None:
        self.lowered, self.names, self.kernel_sizes = other.lowered, {}, {}
        self.symbols, self.memory = other.symbols, dict(other.memory)

    def written(self, launch: Launch, before: dict[Buffer, torch.Tensor]) -> dict[Buffer, torch.Tensor]:
        """What a launch writes: the elements of each buffer, whose contents before it are given."""
        for buffer, elements in before.items():
            self.memory[buffer] = to_float64(elements).clone()
        self.launch(launch)
        return {buffer: self.memory[buffer] for buffer in before}

    def evaluate_one(self, expr: Expr, shape: list[int], values: dict[Expr, torch.Tensor]) -> torch.Tensor:
        dtype = torch.float64 if expr.dtype in NARROW_TYPES else expr.dtype
        if expr.kind in FUNCTIONS:
            return FUNCTIONS[expr.kind](*(values[arg] for arg in expr.args)).to(dtype)
        if expr.kind == "cast":
            return values[expr.args[0]].to(dtype)
        found: torch.Tensor = to_float64(super().evaluate_one(expr, shape, values))
        return found
