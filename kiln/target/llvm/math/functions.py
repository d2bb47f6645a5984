"""Mathematical functions of vectors, as LLVM text.

`emit` writes the code of a function of `lanes` values of float32 or float64; `NAMES` lists the functions. Short ones
are written in place; long ones become a function of the module, so that each is compiled once. Functions without
coefficients for float32 compute in float64 and round at the end. tests/target/test_codegen_math.py has the bounds of
their errors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import torch

from ....platform import cpu_info
from ..llvm_text import Lines, Names, suffix_of
from . import error_functions, exponential, gpu_functions, logarithm, miscellaneous, power, trigonometry
from .vector import Vector

# One instruction, by the name of the intrinsic.
INTRINSICS = {name: name for name in ("sqrt", "floor", "ceil", "trunc", "copysign", "fma")}
INTRINSICS |= {"abs": "fabs", "round": "roundeven"}

# Written in place, in either type.
SHORT: dict[str, Callable[..., str]] = {
    "exp": exponential.exp,
    "exp2": exponential.exp2,
    "sigmoid": exponential.sigmoid,
    "rsqrt": miscellaneous.rsqrt,
    "nextafter": miscellaneous.nextafter,
}
# Functions of the module, in either type.
LONG: dict[str, Callable[..., str]] = {
    "expm1": exponential.expm1,
    "tanh": exponential.tanh,
    "log": logarithm.log,
    "log1p": logarithm.log1p,
    "sin": trigonometry.sin,
    "cos": trigonometry.cos,
    "tan": trigonometry.tan,
    "erf": error_functions.erf,
    "gelu_erf": error_functions.gelu_erf,
    "pow": power.pow,
    "fmod": miscellaneous.fmod,
    "remainder": miscellaneous.remainder,
    "lgamma": miscellaneous.lgamma,
}
# Functions of the module, in float64.
WIDE: dict[str, Callable[..., str]] = {
    "sinh": exponential.sinh,
    "cosh": exponential.cosh,
    "log2": logarithm.log2,
    "log10": logarithm.log10,
    "asinh": logarithm.asinh,
    "acosh": logarithm.acosh,
    "atanh": logarithm.atanh,
    "asin": trigonometry.asin,
    "acos": trigonometry.acos,
    "atan": trigonometry.atan,
    "atan2": trigonometry.atan2,
    "erfc": error_functions.erfc,
    "erfinv": error_functions.erfinv,
    "hypot": miscellaneous.hypot,
    "digamma": miscellaneous.digamma,
}
# Of float32 these are short enough to be written in place: they are the ones that programs are full of.
SHORT_FLOATS = {"tanh", "log", "erf", "gelu_erf"}

NAMES = frozenset(INTRINSICS) | frozenset(SHORT) | frozenset(LONG) | frozenset(WIDE)


def emit(lines: Lines, name: str, operands: Sequence[str], lanes: int, dtype: torch.dtype) -> str:
    """Write a function of vectors (with one lane: scalars); returns the name of the result."""
    vector = Vector(lines, dtype, lanes)
    if name in INTRINSICS:
        return vector.intrinsic(INTRINSICS[name], *operands)
    if lines.is_for_gpu and dtype is torch.float32 and name in gpu_functions.FUNCTIONS:
        return gpu_functions.FUNCTIONS[name](vector, *operands)
    if name in SHORT:
        return SHORT[name](vector, *operands)
    if name in SHORT_FLOATS and dtype is torch.float32:
        return LONG[name](vector, *operands)
    scales = not lines.is_for_gpu and cpu_info.has_scale_instruction()
    function, texts = function_text(name, len(operands), lanes, dtype, scales, lines.is_for_gpu)
    for text in texts:
        lines.declare(text)
    given = ", ".join(f"{vector.kind} {operand}" for operand in operands)
    return lines.new(f"call {vector.kind} @{function}({given})")


@lru_cache(None)
def function_text(
    name: str, count: int, lanes: int, dtype: torch.dtype, scales: bool, is_for_gpu: bool
) -> tuple[str, tuple[str, ...]]:
    """The name of a function of the module, and its definition with the declarations that it needs."""
    lines = Lines(Names(is_for_gpu=is_for_gpu))
    vector = Vector(lines, dtype, lanes)
    operands = [f"%a{place}" for place in range(count)]
    if name in LONG:
        result = LONG[name](vector, *operands)
    elif vector.is_double:
        result = WIDE[name](vector, *operands)
    else:
        result = vector.narrow(WIDE[name](vector.doubled(), *map(vector.widen, operands)))
    function = f"kiln.{name}.{suffix_of(vector.element, lanes)}"
    parameters = ", ".join(f"{vector.kind} {operand}" for operand in operands)
    body = "\n  ".join([*lines.text, f"ret {vector.kind} {result}"])
    text = f"define internal {vector.kind} @{function}({parameters}) nounwind {{\nentry:\n  {body}\n}}"
    return function, (*lines.names.declarations, text)
