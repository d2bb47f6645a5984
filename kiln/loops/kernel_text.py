"""Runs the text of a kernel (`Kernel.text`) as Python, on tensors without dimensions, for tests and for debugging.

``run(kernel.text, kernel.name, buffers, sizes)`` calls it with flat tensors, which it writes into. It is slow.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .ir import HALF_TYPES, OPERATIONS, short_name
from .philox import Draws, drawn_bits
from .reference import FUNCTIONS
from .tensor_layouts import KERNEL_TYPES


class Infinity:
    """Less or greater than everything: the first value of a maximum or minimum."""


lowest, highest = Infinity(), Infinity()


def typed(name: str) -> Callable[..., Any]:
    """An operation on scalars and Python numbers; 16-bit types compute in float32 and round."""
    function = FUNCTIONS[name]

    def call(*given: Any) -> Any:
        if given[0] is lowest or given[0] is highest:
            return given[1]
        dtype = next((one.dtype for one in reversed(given) if isinstance(one, torch.Tensor)), None)
        values = [one if isinstance(one, torch.Tensor) else constant(one, dtype) for one in given]
        if dtype in HALF_TYPES and name != "where":
            return function(*(value.float() for value in values)).to(dtype)
        return function(*values)

    return call


def constant(value: Any, dtype: torch.dtype | None) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.bool if isinstance(value, bool) else dtype)


def cast(dtype: torch.dtype) -> Callable[..., torch.Tensor]:
    return lambda value: torch.as_tensor(value).to(dtype)


def bits(dtype: torch.dtype) -> Callable[..., torch.Tensor]:
    return lambda value: torch.as_tensor(value).view(dtype)


def later_greatest(found: tuple[Any, Any], value: Any, place: Any) -> tuple[Any, Any]:
    """The first maximum, or the first NaN."""
    return first_best(found, value, place, lambda a, b: a > b)


def later_least(found: tuple[Any, Any], value: Any, place: Any) -> tuple[Any, Any]:
    return first_best(found, value, place, lambda a, b: a < b)


def first_best(found: tuple[Any, Any], value: Any, place: Any, goes_before: Callable[..., Any]) -> tuple[Any, Any]:
    best, where = found
    if isinstance(best, Infinity):
        return value, place
    is_nan, was_nan = bool(value != value), bool(best != best)
    if is_nan or was_nan:
        takes = is_nan and (not was_nan or place < where)
    else:
        takes = bool(goes_before(value, best)) or (bool(value == best) and place < where)
    return (value, place) if takes else found


def philox(seed: Any, offset: Any, element: Any, *draws: Any) -> torch.Tensor:
    given = [torch.as_tensor(one, dtype=torch.int64) for one in (seed, offset, element)]
    return drawn_bits(Draws(*draws), *given)


NAMES: dict[str, Any] = {
    **{name: typed(name) for name in OPERATIONS if name in FUNCTIONS},
    "assured": lambda condition, value: value,
    "invert": typed("not"),
    **{short_name(dtype): cast(dtype) for dtype in KERNEL_TYPES},
    **{f"bits_{short_name(dtype)}": bits(dtype) for dtype in KERNEL_TYPES},
    "bool": cast(torch.bool),
    "lowest": lowest,
    "highest": highest,
    "later_greatest": later_greatest,
    "later_least": later_least,
    "philox": philox,
    "inf": math.inf,
    "nan": math.nan,
}


class BufferNames(ast.NodeTransformer):
    """Buffers have names of their own where they are called like an operation: ``exp[i0] = exp(x[i0])``."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.arg = own_name(node.arg)
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.Subscript:
        self.generic_visit(node)
        if isinstance(node.value, ast.Name):
            node.value.id = own_name(node.value.id)
        return node


def own_name(name: str) -> str:
    return f"{name}_" if name in NAMES else name


def run(text: str, name: str, buffers: Sequence[torch.Tensor], sizes: Sequence[int] = ()) -> None:
    """Run a kernel's text on flat tensors and the values of its symbols, in the order of its parameters."""
    names = dict(NAMES)
    exec(compile(BufferNames().visit(ast.parse(text)), f"<{name}>", "exec"), names)
    names[name](*buffers, *sizes)
