"""The scalar operations of the loop IR as instructions on registers: one value, or a vector of them.

Mathematical functions of floats are in target/llvm/math. No instruction has flags that let LLVM change results:
arithmetic gives eager's bits.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from . import integers
from .llvm_text import Lines, llvm_type
from .math import functions, miscellaneous
from .math.vector import Vector
from .value_types import HALF_TYPES, bitcast, cast, compute_type, register_type, rounded

# Operations whose result float16 and bfloat16 hold without rounding.
EXACT = frozenset("neg abs sign relu maximum minimum where copysign floor ceil trunc round fmod".split())
FLOAT_ARITHMETIC = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
FLOAT_COMPARISONS = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}


def operate(lines: Lines, name: str, operands: list[str], dtype: torch.dtype, result: torch.dtype, lanes: int) -> str:
    """``name`` of `ir.OPERATIONS` on operands of ``dtype`` (`where`: the condition apart)."""
    if name == "where":
        kind = register_type(dtype, lanes)
        if lines.is_for_gpu and lanes > 1 and dtype in (torch.int8, torch.uint8):
            return select_of_bytes(lines, operands, kind, lanes)
        return lines.new(f"select {llvm_type('i1', lanes)} {operands[0]}, {kind} {operands[1]}, {kind} {operands[2]}")
    if name == "cast":
        return cast(lines, operands[0], dtype, result, lanes)
    if name == "bitcast":
        return bitcast(lines, operands[0], dtype, result, lanes)
    if not dtype.is_floating_point:
        return integers.operate(lines, name, operands, dtype, lanes)
    value = float_operation(lines, name, operands, compute_type(dtype), lanes)
    if dtype in HALF_TYPES and result is dtype and name not in EXACT:
        return rounded(lines, value, dtype, lanes)
    return value


def select_of_bytes(lines: Lines, operands: list[str], kind: str, lanes: int) -> str:
    """In 32 bits: LLVM 22 ends the process for a GPU's choice between four bytes 1 and four bytes 0."""
    wide = llvm_type("i32", lanes)
    yes, no = (lines.new(f"zext {kind} {operand} to {wide}") for operand in operands[1:])
    chosen = lines.new(f"select {llvm_type('i1', lanes)} {operands[0]}, {wide} {yes}, {wide} {no}")
    return lines.new(f"trunc {wide} {chosen} to {kind}")


def float_operation(lines: Lines, name: str, operands: list[str], dtype: torch.dtype, lanes: int) -> str:
    """On float32 or float64."""
    kind = register_type(dtype, lanes)
    if name in FLOAT_ARITHMETIC:
        return lines.new(f"{FLOAT_ARITHMETIC[name]} {kind} {operands[0]}, {operands[1]}")
    if name in FLOAT_COMPARISONS:
        return lines.new(f"fcmp {FLOAT_COMPARISONS[name]} {kind} {operands[0]}, {operands[1]}")
    if name in SPECIAL:
        return SPECIAL[name](Vector(lines, dtype, lanes), *operands)
    return functions.emit(lines, name, operands, lanes, dtype)


def sign(v: Vector, a: str) -> str:
    """-1, 0 or 1; 0 of NaN."""
    positive = v.select(v.compare("ogt", a, 0.0), 1.0, 0.0)
    return v.select(v.compare("olt", a, 0.0), -1.0, positive)


def greatest(v: Vector, a: str, b: str) -> str:
    if v.lines.is_for_gpu and not v.is_double:  # one instruction
        return v.intrinsic("maximum", a, b)
    larger = v.select(v.compare("ogt", a, b), a, b)  # b where either is NaN: one instruction
    return v.select(v.compare("uno", a, a), a, larger)


def least(v: Vector, a: str, b: str) -> str:
    if v.lines.is_for_gpu and not v.is_double:
        return v.intrinsic("minimum", a, b)
    smaller = v.select(v.compare("olt", a, b), a, b)
    return v.select(v.compare("uno", a, a), a, smaller)


def floor_divided(v: Vector, a: str, b: str) -> str:
    """Python's ``//``: made of the remainder, so that it agrees with it where a / b rounds up to an integer."""
    modulus = functions.emit(v.lines, "fmod", [a, b], v.lanes, v.dtype)
    quotient = v.div(a, b)
    exact = v.div(v.sub(a, modulus), b)
    exact = v.select(miscellaneous.differ_in_sign(v, modulus, b), v.sub(exact, 1.0), exact)
    down = v.intrinsic("floor", exact)
    whole = v.select(v.compare("ogt", v.sub(exact, down), 0.5), v.add(down, 1.0), down)
    whole = v.select(v.compare("une", exact, 0.0), whole, v.copysign(0.0, quotient))
    return v.select(v.compare("oeq", b, 0.0), quotient, whole)


SPECIAL: dict[str, Callable[..., str]] = {
    "neg": Vector.neg,
    "sign": sign,
    "relu": lambda v, a: v.select(v.compare("olt", a, 0.0), 0.0, a),
    "maximum": greatest,
    "minimum": least,
    "isnan": lambda v, a: v.compare("uno", a, a),
    "isinf": lambda v, a: v.compare("oeq", v.abs(a), float("inf")),
    "signbit": Vector.is_negative,
    "reciprocal": lambda v, a: v.div(1.0, a),
    "square": lambda v, a: v.mul(a, a),
    "floordiv": floor_divided,
    "truncdiv": lambda v, a, b: v.intrinsic("trunc", v.div(a, b)),
}
