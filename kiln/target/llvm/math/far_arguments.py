"""Angles and quotients that are too large for arithmetic on floats, in integers: what the C library does on CPUs.

Each is a function of the module on single values of float64, called for the lanes that need it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch

from ..llvm_text import Lines, Names, float_literal
from .vector import Vector

WORDS = 21  # of 2/π: 64 zeros before it, then 1,088 bits for the largest exponent, and 192 behind them
ANGLE = "kiln.far_angle"
FMOD = "kiln.far_fmod"
HALF_PI = (1.5707963267948966, 6.123233995736766e-17)


@lru_cache(None)
def two_over_pi(words: int) -> tuple[int, ...]:
    """2/π as words of 64 bits, the first of which is 0. π is Machin's sum of arctangents."""
    bits = 64 * (words - 1)
    one = 1 << (bits + 64)

    def arctangent(inverse: int) -> int:
        power, total, divisor = one // inverse, 0, 1
        while power:
            total += power // divisor if divisor % 4 == 1 else -(power // divisor)
            power //= inverse * inverse
            divisor += 2
        return total

    pi = 4 * (4 * arctangent(5) - arctangent(239))
    value = ((one << (bits + 1)) // pi) & ((1 << bits) - 1)
    return 0, *((value >> (bits - 64 * word)) & (2**64 - 1) for word in range(1, words))


def parts(lines: Lines, value: str) -> tuple[str, str]:
    """A positive float64 as a product of integers: its fraction, and the power of two that it is multiplied by."""
    bits = lines.new(f"bitcast double {value} to i64")
    field = lines.new(f"lshr i64 {bits}, 52")
    fraction = lines.new(f"and i64 {bits}, {2**52 - 1}")
    is_normal = lines.new(f"icmp ne i64 {field}, 0")
    whole = lines.new(f"or i64 {fraction}, {2**52}")
    fraction = lines.new(f"select i1 {is_normal}, i64 {whole}, i64 {fraction}")
    field = lines.new(f"select i1 {is_normal}, i64 {field}, i64 1")
    return fraction, lines.new(f"sub i64 {field}, 1075")


def defined(text: Sequence[str], head: str, result: str) -> str:
    body = "\n  ".join([*text, f"ret {result}"])
    return f"define internal {head} nounwind {{\nentry:\n  {body}\n}}"


# ---- angles ----------------------------------------------------------------------------------------------------------


@lru_cache(None)
def angle_text(is_for_gpu: bool) -> tuple[str, ...]:
    """``{double, double, i64} far_angle(double)``: of an angle of 2^22 or more, what is left in two parts after the
    nearest multiple of π/2, and that multiple modulo 4.

    Payne and Hanek's way: the fraction of the angle times those 192 bits of 2/π that count. Bits before them make
    multiples of 4.
    """
    lines = Lines(Names(is_for_gpu=is_for_gpu))
    fraction, power = parts(lines, "%a")
    first = lines.new(f"add i64 {power}, 62")
    place = lines.new(f"lshr i64 {first}, 6")
    shift = lines.new(f"and i64 {first}, 63")
    words = []
    for word in range(4):
        index = lines.new(f"add i64 {place}, {word}")
        address = lines.new(f"getelementptr i64, ptr {table(lines)}, i64 {index}")
        words.append(lines.new(f"load i64, ptr {address}, align 8"))
    window = [
        lines.call("llvm.fshl.i64", "i64", [("i64", words[word]), ("i64", words[word + 1]), ("i64", shift)])
        for word in range(3)
    ]
    wide = lines.new(f"zext i64 {fraction} to i128")
    products = [lines.new(f"mul i128 {wide}, {lines.new(f'zext i64 {word} to i128')}") for word in window]
    middle = lines.new(f"add i128 {products[1]}, {lines.new(f'lshr i128 {products[2]}, 64')}")
    low = lines.new(f"and i128 {middle}, {2**64 - 1}")
    high = lines.new(f"add i128 {products[0]}, {lines.new(f'lshr i128 {middle}, 64')}")
    turns = lines.new(f"or i128 {lines.new(f'shl i128 {high}, 64')}, {low}")  # in units of 2^-126 of π/2
    rounded = lines.new(f"add i128 {turns}, {2**125}")
    whole = lines.new(f"lshr i128 {rounded}, 126")
    rest = lines.new(f"sub i128 {turns}, {lines.new(f'shl i128 {whole}, 126')}")
    remainder = angle_parts(lines, rest)
    results = [("double", remainder[0]), ("double", remainder[1]), ("i64", lines.new(f"trunc i128 {whole} to i64"))]
    made = "poison"
    for number, (kind, value) in enumerate(results):
        made = lines.new(f"insertvalue {{double, double, i64}} {made}, {kind} {value}, {number}")
    text = defined(lines.text, f"{{double, double, i64}} @{ANGLE}(double %a)", f"{{double, double, i64}} {made}")
    return (*lines.names.declarations, text)


def angle_parts(lines: Lines, rest: str) -> tuple[str, str]:
    """A signed number of 2^-126 of π/2, as a sum of two float64."""
    v = Vector(lines, torch.float64, 1)
    negative = lines.new(f"icmp slt i128 {rest}, 0")
    size = lines.new(f"select i1 {negative}, i128 {lines.new(f'sub i128 0, {rest}')}, i128 {rest}")
    zeros = lines.call("llvm.ctlz.i128", "i128", [("i128", size), ("i1", "false")])
    size = lines.new(f"shl i128 {size}, {zeros}")
    top = lines.new(f"trunc i128 {lines.new(f'lshr i128 {size}, 75')} to i64")  # 53 bits
    after = lines.new(f"trunc i128 {lines.new(f'lshr i128 {size}, 11')} to i64")  # the next 64
    scale = v.power_of_two(v.integer_op("sub", 2, lines.new(f"trunc i128 {zeros} to i64")))
    scale = v.select(negative, v.neg(scale), scale)
    high = v.mul(v.mul(lines.new(f"uitofp i64 {top} to double"), 2.0**-53), scale)
    low = v.mul(v.mul(lines.new(f"uitofp i64 {after} to double"), 2.0**-117), scale)
    product = v.mul(high, HALF_PI[0])
    lost = v.add(v.fma(high, HALF_PI[0], v.neg(product)), v.fma(high, HALF_PI[1], v.mul(low, HALF_PI[0])))
    total = v.add(product, lost)
    return total, v.sub(lost, v.sub(total, product))


def table(lines: Lines) -> str:
    words = ", ".join(f"i64 {word}" for word in two_over_pi(WORDS))
    if not lines.is_for_gpu:
        lines.declare(f"@kiln.two_over_pi = internal constant [{WORDS} x i64] [{words}], align 8")
        return "@kiln.two_over_pi"
    lines.declare(f"@kiln_two_over_pi = internal addrspace(1) constant [{WORDS} x i64] [{words}], align 8")
    return "addrspacecast (ptr addrspace(1) @kiln_two_over_pi to ptr)"


def far_angle(wide: Vector, a: str) -> tuple[str, str, str]:
    """Of float64 angles: the remainder in two parts, and the multiple of π/2."""
    lines = wide.lines
    for text in angle_text(lines.is_for_gpu):
        lines.declare(text)
    kinds = (("double", wide.kind), ("double", wide.kind), ("i64", wide.integers))
    found = ["poison"] * 3
    for lane in range(wide.lanes):
        one = a if wide.lanes == 1 else lines.new(f"extractelement {wide.kind} {a}, i64 {lane}")
        made = lines.new(f"call {{double, double, i64}} @{ANGLE}(double {one})")
        for number, (element, kind) in enumerate(kinds):
            part = lines.new(f"extractvalue {{double, double, i64}} {made}, {number}")
            if wide.lanes > 1:
                part = lines.new(f"insertelement {kind} {found[number]}, {element} {part}, i64 {lane}")
            found[number] = part
    return found[0], found[1], found[2]


# ---- remainders ------------------------------------------------------------------------------------------------------


@lru_cache(None)
def fmod_text() -> tuple[str, ...]:
    """``double far_fmod(double a, double b)`` for positive arguments, a ≥ b: long division of the fractions, 11 bits
    at a time. NaN if a is infinite or b is zero."""
    lines = Lines(Names())
    v = Vector(lines, torch.float64, 1)
    above, above_power = parts(lines, "%a")
    below, below_power = parts(lines, "%b")
    is_zero = lines.new(f"icmp eq i64 {below}, 0")
    below = lines.new(f"select i1 {is_zero}, i64 1, i64 {below}")
    first = lines.new(f"urem i64 {above}, {below}")
    bits = lines.new(f"sub i64 {above_power}, {below_power}")
    before, head, after = lines.block, lines.fresh("divide"), lines.fresh("divided")
    some = lines.new(f"icmp sgt i64 {bits}, 0")
    lines.branch_if(some, head, after)
    lines.label(head)
    rest, left, next_rest, next_left = (f"%{lines.fresh('d')}" for _ in range(4))
    lines.add(f"{rest} = phi i64 [ {first}, %{before} ], [ {next_rest}, %{head} ]")
    lines.add(f"{left} = phi i64 [ {bits}, %{before} ], [ {next_left}, %{head} ]")
    step = lines.call("llvm.umin.i64", "i64", [("i64", left), ("i64", "11")])
    lines.add(f"{next_rest} = urem i64 {lines.new(f'shl i64 {rest}, {step}')}, {below}")
    lines.add(f"{next_left} = sub i64 {left}, {step}")
    more = lines.new(f"icmp sgt i64 {next_left}, 0")
    lines.branch_if(more, head, after)
    lines.label(after)
    rest = lines.new(f"phi i64 [ {first}, %{before} ], [ {next_rest}, %{head} ]")
    # Half the power at a time: the power itself may be that of a denormal number.
    number = lines.new(f"uitofp i64 {rest} to double")
    half = v.integer_op("ashr", below_power, 1)
    result = v.mul(v.mul(number, v.power_of_two(half)), v.power_of_two(v.integer_op("sub", below_power, half)))
    is_finite = v.compare("olt", "%a", float("inf"))
    is_defined = v.mask_and(is_finite, v.compare("ogt", "%b", 0.0))
    result = lines.new(f"select i1 {is_defined}, double {result}, double {float_literal(float('nan'))}")
    text = defined(lines.text, f"double @{FMOD}(double %a, double %b)", f"double {result}")
    return (*lines.names.declarations, text)


def far_fmod(v: Vector, a: str, b: str) -> str:
    """The remainder of positive numbers, of any quotient that is at least 1."""
    lines = v.lines
    for text in fmod_text():
        lines.declare(text)
    wide = (a, b) if v.is_double else (v.widen(a), v.widen(b))
    kind, found = v.doubled().kind, "poison"
    for lane in range(v.lanes):
        given = [one if v.lanes == 1 else lines.new(f"extractelement {kind} {one}, i64 {lane}") for one in wide]
        one = lines.new(f"call double @{FMOD}(double {given[0]}, double {given[1]})")
        found = one if v.lanes == 1 else lines.new(f"insertelement {kind} {found}, double {one}, i64 {lane}")
    return found if v.is_double else v.narrow(found)
