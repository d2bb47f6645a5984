"""Dynamic sizes in functions compiled ahead of time: fakes with symbols, and a check of what was assumed of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import Parameter

from .. import operator_functions as operator
from ..platform.torch_symbols import unsimplified_expression_of
from ..program.shapes.expressions import compile_expression, expression_text, named_source, symbol_names
from ..program.shapes.fake_tensors import make_mode

Check = Callable[[Sequence[torch.Tensor]], bool]


def dynamic_dims(tensor: torch.Tensor) -> list[bool]:
    """Which sizes are dynamic: those of parameters are not, and 0 and 1 are special."""
    free = not isinstance(tensor, Parameter)
    return [free and size > 1 for size in tensor.shape]


def symbolic_inputs(tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], Callable[[], Check]]:
    """Fakes of tensors with symbols for dynamic sizes; and, once they have been used, a check for other tensors."""
    from ..platform.torch_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext  # loads sympy

    mode = make_mode(shape_env=ShapeEnv())
    fakes = []
    for index, tensor in enumerate(tensors):
        kinds = [DimDynamic.DUCK if free else DimDynamic.STATIC for free in dynamic_dims(tensor)]
        context: Any = StatelessSymbolicContext(dynamic_sizes=kinds, constraint_sizes=[None] * tensor.dim())
        source = named_source(f"tensors[{index}]")
        fakes.append(mode.from_tensor(tensor, source=source, symbolic_context=context, trace=False))
    return fakes, lambda: assumptions(mode.shape_env, fakes)


def assumptions(shapes: Any, fakes: Sequence[torch.Tensor]) -> Check:
    """What was assumed of the sizes and strides of these fakes, as a check of other tensors."""
    places: dict[str, tuple[int, Any]] = {}  # symbol -> where to read it
    plain: list[tuple[int, Any, int]] = []  # tensor, which number of it, what it is
    exact: list[tuple[int, Any, Any]] = []  # the same with an expression
    for index, fake in enumerate(fakes):
        for read, number in numbers_of(fake):
            if not isinstance(number, torch.SymInt):
                plain.append((index, read, number))
                continue
            # As it was made: guards name that symbol, even if it was found to be constant.
            expression = unsimplified_expression_of(number)
            if expression.is_Symbol:
                places.setdefault(str(expression), (index, read))
            exact.append((index, read, expression))
    names = tuple(places)
    texts = [expression_text(guard.expr) for guard in shapes.guards]
    for symbol, limits in shapes.var_to_range.items():
        if str(symbol) in places and limits.lower.is_Integer:
            texts.append(f"{symbol} >= {int(limits.lower)}")
    conditions = [compile_expression(text, names) for text in texts]
    equal = [
        (index, read, compile_expression(expression_text(expression), names))
        for index, read, expression in exact
        if all(name in places for name in symbol_names(expression))
    ]

    def check(tensors: Sequence[torch.Tensor]) -> bool:
        values = [read(tensors[index]) for index, read in places.values()]
        return (
            all(read(tensors[index]) == number for index, read, number in plain)
            and all(condition(*values) for condition in conditions)
            and all(read(tensors[index]) == expected(*values) for index, read, expected in equal)
        )

    return check


def numbers_of(fake: torch.Tensor) -> list[tuple[Callable[[torch.Tensor], int], Any]]:
    """The numbers that describe a tensor, with how to read each from another."""
    found: list[tuple[Callable[[torch.Tensor], int], Any]] = []
    for dim in range(fake.dim()):
        found.append((operator.methodcaller("size", dim), fake.size(dim)))
        found.append((operator.methodcaller("stride", dim), fake.stride(dim)))
    return found
