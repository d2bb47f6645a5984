"""The types of values in memory and in registers, and casts between them.

float16, bfloat16 and float8 are float in registers, always rounded to their own precision. bool is i1 in registers and
a byte in memory. Casts are those of ATen on x86: a float out of an integer's range becomes what the CPU's instructions
give.
"""

from __future__ import annotations

import torch

from . import float8
from .llvm_text import REGISTERS, Lines, constant, llvm_type

MEMORY: dict[torch.dtype, str] = REGISTERS | {torch.float16: "half", torch.bfloat16: "i16", torch.bool: "i8"}
MEMORY |= dict.fromkeys(float8.FORMATS, "i8")
HALF_TYPES = frozenset((torch.float16, torch.bfloat16, *float8.FORMATS))  # that registers hold as float
BITS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64}


def register_type(dtype: torch.dtype, lanes: int) -> str:
    return llvm_type(REGISTERS[dtype], lanes)


def compute_type(dtype: torch.dtype) -> torch.dtype:
    """In which type arithmetic on a type is done."""
    return torch.float32 if dtype in HALF_TYPES else dtype


# ---- memory ----------------------------------------------------------------------------------------------------------


def from_memory(lines: Lines, value: str, dtype: torch.dtype, lanes: int) -> str:
    """What was loaded, as it is in a register."""
    if dtype is torch.bool:
        return lines.new(f"icmp ne {llvm_type('i8', lanes)} {value}, {constant(0, torch.uint8, lanes)}")
    if dtype is torch.float16:
        return lines.new(f"fpext {llvm_type('half', lanes)} {value} to {llvm_type('float', lanes)}")
    if dtype is torch.bfloat16 and lines.is_for_gpu:
        narrow = lines.new(f"bitcast {llvm_type('i16', lanes)} {value} to {llvm_type('bfloat', lanes)}")
        return lines.new(f"fpext {llvm_type('bfloat', lanes)} {narrow} to {llvm_type('float', lanes)}")
    if dtype is torch.bfloat16:
        wide = lines.new(f"zext {llvm_type('i16', lanes)} {value} to {llvm_type('i32', lanes)}")
        high = lines.new(f"shl {llvm_type('i32', lanes)} {wide}, {constant(16, torch.int32, lanes)}")
        return lines.new(f"bitcast {llvm_type('i32', lanes)} {high} to {llvm_type('float', lanes)}")
    if dtype in float8.FORMATS:
        return float8.decoded(lines, value, dtype, lanes)
    return value


def to_memory(lines: Lines, value: str, dtype: torch.dtype, lanes: int) -> str:
    """A register's value as it is stored."""
    if dtype is torch.bool:
        return lines.new(f"zext {llvm_type('i1', lanes)} {value} to {llvm_type('i8', lanes)}")
    if dtype is torch.float16:
        return lines.new(f"fptrunc {llvm_type('float', lanes)} {value} to {llvm_type('half', lanes)}")
    if dtype is torch.bfloat16 and lines.is_for_gpu:
        narrow = lines.new(f"fptrunc {llvm_type('float', lanes)} {value} to {llvm_type('bfloat', lanes)}")
        return lines.new(f"bitcast {llvm_type('bfloat', lanes)} {narrow} to {llvm_type('i16', lanes)}")
    if dtype is torch.bfloat16:
        bits = lines.new(f"bitcast {llvm_type('float', lanes)} {value} to {llvm_type('i32', lanes)}")
        high = lines.new(f"lshr {llvm_type('i32', lanes)} {bits}, {constant(16, torch.int32, lanes)}")
        return lines.new(f"trunc {llvm_type('i32', lanes)} {high} to {llvm_type('i16', lanes)}")
    if dtype in float8.FORMATS:
        return float8.encoded(lines, value, dtype, lanes)
    return value


