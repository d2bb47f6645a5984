"""Arithmetic on vectors of floats as LLVM text: what the functions of this package are written in.

A `Vector` is no value: it writes instructions for one type and number of lanes into `Lines`. Values are the names of
registers. Nothing here lets LLVM reorder or contract floating-point operations.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import torch

from ....platform import cpu_info
from ..llvm_text import Lines, constant, llvm_type, suffix_of

# How rounding to an integer is done by adding: 1.5 times the power of two whose unit in the last place is one.
MAGIC = {"float": 1.5 * 2.0**23, "double": 1.5 * 2.0**52}


class Vector:
    """Writes operations on ``lanes`` values of float32 or float64; one lane is a scalar."""

    def __init__(self, lines: Lines, dtype: torch.dtype, lanes: int) -> None:
        self.lines, self.dtype, self.lanes = lines, dtype, lanes
        self.is_double = dtype is torch.float64
        self.element = "double" if self.is_double else "float"
        self.integer = "i64" if self.is_double else "i32"
        self.fraction_bits = 52 if self.is_double else 23
        self.bias = 1023 if self.is_double else 127
        self.kind = llvm_type(self.element, lanes)
        self.integers = llvm_type(self.integer, lanes)
        self.masks = llvm_type("i1", lanes)

    # ---- constants ---------------------------------------------------------------------------------------------------

    def const(self, value: float) -> str:
        return constant(value, self.dtype, self.lanes)

    def int_const(self, value: int) -> str:
        return constant(value, torch.int64 if self.is_double else torch.int32, self.lanes)

    def bits_of(self, value: float) -> int:
        """The bits of a number of this type."""
        number, whole = ("<d", "<q") if self.is_double else ("<f", "<i")
        return int(struct.unpack(whole, struct.pack(number, value))[0])

    def _operand(self, value: str | float) -> str:
        return value if isinstance(value, str) else self.const(value)

    def _integer(self, value: str | int) -> str:
        return value if isinstance(value, str) else self.int_const(value)

    # ---- floats ------------------------------------------------------------------------------------------------------

    def _binary(self, name: str, a: str | float, b: str | float) -> str:
        return self.lines.new(f"{name} {self.kind} {self._operand(a)}, {self._operand(b)}")

    def add(self, a: str | float, b: str | float) -> str:
        return self._binary("fadd", a, b)

    def sub(self, a: str | float, b: str | float) -> str:
        return self._binary("fsub", a, b)

    def mul(self, a: str | float, b: str | float) -> str:
        return self._binary("fmul", a, b)

    def div(self, a: str | float, b: str | float) -> str:
        return self._binary("fdiv", a, b)

    def neg(self, a: str) -> str:
        return self.lines.new(f"fneg {self.kind} {a}")

    def intrinsic(self, name: str, *operands: str | float) -> str:
        return self.lines.intrinsic(name, self.element, self.lanes, *map(self._operand, operands))

    def fma(self, a: str | float, b: str | float, c: str | float) -> str:
        """a·b + c, rounded once."""
        return self.intrinsic("fma", a, b, c)

    def abs(self, a: str) -> str:
        return self.intrinsic("fabs", a)

    def sqrt(self, a: str) -> str:
        return self.intrinsic("sqrt", a)

    def copysign(self, a: str | float, sign: str) -> str:
        return self.intrinsic("copysign", a, sign)

    def polynomial(self, x: str, coefficients: Sequence[float]) -> str:
        """By Horner's rule; coefficients from the constant one on."""
        result = self.const(coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            result = self.fma(result, x, coefficient)
        return result

    # ---- comparisons -------------------------------------------------------------------------------------------------

    def compare(self, how: str, a: str | float, b: str | float) -> str:
        return self.lines.new(f"fcmp {how} {self.kind} {self._operand(a)}, {self._operand(b)}")

    def select(self, mask: str, a: str | float, b: str | float) -> str:
        a, b = self._operand(a), self._operand(b)
        return self.lines.new(f"select {self.masks} {mask}, {self.kind} {a}, {self.kind} {b}")

    def select_integer(self, mask: str, a: str | int, b: str | int) -> str:
        a, b = self._integer(a), self._integer(b)
        return self.lines.new(f"select {self.masks} {mask}, {self.integers} {a}, {self.integers} {b}")

    def at_most(self, a: str, limit: str | float) -> str:
        """The lesser; NaN stays."""
        return self.select(self.compare("ogt", a, limit), limit, a)

    def at_least(self, a: str, limit: str | float) -> str:
        return self.select(self.compare("olt", a, limit), limit, a)

    def mask_and(self, a: str, b: str) -> str:
        return self.lines.new(f"and {self.masks} {a}, {b}")

    def mask_or(self, a: str, b: str) -> str:
        return self.lines.new(f"or {self.masks} {a}, {b}")

    # ---- bits --------------------------------------------------------------------------------------------------------

    def bits(self, a: str) -> str:
        return self.lines.new(f"bitcast {self.kind} {a} to {self.integers}")

    def from_bits(self, a: str) -> str:
        return self.lines.new(f"bitcast {self.integers} {a} to {self.kind}")

    def integer_op(self, name: str, a: str | int, b: str | int) -> str:
        """add, sub, and, or, xor, shl, lshr, ashr, mul"""
        return self.lines.new(f"{name} {self.integers} {self._integer(a)}, {self._integer(b)}")

    def integer_compare(self, how: str, a: str | int, b: str | int) -> str:
        return self.lines.new(f"icmp {how} {self.integers} {self._integer(a)}, {self._integer(b)}")

    def is_negative(self, a: str) -> str:
        """Whether the sign is set, that of zeros and NaN included."""
        return self.integer_compare("slt", self.bits(a), 0)

    def exclusive_sign(self, a: str, sign: str) -> str:
        """a with its sign turned where the other's is set."""
        turn = self.integer_op("and", self.bits(sign), self.bits_of(-0.0))
        return self.from_bits(self.integer_op("xor", self.bits(a), turn))

    def round_scaled(self, x: str, factor: float) -> tuple[str, str]:
        """x·factor rounded to an integer: as a float and as an integer. For results below 2^22 (2^51) in size; of NaN,
        some integer. (A conversion to integers would have no defined result there.)"""
        magic = MAGIC[self.element]
        shifted = self.fma(x, factor, magic)
        whole = self.integer_op("sub", self.bits(shifted), self.bits_of(magic))
        return self.sub(shifted, magic), whole

    def to_float(self, whole: str) -> str:
        """A small integer (|n| < 2^22) as a float."""
        magic = MAGIC[self.element]
        return self.sub(self.from_bits(self.integer_op("add", whole, self.bits_of(magic))), magic)

    def scale(self, a: str, power: str) -> str:
        """a·2^power, rounded once; powers between -2 and 2 times the exponents that numbers have."""
        if not self.lines.is_for_gpu and cpu_info.has_scale_instruction():
            words = llvm_type("i32", self.lanes)
            if self.is_double:
                power = self.lines.new(f"trunc {self.integers} {power} to {words}")
            name = f"llvm.ldexp.{suffix_of(self.element, self.lanes)}.{suffix_of('i32', self.lanes)}"
            return self.lines.call(name, self.kind, [(self.kind, a), (words, power)])
        half = self.integer_op("ashr", power, 1)
        first = self.mul(a, self.power_of_two(half))
        return self.mul(first, self.power_of_two(self.integer_op("sub", power, half)))

    def power_of_two(self, power: str) -> str:
        """2^power, for the exponents of normal numbers."""
        return self.from_bits(self.integer_op("shl", self.integer_op("add", power, self.bias), self.fraction_bits))

    # ---- other widths ------------------------------------------------------------------------------------------------

    def doubled(self) -> Vector:
        """The same lanes as float64."""
        return Vector(self.lines, torch.float64, self.lanes)

    def widen(self, a: str) -> str:
        return self.lines.new(f"fpext {self.kind} {a} to {llvm_type('double', self.lanes)}")

    def narrow(self, a: str) -> str:
        """A float64 value as float32."""
        return self.lines.new(f"fptrunc {llvm_type('double', self.lanes)} {a} to {self.kind}")

    # ---- control -----------------------------------------------------------------------------------------------------

    def any(self, mask: str) -> str:
        """Whether any lane is true, as one i1."""
        if self.lanes == 1:
            return mask
        return self.lines.call(f"llvm.vector.reduce.or.v{self.lanes}i1", "i1", [(self.masks, mask)])

    def if_any(self, mask: str, otherwise: str, seldom: Callable[[], str]) -> str:
        """``otherwise``, and in the lanes of the mask what ``seldom`` computes: if any is true. (The other lanes keep
        theirs, or a result would depend on its neighbours.)"""
        return self.branch_if_any(mask, [self.kind], [otherwise], lambda: [self.select(mask, seldom(), otherwise)])[0]

    def branch_if_any(
        self, mask: str, kinds: Sequence[str], otherwise: Sequence[str], seldom: Callable[[], Sequence[str]]
    ) -> list[str]:
        """Values of these types: what ``seldom`` computes if any lane of the mask is true, else those given."""
        lines = self.lines
        slow, done = lines.fresh("seldom"), lines.fresh("done")
        before = lines.block
        lines.branch_if(self.any(mask), slow, done)
        lines.label(slow)
        replaced = seldom()
        after = lines.block
        lines.branch(done)
        lines.label(done)
        return [
            lines.new(f"phi {kind} [ {usual}, %{before} ], [ {other}, %{after} ]")
            for kind, usual, other in zip(kinds, otherwise, replaced, strict=True)
        ]

    def each_lane(self, function: str, operands: Sequence[str]) -> str:
        """A function of the C library, lane by lane."""
        lines = self.lines
        if self.lanes == 1:
            return lines.call(function, self.element, [(self.element, operand) for operand in operands])
        result = "poison"
        for lane in range(self.lanes):
            parts = [lines.new(f"extractelement {self.kind} {operand}, i64 {lane}") for operand in operands]
            one = lines.call(function, self.element, [(self.element, part) for part in parts])
            result = lines.new(f"insertelement {self.kind} {result}, {self.element} {one}, i64 {lane}")
        return result
