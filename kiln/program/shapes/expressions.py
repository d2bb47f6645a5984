"""Expressions over symbolic sizes as Python text and functions, and names of sources as torch's ShapeEnv wants them."""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Callable
from typing import Any

import torch

from ... import operator_functions as operator

NAMES: dict[str, object] = {
    "math": math,
    "max": max,
    "min": min,
    "abs": abs,
    "round": round,
    "int": int,
    "float": float,
    "torch": torch,
    # functions of torch's that its printer leaves as they are
    "PowByNatural": operator.pow,
    "FloatPow": operator.pow,
    "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv,
    "Mod": operator.mod,
    "PythonMod": operator.mod,
    "IntTrueDiv": operator.truediv,
    "FloatTrueDiv": operator.truediv,
    "LShift": operator.lshift,
    "RShift": operator.rshift,
    "BitwiseFn_bitwise_and": operator.and_,
    "BitwiseFn_bitwise_or": operator.or_,
    "BitwiseFn_bitwise_xor": operator.xor,
    "TruncToInt": math.trunc,
    "FloorToInt": math.floor,
    "CeilToInt": math.ceil,
    "RoundToInt": round,
    "ToFloat": float,
}
"""What the text of a condition or size expression may refer to."""


def expression_text(expression: Any) -> str:
    """A sympy expression as Python."""
    from ...platform.torch_shapes import PythonPrinter

    return str(PythonPrinter().doprint(expression))


@functools.lru_cache(maxsize=1024)
def compile_expression(text: str, names: tuple[str, ...]) -> Any:
    """A function of the named symbols for the text of an expression."""
    namespace = dict(NAMES)
    exec(f"def size_expression({', '.join(names)}):\n    return {text}", namespace)
    made: Any = namespace["size_expression"]
    made.__module__ = "kiln.sizes"
    made.words = lambda operands: in_words(text, dict(zip(names, operands, strict=True)))
    return made


def symbol_names(expression: Any) -> list[str]:
    return sorted(str(symbol) for symbol in expression.free_symbols)


def substitute(text: str, rename: Callable[[str], str]) -> str:
    """An expression with its names (not those of attributes) replaced."""
    names = [node for node in ast.walk(ast.parse(text, mode="eval")) if isinstance(node, ast.Name)]
    parts, end = [], 0
    for node in sorted(names, key=lambda node: node.col_offset):
        parts += [text[end : node.col_offset], rename(node.id)]
        end = node.end_col_offset or 0
    return "".join([*parts, text[end:]])


def in_words(text: str, names: dict[str, str]) -> str:
    """An expression with the names of symbols replaced by where a person finds the numbers."""
    return substitute(text, lambda name: names.get(name, name))


# -- names for torch's ShapeEnv ----------------------------------------------------------------------------------------


def named_source(name: str) -> object:
    return _source_class()(name)


def item_name(parameter: str, place: int) -> str:
    """The name of an item of a list that a function takes."""
    return f"{parameter}[{place}]"


@functools.cache
def _source_class() -> Callable[[str], object]:
    """The class is made when it is needed: torch's module of sources loads slowly."""
    from ...platform.torch_compiler import GuardSource, Source

    class Named(Source):
        """A torch source that is only a name; Kiln keeps its own."""

        text: str

        def __init__(self, text: str):
            object.__setattr__(self, "text", text)

        @property
        def name(self) -> str:
            return self.text

        @property
        def _name_template(self) -> str:
            return self.text

        @property
        def guard_source(self) -> GuardSource:
            return GuardSource.LOCAL

        def __hash__(self) -> int:
            return hash(self.text)

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Named) and other.text == self.text

    return Named