def rounded(lines: Lines, value: str, dtype: torch.dtype, lanes: int) -> str:
    """A float32 rounded to what a narrow type holds (to nearest, ties to even), still in a float register."""
    if dtype in float8.FORMATS:
        return from_memory(lines, to_memory(lines, value, dtype, lanes), dtype, lanes)
    wide = llvm_type("float", lanes)
    if dtype is torch.float16 or lines.is_for_gpu:
        half = llvm_type("half" if dtype is torch.float16 else "bfloat", lanes)
        narrow = lines.new(f"fptrunc {wide} {value} to {half}")
        return lines.new(f"fpext {half} {narrow} to {wide}")
    # bfloat16 in integers: the machine's own instruction takes denormals for zero.
    whole = llvm_type("i32", lanes)
    bits = lines.new(f"bitcast {wide} {value} to {whole}")
    last = lines.new(f"lshr {whole} {bits}, {constant(16, torch.int32, lanes)}")
    odd = lines.new(f"and {whole} {last}, {constant(1, torch.int32, lanes)}")
    bias = lines.new(f"add {whole} {odd}, {constant(0x7FFF, torch.int32, lanes)}")
    moved = lines.new(f"add {whole} {bits}, {bias}")
    cut = lines.new(f"and {whole} {moved}, {constant(-0x10000, torch.int32, lanes)}")
    back = lines.new(f"bitcast {whole} {cut} to {wide}")
    is_nan = lines.new(f"fcmp uno {wide} {value}, {value}")
    quiet = constant(float("nan"), torch.float32, lanes)
    return lines.new(f"select {llvm_type('i1', lanes)} {is_nan}, {wide} {quiet}, {wide} {back}")


# ---- casts -----------------------------------------------------------------------------------------------------------


def cast(lines: Lines, value: str, source: torch.dtype, target: torch.dtype, lanes: int) -> str:
    if source is target:
        return value
    if target is torch.bool:
        return to_bool(lines, value, source, lanes)
    if source.is_floating_point:
        if target.is_floating_point:
            return float_to_float(lines, value, source, target, lanes)
        return float_to_integer(lines, value, source, target, lanes)
    if target.is_floating_point:
        return integer_to_float(lines, value, source, target, lanes)
    return resized(lines, value, source, REGISTERS[target], lanes)


def to_bool(lines: Lines, value: str, source: torch.dtype, lanes: int) -> str:
    compare = "fcmp une" if source.is_floating_point else "icmp ne"
    return lines.new(f"{compare} {register_type(source, lanes)} {value}, {constant(0, source, lanes)}")


def float_to_float(lines: Lines, value: str, source: torch.dtype, target: torch.dtype, lanes: int) -> str:
    if source is torch.float64:
        value = lines.new(f"fptrunc {llvm_type('double', lanes)} {value} to {llvm_type('float', lanes)}")
    if target is torch.float64:
        return lines.new(f"fpext {llvm_type('float', lanes)} {value} to {llvm_type('double', lanes)}")
    return rounded(lines, value, target, lanes) if target in HALF_TYPES else value


def float_to_integer(lines: Lines, value: str, source: torch.dtype, target: torch.dtype, lanes: int) -> str:
    """By the machine's conversion to int32, or to int64 (and for uint8, whose negative numbers wrap), then cut off."""
    through = "i64" if target in (torch.int64, torch.uint8) else "i32"
    whole = lines.new(f"fptosi {register_type(source, lanes)} {value} to {llvm_type(through, lanes)}")
    if REGISTERS[target] == through:
        return whole
    return lines.new(f"trunc {llvm_type(through, lanes)} {whole} to {register_type(target, lanes)}")


def integer_to_float(lines: Lines, value: str, source: torch.dtype, target: torch.dtype, lanes: int) -> str:
    wide = llvm_type("double" if target is torch.float64 else "float", lanes)
    if REGISTERS[source] in ("i1", "i8", "i16"):
        value, source = resized(lines, value, source, "i32", lanes), torch.int32
    number = lines.new(f"sitofp {register_type(source, lanes)} {value} to {wide}")
    return rounded(lines, number, target, lanes) if target in HALF_TYPES else number


def resized(lines: Lines, value: str, source: torch.dtype, target: str, lanes: int) -> str:
    """An integer of another width: truncated, or extended by its sign."""
    element = REGISTERS[source]
    if element == target:
        return value
    if BITS[target] < BITS[element]:
        how = "trunc"
    else:
        how = "sext" if source.is_signed and source is not torch.bool else "zext"
    return lines.new(f"{how} {llvm_type(element, lanes)} {value} to {llvm_type(target, lanes)}")


def bitcast(lines: Lines, value: str, source: torch.dtype, target: torch.dtype, lanes: int) -> str:
    """The same bits read as another type of the same size."""
    value = to_memory(lines, value, source, lanes)
    before, after = llvm_type(MEMORY[source], lanes), llvm_type(MEMORY[target], lanes)
    if before != after:
        value = lines.new(f"bitcast {before} {value} to {after}")
    return from_memory(lines, value, target, lanes)
