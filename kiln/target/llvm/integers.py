"""The scalar operations on integers and truth values.

Integers wrap around. A division by 0, which eager refuses, has an arbitrary result and does not kill the process as the
CPU's instruction would; neither does the least number divided by -1, which wraps around.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from .llvm_text import REGISTERS, Lines, constant, llvm_type
from .value_types import BITS

ARITHMETIC = {"add": "add", "sub": "sub", "mul": "mul", "and": "and", "or": "or", "xor": "xor"}
TRUTH = {
    "add": "or",
    "sub": "xor",
    "mul": "and",
    "and": "and",
    "or": "or",
    "xor": "xor",
    "maximum": "or",
    "minimum": "and",
}
COMPARISONS = {"eq": "eq", "ne": "ne", "lt": "slt", "le": "sle", "gt": "sgt", "ge": "sge"}
UNCHANGED = frozenset("floor ceil trunc round".split())


class Integers:
    """Instructions on registers of one integer type."""

    def __init__(self, lines: Lines, dtype: torch.dtype, lanes: int) -> None:
        self.lines, self.dtype, self.lanes = lines, dtype, lanes
        self.element = REGISTERS[dtype]
        self.bits = BITS[self.element]
        self.kind = llvm_type(self.element, lanes)
        self.truth = llvm_type("i1", lanes)
        self.is_signed = dtype.is_signed

    def do(self, instruction: str, a: str, b: str) -> str:
        return self.lines.new(f"{instruction} {self.kind} {a}, {b}")

    def compare(self, how: str, a: str, b: str) -> str:
        how = COMPARISONS[how]
        return self.do(f"icmp {how if self.is_signed else how.replace('s', 'u', 1)}", a, b)

    def constant(self, value: int) -> str:
        return constant(value, self.dtype, self.lanes)

    def select(self, condition: str, yes: str, no: str) -> str:
        return self.lines.new(f"select {self.truth} {condition}, {self.kind} {yes}, {self.kind} {no}")

    def both(self, how: str, a: str, b: str) -> str:
        return self.lines.new(f"{how} {self.truth} {a}, {b}")


def operate(lines: Lines, name: str, operands: list[str], dtype: torch.dtype, lanes: int) -> str:
    i = Integers(lines, dtype, lanes)
    if name in UNCHANGED:
        return operands[0]
    if dtype is torch.bool:
        if name in TRUTH:
            return i.do(TRUTH[name], *operands)
        if name in ("neg", "abs", "sign", "relu", "square"):
            return operands[0]
    if name in ARITHMETIC:
        return i.do(ARITHMETIC[name], *operands)
    if name in COMPARISONS:
        return i.compare(name, *operands)
    return SPECIAL[name](i, *operands)


def absolute(i: Integers, a: str) -> str:
    if not i.is_signed:
        return a
    return i.select(i.compare("lt", a, i.constant(0)), i.do("sub", i.constant(0), a), a)


def sign(i: Integers, a: str) -> str:
    positive = i.select(i.compare("gt", a, i.constant(0)), i.constant(1), i.constant(0))
    return i.select(i.compare("lt", a, i.constant(0)), i.constant(-1), positive) if i.is_signed else positive


def extreme(how: str) -> Callable[..., str]:
    return lambda i, a, b: i.select(i.compare(how, a, b), a, b)


def shifted_left(i: Integers, a: str, b: str) -> str:
    """0 where the shift is wider than the type."""
    inside = i.do("icmp ult", b, i.constant(i.bits))
    return i.select(inside, i.do("shl", a, i.select(inside, b, i.constant(0))), i.constant(0))


def shifted_right(i: Integers, a: str, b: str) -> str:
    inside = i.do("icmp ult", b, i.constant(i.bits))
    amount = i.select(inside, b, i.constant(i.bits - 1))
    moved = i.do("ashr" if i.is_signed else "lshr", a, amount)
    return moved if i.is_signed else i.select(inside, moved, i.constant(0))


def divided(i: Integers, a: str, b: str) -> tuple[str, str]:
    """The quotient, rounded towards 0, and the remainder."""
    if not i.is_signed:
        divisor = i.select(i.compare("eq", b, i.constant(0)), i.constant(1), b)
        quotient = i.do("udiv", a, divisor)
        return quotient, i.do("sub", a, i.do("mul", quotient, divisor))
    minus = i.compare("eq", b, i.constant(-1))
    odd = i.both("or", minus, i.compare("eq", b, i.constant(0)))
    divisor = i.select(odd, i.constant(1), b)
    quotient = i.do("sdiv", a, divisor) if i.bits == 64 else by_doubles(i, a, divisor)
    left = i.do("sub", a, i.do("mul", quotient, divisor))
    return i.select(minus, i.do("sub", i.constant(0), a), quotient), left


def by_doubles(i: Integers, a: str, divisor: str) -> str:
    """The quotient of integers of at most 32 bits, through doubles: exact, and vectorized."""
    if i.lines.is_for_gpu:
        return by_words(i, a, divisor)
    if i.lanes == 1:
        return i.do("sdiv", a, divisor)
    double = llvm_type("double", i.lanes)
    wide = [i.lines.new(f"sitofp {i.kind} {value} to {double}") for value in (a, divisor)]
    ratio = i.lines.new(f"fdiv {double} {wide[0]}, {wide[1]}")
    return i.lines.new(f"fptosi {double} {ratio} to {i.kind}")


def by_words(i: Integers, a: str, divisor: str) -> str:
    """The quotient in 32 bits, the width that GPUs divide in."""
    words = llvm_type("i32", i.lanes)
    wide = [a, divisor] if i.bits == 32 else [i.lines.new(f"sext {i.kind} {v} to {words}") for v in (a, divisor)]
    quotient = i.lines.new(f"sdiv {words} {wide[0]}, {wide[1]}")
    return quotient if i.bits == 32 else i.lines.new(f"trunc {words} {quotient} to {i.kind}")


def truncated_quotient(i: Integers, a: str, b: str) -> str:
    return divided(i, a, b)[0]


def truncated_remainder(i: Integers, a: str, b: str) -> str:
    return divided(i, a, b)[1]


def is_wrong_side(i: Integers, left: str, b: str) -> str:
    """Whether a remainder that is not 0 has another sign than the divisor."""
    nothing = i.constant(0)
    differ = i.compare("lt", i.do("xor", left, b), nothing)
    return i.both("and", i.compare("ne", left, nothing), differ)


def floored_quotient(i: Integers, a: str, b: str) -> str:
    quotient, left = divided(i, a, b)
    if not i.is_signed:
        return quotient
    return i.select(is_wrong_side(i, left, b), i.do("sub", quotient, i.constant(1)), quotient)


def floored_remainder(i: Integers, a: str, b: str) -> str:
    left = divided(i, a, b)[1]
    if not i.is_signed:
        return left
    return i.select(is_wrong_side(i, left, b), i.do("add", left, b), left)


def power(i: Integers, a: str, b: str) -> str:
    """By squaring. A negative power is 1 / a**|b|, truncated to an integer."""
    lines, kind = i.lines, i.kind
    before, head, after = lines.block, lines.fresh("power"), lines.fresh("powered")
    lines.branch(head)
    lines.label(head)
    result, base, left = (f"%{lines.fresh('p')}" for _ in range(3))
    place = len(lines.text)
    product = i.select(is_odd(i, left), i.do("mul", result, base), result)
    square, rest = i.do("mul", base, base), i.do("lshr", left, i.constant(1))
    more = i.compare("ne", rest, i.constant(0))
    if i.lanes > 1:
        more = lines.call(f"llvm.vector.reduce.or.v{i.lanes}i1", "i1", [(i.truth, more)])
    phis = [(result, i.constant(1), product), (base, a, square), (left, b, rest)]
    lines.text[place:place] = [
        f"{name} = phi {kind} [ {first}, %{before} ], [ {next_}, %{lines.block} ]" for name, first, next_ in phis
    ]
    lines.branch_if(more, head, after)
    lines.label(after)
    if not i.is_signed:
        return product
    is_unit = i.compare("eq", absolute(i, a), i.constant(1))
    sign_of_unit = i.select(is_odd(i, b), a, i.constant(1))
    small = i.select(is_unit, sign_of_unit, i.constant(0))
    return i.select(i.compare("lt", b, i.constant(0)), small, product)


def is_odd(i: Integers, a: str) -> str:
    return i.compare("ne", i.do("and", a, i.constant(1)), i.constant(0))


SPECIAL: dict[str, Callable[..., str]] = {
    "neg": lambda i, a: i.do("sub", i.constant(0), a),
    "abs": absolute,
    "sign": sign,
    "not": lambda i, a: i.do("xor", a, i.constant(-1 if i.bits > 1 else 1)),
    "relu": lambda i, a: i.select(i.compare("lt", a, i.constant(0)), i.constant(0), a),
    "square": lambda i, a: i.do("mul", a, a),
    "maximum": extreme("gt"),
    "minimum": extreme("lt"),
    "shl": shifted_left,
    "shr": shifted_right,
    "floordiv": floored_quotient,
    "div": truncated_quotient,
    "truncdiv": truncated_quotient,
    "remainder": floored_remainder,
    "fmod": truncated_remainder,
    "pow": power,
    "signbit": lambda i, a: i.compare("lt", a, i.constant(0)),
    "isnan": lambda i, a: i.do("icmp ne", a, a),
    "isinf": lambda i, a: i.do("icmp ne", a, a),
}
