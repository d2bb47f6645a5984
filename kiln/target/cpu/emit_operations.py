"""The scalar operations of the loop IR as instructions on registers: one value, or a vector of them.

Transcendental functions are math.py's; here is the rest. No flags that let the compiler change results: arithmetic is
bit for bit eager's.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from . import emit_integers, math
from .emit_types import HALVES, REGISTERS, bitcast, cast, register_constant, register_type, rounded
from .lines import Lines, spelled

# Operations whose result float16 and bfloat16 hold without rounding.
EXACT = frozenset("neg abs sign relu maximum minimum where copysign floor ceil trunc round fmod".split())
FLOAT_ARITHMETIC = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
FLOAT_INTRINSICS = {"abs": "fabs", "sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "trunc": "trunc"}
FLOAT_INTRINSICS |= {"round": "roundeven", "copysign": "copysign", "fma": "fma"}
FLOAT_COMPARISONS = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}


def operate(lines: Lines, name: str, operands: list[str], dtype: torch.dtype, result: torch.dtype, lanes: int) -> str:
    """``name`` of `ir.OPERATIONS` on operands of ``dtype`` (`where`: the condition apart)."""
    if name == "where":
        kind = register_type(dtype, lanes)
        return lines.new(f"select {spelled('i1', lanes)} {operands[0]}, {kind} {operands[1]}, {kind} {operands[2]}")
    if name == "cast":
        return cast(lines, operands[0], dtype, result, lanes)
    if name == "bitcast":
        return bitcast(lines, operands[0], dtype, result, lanes)
    if not dtype.is_floating_point:
        return emit_integers.operate(lines, name, operands, dtype, lanes)
    computed = torch.float32 if dtype in HALVES else dtype
    value = float_operation(lines, name, operands, computed, lanes)
    if dtype in HALVES and result is dtype and name not in EXACT:
        return rounded(lines, value, dtype, lanes)
    return value


def float_operation(lines: Lines, name: str, operands: list[str], dtype: torch.dtype, lanes: int) -> str:
    """On float32 or float64."""
    element = REGISTERS[dtype]
    kind = spelled(element, lanes)
    if name in FLOAT_ARITHMETIC:
        return lines.new(f"{FLOAT_ARITHMETIC[name]} {kind} {operands[0]}, {operands[1]}")
    if name in FLOAT_COMPARISONS:
        return lines.new(f"fcmp {FLOAT_COMPARISONS[name]} {kind} {operands[0]}, {operands[1]}")
    if name in FLOAT_INTRINSICS:
        return lines.intrinsic(FLOAT_INTRINSICS[name], element, lanes, *operands)
    if name in SPECIAL:
        return SPECIAL[name](Floats(lines, dtype, lanes), *operands)
    return math.emit(lines, name, operands, lanes, dtype)


class Floats:
    """Instructions on float32 or float64 registers, for operations that take several."""

    def __init__(self, lines: Lines, dtype: torch.dtype, lanes: int) -> None:
        self.lines, self.dtype, self.lanes = lines, dtype, lanes
        self.kind = register_type(dtype, lanes)
        self.truth = spelled("i1", lanes)

    def do(self, instruction: str, a: str, b: str) -> str:
        return self.lines.new(f"{instruction} {self.kind} {a}, {b}")

    def constant(self, value: float) -> str:
        return register_constant(value, self.dtype, self.lanes)

    def select(self, condition: str, yes: str, no: str) -> str:
        return self.lines.new(f"select {self.truth} {condition}, {self.kind} {yes}, {self.kind} {no}")

    def both(self, how: str, a: str, b: str) -> str:
        """Of truth values: and, or, xor."""
        return self.lines.new(f"{how} {self.truth} {a}, {b}")

    def call(self, name: str, *operands: str) -> str:
        return self.lines.intrinsic(name, REGISTERS[self.dtype], self.lanes, *operands)


def negated(f: Floats, a: str) -> str:
    return f.lines.new(f"fneg {f.kind} {a}")


def sign(f: Floats, a: str) -> str:
    """-1, 0 or 1; 0 of NaN."""
    positive = f.select(f.do("fcmp ogt", a, f.constant(0)), f.constant(1), f.constant(0))
    return f.select(f.do("fcmp olt", a, f.constant(0)), f.constant(-1), positive)


def relu(f: Floats, a: str) -> str:
    return f.select(f.do("fcmp olt", a, f.constant(0)), f.constant(0), a)


def greatest(f: Floats, a: str, b: str) -> str:
    larger = f.select(f.do("fcmp ogt", a, b), a, b)  # b where either is NaN: one instruction
    return f.select(f.do("fcmp uno", a, a), a, larger)


def least(f: Floats, a: str, b: str) -> str:
    smaller = f.select(f.do("fcmp olt", a, b), a, b)
    return f.select(f.do("fcmp uno", a, a), a, smaller)


def is_infinite(f: Floats, a: str) -> str:
    return f.do("fcmp oeq", f.call("fabs", a), f.constant(float("inf")))


def signbit(f: Floats, a: str) -> str:
    element = "i64" if f.dtype is torch.float64 else "i32"
    whole = spelled(element, f.lanes)
    bits = f.lines.new(f"bitcast {f.kind} {a} to {whole}")
    return f.lines.new(f"icmp slt {whole} {bits}, {'0' if f.lanes == 1 else 'zeroinitializer'}")


def differ_in_sign(f: Floats, modulus: str, b: str) -> str:
    """Whether a remainder that is not 0 has another sign than the divisor."""
    zero_value = f.constant(0)
    differ = f.both("xor", f.do("fcmp olt", b, zero_value), f.do("fcmp olt", modulus, zero_value))
    return f.both("and", f.do("fcmp une", modulus, zero_value), differ)


def remainder(f: Floats, a: str, b: str) -> str:
    """With the sign of the divisor."""
    modulus = f.do("frem", a, b)
    return f.select(differ_in_sign(f, modulus, b), f.do("fadd", modulus, b), modulus)


def floor_divided(f: Floats, a: str, b: str) -> str:
    """Python's ``//``: made of the remainder, so that it agrees with it where a / b rounds up to an integer."""
    modulus = f.do("frem", a, b)
    quotient = f.do("fdiv", a, b)
    exact = f.do("fdiv", f.do("fsub", a, modulus), b)
    exact = f.select(differ_in_sign(f, modulus, b), f.do("fsub", exact, f.constant(1)), exact)
    down = f.call("floor", exact)
    up = f.do("fadd", down, f.constant(1))
    whole = f.select(f.do("fcmp ogt", f.do("fsub", exact, down), f.constant(0.5)), up, down)
    whole = f.select(f.do("fcmp une", exact, f.constant(0)), whole, f.call("copysign", f.constant(0), quotient))
    return f.select(f.do("fcmp oeq", b, f.constant(0)), quotient, whole)


SPECIAL: dict[str, Callable[..., str]] = {
    "neg": negated,
    "sign": sign,
    "relu": relu,
    "maximum": greatest,
    "minimum": least,
    "isnan": lambda f, a: f.do("fcmp uno", a, a),
    "isinf": is_infinite,
    "signbit": signbit,
    "reciprocal": lambda f, a: f.do("fdiv", f.constant(1), a),
    "rsqrt": lambda f, a: f.do("fdiv", f.constant(1), f.call("sqrt", a)),
    "square": lambda f, a: f.do("fmul", a, a),
    "remainder": remainder,
    "fmod": lambda f, a, b: f.do("frem", a, b),
    "floordiv": floor_divided,
    "truncdiv": lambda f, a, b: f.call("trunc", f.do("fdiv", a, b)),
}
