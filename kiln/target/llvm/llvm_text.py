"""Lines of LLVM IR as they are written, and how types and constants are spelled in it.

Values are strings: the name of a register (``%v12``) or a constant (``splat (float 0x3FF0000000000000)``). A `Lines` is
one piece of code, such as what comes before a loop, or its body. The pieces of one function share a `Names`, grow
independently, and are joined in the end.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

import torch

# The types that values have in registers, as LLVM names them; the narrow ones are computed as float.
REGISTERS: dict[torch.dtype, str] = {
    torch.float64: "double",
    torch.float32: "float",
    torch.float16: "float",
    torch.bfloat16: "float",
    torch.float8_e4m3fn: "float",
    torch.float8_e5m2: "float",
    torch.float8_e4m3fnuz: "float",
    torch.float8_e5m2fnuz: "float",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "i8",
    torch.bool: "i1",
}
SUFFIXES = {"double": "f64", "float": "f32", "half": "f16"}


def llvm_type(element: str, lanes: int) -> str:
    """``float`` or ``<16 x float>``."""
    return element if lanes == 1 else f"<{lanes} x {element}>"


def suffix_of(element: str, lanes: int = 1) -> str:
    """How an intrinsic's name ends for a type: ``f32``, ``v16i64``."""
    name = "p0" if element == "ptr" else SUFFIXES.get(element, element)
    return name if lanes == 1 else f"v{lanes}{name}"


def literal(value: bool | int | float, dtype: torch.dtype) -> str:
    """A constant of a scalar type, without the type."""
    if dtype is torch.bool:
        return "true" if value else "false"
    if not dtype.is_floating_point:
        return str(wrapped(int(value), dtype))
    if dtype is torch.float64:
        return float_literal(float(value))
    return float_literal(rounded(float(value), dtype))


def wrapped(value: int, dtype: torch.dtype) -> int:
    bits = dtype.itemsize * 8
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) and dtype.is_signed else value


def rounded(value: float, dtype: torch.dtype) -> float:
    """A number as its type holds it."""
    if dtype is torch.float32 and math.isfinite(value):
        try:
            return float(struct.unpack("<f", struct.pack("<f", value))[0])
        except OverflowError:
            return math.copysign(math.inf, value)
    if dtype is torch.float32 or dtype is torch.float64:
        return value
    return float(torch.tensor(value, dtype=dtype).item())


def float_literal(value: float) -> str:
    """How LLVM spells a float or double constant: the bits of the double (NaNs are the quiet one)."""
    if value != value:
        return "0x7FF8000000000000"
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


def constant(value: bool | int | float, dtype: torch.dtype, lanes: int = 1) -> str:
    """A constant operand as it is in a register, without its type: a literal, or a vector of one literal."""
    text = literal(value, dtype)
    return text if lanes == 1 else f"splat ({REGISTERS[dtype]} {text})"


class Names:
    """What the pieces of one function share: fresh names, declarations, and whether it is for a GPU."""

    __slots__ = ("count", "declarations", "is_for_gpu")

    def __init__(self, declarations: dict[str, None] | None = None, is_for_gpu: bool = False) -> None:
        self.count = 0
        self.is_for_gpu = is_for_gpu
        self.declarations: dict[str, None] = {} if declarations is None else declarations

    def fresh(self, prefix: str = "v") -> str:
        self.count += 1
        return f"{prefix}{self.count}"


class Lines:
    """A piece of code. ``block`` is the label of the basic block that its end is in (for phis of what follows)."""

    __slots__ = ("names", "text", "block")

    def __init__(self, names: Names | None = None, block: str = "entry") -> None:
        self.names = Names() if names is None else names
        self.text: list[str] = []
        self.block = block

    @property
    def is_for_gpu(self) -> bool:
        return self.names.is_for_gpu

    def new(self, text: str) -> str:
        """Appends an instruction that has a result; returns the result's name."""
        names = self.names
        names.count += 1
        name = f"%v{names.count}"
        self.text.append(f"{name} = {text}")
        return name

    def add(self, text: str) -> None:
        self.text.append(text)

    def fresh(self, prefix: str = "b") -> str:
        """A name that nothing has yet, for labels."""
        return self.names.fresh(prefix)

    def label(self, name: str) -> None:
        """Begin a basic block. The one before must have been ended by a branch."""
        self.text.append(f"{name}:")
        self.block = name

    def branch(self, label: str) -> None:
        """End this block by going to another."""
        self.text.append(f"br label %{label}")

    def branch_if(self, condition: str, yes: str, no: str) -> None:
        self.text.append(f"br i1 {condition}, label %{yes}, label %{no}")

    def declare(self, text: str) -> None:
        """A declaration that the module needs: ``declare float @expf(float)``."""
        self.names.declarations[text] = None

    def call(self, function: str, result: str, arguments: Sequence[tuple[str, str]], flags: str = "") -> str:
        """Call a function by its whole name, declaring it; arguments are pairs of type and value."""
        self.declare(f"declare {result} @{function}({', '.join([kind for kind, _ in arguments])})")
        given = ", ".join([f"{kind} {value}" for kind, value in arguments])
        return self.new(f"call {flags}{result} @{function}({given})")

    def intrinsic(self, name: str, element: str, lanes: int, *operands: str, flags: str = "") -> str:
        """``llvm.fma`` and others whose operands and result are all of one type: element and lanes."""
        kind = llvm_type(element, lanes)
        function = f"llvm.{name}.{suffix_of(element, lanes)}"
        return self.call(function, kind, [(kind, operand) for operand in operands], flags)

    def splat(self, value: str, element: str, lanes: int) -> str:
        """One value in all lanes of a vector."""
        kind = llvm_type(element, lanes)
        first = self.new(f"insertelement {kind} poison, {element} {value}, i32 0")
        return self.new(f"shufflevector {kind} {first}, {kind} poison, <{lanes} x i32> zeroinitializer")

    def shuffled(self, kind: str, a: str, b: str, order: Sequence[int]) -> str:
        """Lanes of two vectors of one type; the lanes of the second are numbered after those of the first."""
        chosen = ", ".join([f"i32 {lane}" for lane in order])
        return self.new(f"shufflevector {kind} {a}, {kind} {b}, <{len(order)} x i32> <{chosen}>")
