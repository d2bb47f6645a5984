"""float8 in memory and in registers, where it is a float that always holds a number of its own type.

Conversions are ATen's: to nearest, ties to even; a number that is too large becomes infinite, or NaN where the type has
no infinity. Of e4m3fn, torch from 2.12 on makes the largest number instead. The types with "uz" in their names have one
zero, and NaN in the place of the other.
"""

from __future__ import annotations

import torch

from ...platform.light_dataclass import dataclass
from .llvm_text import Lines, float_literal, llvm_type


@dataclass(frozen=True)
class Format:
    fraction_bits: int
    bias: int
    limit: float  # what is not below it does not fit, not even rounded
    beyond: int  # the code of what does not fit
    nan: int  # the code of NaN; with infinity, the largest of several
    is_unsigned_zero: bool = False
    has_infinity: bool = False

    @property
    def least_normal(self) -> float:
        return 2.0 ** (1 - self.bias)


SATURATES = not torch.tensor(1e30).to(torch.float8_e4m3fn).float().isnan().item()
FORMATS: dict[torch.dtype, Format] = {
    torch.float8_e4m3fn: Format(3, 7, 448.0, 0x7E, 0x7F) if SATURATES else Format(3, 7, 480.0, 0x7F, 0x7F),
    torch.float8_e5m2: Format(2, 15, 65536.0, 0x7C, 0x7F, has_infinity=True),
    torch.float8_e4m3fnuz: Format(3, 8, 256.0, 0x80, 0x80, is_unsigned_zero=True),
    torch.float8_e5m2fnuz: Format(2, 16, 65536.0, 0x80, 0x80, is_unsigned_zero=True),
}
SIGN = -(1 << 31)


class Codes:
    """Writes instructions on vectors of float and of 32-bit integers."""

    def __init__(self, lines: Lines, lanes: int) -> None:
        self.lines, self.lanes = lines, lanes
        self.floats, self.words, self.masks = (llvm_type(kind, lanes) for kind in ("float", "i32", "i1"))

    def number(self, value: int | float | str) -> str:
        if isinstance(value, str):
            return value
        kind, text = ("float", float_literal(value)) if isinstance(value, float) else ("i32", str(value))
        return text if self.lanes == 1 else f"splat ({kind} {text})"

    def do(self, name: str, a: int | str, b: int | str) -> str:
        return self.lines.new(f"{name} {self.words} {self.number(a)}, {self.number(b)}")

    def compute(self, name: str, a: float | str, b: float | str) -> str:
        return self.lines.new(f"{name} {self.floats} {self.number(a)}, {self.number(b)}")

    def select(self, mask: str, a: int | str, b: int | str) -> str:
        return self.lines.new(
            f"select {self.masks} {mask}, {self.words} {self.number(a)}, {self.words} {self.number(b)}"
        )

    def bits(self, value: str) -> str:
        return self.lines.new(f"bitcast {self.floats} {value} to {self.words}")

    def from_bits(self, value: str) -> str:
        return self.lines.new(f"bitcast {self.words} {value} to {self.floats}")


def encoded(lines: Lines, value: str, dtype: torch.dtype, lanes: int) -> str:
    """The codes (bytes) of floats."""
    form, c = FORMATS[dtype], Codes(lines, lanes)
    bits = c.bits(value)
    size = c.do("and", bits, 0x7FFFFFFF)
    shift = 23 - form.fraction_bits
    odd = c.do("and", c.do("lshr", size, shift), 1)
    rounded = c.do("add", c.do("add", size, (1 << (shift - 1)) - 1), odd)
    normal = c.do("sub", c.do("lshr", rounded, shift), (127 - form.bias) << form.fraction_bits)
    # The last place of a denormal number is that of this one, to which it is added.
    large = 2.0 ** (1 - form.bias - form.fraction_bits + 23)
    added = c.bits(c.compute("fadd", c.from_bits(size), large))
    denormal = c.do("sub", added, c.bits(c.number(large)))
    small = c.compute("fcmp olt", c.from_bits(size), form.least_normal)
    code = c.select(small, denormal, normal)
    code = c.select(c.compute("fcmp uge", c.from_bits(size), form.limit), form.beyond, code)
    if form.nan != form.beyond:
        code = c.select(c.compute("fcmp uno", value, value), form.nan, code)
    sign = c.do("and", c.do("lshr", bits, 24), 0x80)
    if form.is_unsigned_zero:
        sign = c.select(c.do("icmp eq", code, 0), 0, sign)
    return lines.new(f"trunc {c.words} {c.do('or', code, sign)} to {llvm_type('i8', lanes)}")


def decoded(lines: Lines, value: str, dtype: torch.dtype, lanes: int) -> str:
    """The floats of codes."""
    form, c = FORMATS[dtype], Codes(lines, lanes)
    code = lines.new(f"zext {llvm_type('i8', lanes)} {value} to {c.words}")
    size = c.do("and", code, 0x7F)
    normal = c.do("add", c.do("shl", size, 23 - form.fraction_bits), (127 - form.bias) << 23)
    count = lines.new(f"uitofp {c.words} {size} to {c.floats}")
    denormal = c.bits(c.compute("fmul", count, 2.0 ** (1 - form.bias - form.fraction_bits)))
    bits = c.select(c.do("icmp ult", size, 1 << form.fraction_bits), denormal, normal)
    nan = 0x7FC00000
    if form.has_infinity:
        bits = c.select(c.do("icmp eq", size, form.beyond), 0x7F800000, bits)
        bits = c.select(c.do("icmp ugt", size, form.beyond), nan, bits)
    elif not form.is_unsigned_zero:
        bits = c.select(c.do("icmp eq", size, form.nan), nan, bits)
    bits = c.do("or", bits, c.do("and", c.do("shl", code, 24), SIGN))
    if form.is_unsigned_zero:
        bits = c.select(c.do("icmp eq", code, form.nan), nan, bits)
    return c.from_bits(bits)
