"""Symbolic sizes as nodes of a graph: each expression is one node, computed from sizes of tensors in the graph."""

from __future__ import annotations

import math
from typing import Any, Protocol

import torch
import torch.fx

from ... import operator_functions as operator
from ...platform.torch_symbols import environment_of, expression_of
from ...program.unsupported import Unsupported

aten = torch.ops.aten


class Emitter(Protocol):
    """Writes calls as nodes of a graph."""

    def emit(
        self, function: Any, args: tuple[Any, ...], keywords: dict[str, Any] | None = None, value: object = None
    ) -> torch.fx.Node: ...


class SizeNodes:
    """Which node has which expression."""

    def __init__(self, owner: Emitter) -> None:
        self.owner = owner
        self.is_backward = False
        self.nodes: dict[Any, torch.fx.Node] = {}
        self.sizes: dict[Any, tuple[Any, torch.fx.Node, int]] = {}  # symbols that are a size or stride of a tensor

    def add_input(self, value: Any, node: torch.fx.Node) -> None:
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            self.nodes.setdefault(expression_of(value), node)

    def add_tensor(self, tensor: torch.Tensor, node: torch.fx.Node) -> None:
        """Note which symbols can be read from a tensor."""
        if self.is_backward:
            return  # other stages and patterns of gradients do not have these tensors
        for function, values in ((aten.sym_size.int, tensor.shape), (aten.sym_stride.int, tensor.stride())):
            for dim, value in enumerate(values):
                if isinstance(value, torch.SymInt):
                    self.sizes.setdefault(expression_of(value), (function, node, dim))
        offset = tensor.storage_offset()
        if isinstance(offset, torch.SymInt):
            self.sizes.setdefault(expression_of(offset), (aten.sym_storage_offset.default, node, -1))

    def node_of(self, value: Any) -> Any:
        """A node, or a plain number where the expression is one."""
        expression = expression_of(value)
        if expression.is_number:
            return bool(expression) if isinstance(value, torch.SymBool) else as_number(expression)
        return self.build(expression, environment_of(value))

    def build(self, expression: Any, environment: Any) -> Any:
        known = self.nodes.get(expression)
        if known is not None:
            return known
        if expression.is_number:
            return as_number(expression)
        if expression in self.sizes:
            function, node, dim = self.sizes[expression]
            args: tuple[Any, ...] = (node,) if dim < 0 else (node, dim)
        else:
            function, args = self.parts(expression, environment)
        made = self.owner.emit(function, args, {}, symbol_value(expression, environment))
        self.nodes[expression] = made
        return made

    def parts(self, expression: Any, environment: Any) -> tuple[Any, tuple[Any, ...]]:
        name = type(expression).__name__
        if name not in OPERATORS:
            raise Unsupported(f"the symbolic size {expression}")
        function = OPERATORS[name]
        args = [self.build(part, environment) for part in expression.args]
        while len(args) > 2:  # sums and products of several
            first, second, *rest = args
            pair = type(expression)(*expression.args[: len(expression.args) - len(rest)], evaluate=False)
            args = [self.owner.emit(function, (first, second), {}, symbol_value(pair, environment)), *rest]
        return function, tuple(args)


def as_number(expression: Any) -> Any:
    return int(expression) if expression.is_integer else float(expression)


def symbol_value(expression: Any, environment: Any) -> Any:
    """An expression as a symbolic number; torch computes its hint."""
    if expression.is_Boolean or expression.is_Relational:
        return environment.create_symboolnode(expression)
    if not expression.is_integer:  # (None of quotients, False of few)
        return environment.create_symfloatnode(expression, hint=None)
    return environment.create_symintnode(expression, hint=None)


def ceiling_division(a: Any, b: Any) -> Any:
    return -(-a // b)


OPERATORS: dict[str, Any] = {
    "Add": operator.add,
    "Mul": operator.mul,
    "Pow": operator.pow,
    "PowByNatural": operator.pow,
    "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv,
    "CeilDiv": ceiling_division,
    "Mod": operator.mod,
    "PythonMod": operator.mod,
    "Max": torch.sym_max,
    "Min": torch.sym_min,
    "IntTrueDiv": operator.truediv,
    "FloatTrueDiv": operator.truediv,
    "FloatPow": operator.pow,
    "ToFloat": torch.sym_float,
    "TruncToInt": math.trunc,
    "FloorToInt": math.floor,
    "CeilToInt": math.ceil,
    "Equality": operator.eq,
    "Unequality": operator.ne,
    "StrictLessThan": operator.lt,
    "LessThan": operator.le,
    "StrictGreaterThan": operator.gt,
    "GreaterThan": operator.ge,
    "Not": torch.sym_not,
}


def number_text(value: torch.SymInt) -> str:
    """A symbolic size as Python over the names of its symbols."""
    from ...platform.torch_shapes import PythonPrinter  # loads sympy

    text: str = PythonPrinter().doprint(expression_of(value))
    return text
