"""Reductions and scans in registers: first values, steps, and the final combination.

A reduction is carried through its loops in one or more registers: one for each copy of a vector body, so that additions
do not wait for one another; argmax and argmin carry the value and its place.
"""

from __future__ import annotations

import torch

from kiln.loops.kernel import Reduction

from .llvm_text import REGISTERS, Lines, constant, llvm_type, suffix_of
from .operations import operate
from .value_types import HALF_TYPES, compute_type, register_type, rounded

OPERATIONS = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum", "any": "or", "all": "and"}


def start(reduction: Reduction, lanes: int) -> list[tuple[str, str]]:
    """The registers that a reduction is carried in, as pairs of type and first value."""
    dtype = reduction.value.dtype
    first = constant(first_value(reduction.kind.removeprefix("arg"), dtype), dtype, lanes)
    found = [(register_type(dtype, lanes), first)]
    if reduction.position is not None:
        found.append((llvm_type("i64", lanes), constant(0, torch.int64, lanes)))
    return found


def first_value(kind: str, dtype: torch.dtype) -> bool | int | float:
    if kind in ("sum", "any"):
        return 0
    if kind in ("prod", "all"):
        return 1
    if dtype is torch.bool:
        return kind == "min"
    if dtype.is_floating_point:
        return float("-inf") if kind == "max" else float("inf")
    limits = torch.iinfo(dtype)
    return limits.min if kind == "max" else limits.max


def step(
    lines: Lines,
    reduction: Reduction,
    carried: list[str],
    value: str,
    position: str | None,
    mask: str | None,
    lanes: int,
    is_in_order: bool,
) -> list[str]:
    """What is carried after one more value (a vector of them, those that the mask has).

    ``is_in_order``: positions only grow from one value to the next.
    """
    dtype = reduction.value.dtype
    if position is not None:
        better = is_better if is_in_order else is_better_place
        taken = better(lines, reduction, [value, position], carried, lanes)
        if mask is not None:
            taken = lines.new(f"and {llvm_type('i1', lanes)} {taken}, {mask}")
        return chosen(lines, taken, [value, position], carried, dtype, lanes)
    if mask is not None:
        kind = register_type(dtype, lanes)
        neutral = start(reduction, lanes)[0][1]
        value = lines.new(f"select {llvm_type('i1', lanes)} {mask}, {kind} {value}, {kind} {neutral}")
    return [combined(lines, reduction.kind, carried[0], value, dtype, lanes)]


def is_serial_scan(reduction: Reduction) -> bool:
    """Whether a scan along a vector takes its lanes in order, as eager does: the order matters for floats."""
    return reduction.is_scan and reduction.value.dtype.is_floating_point


def scan(
    lines: Lines, reduction: Reduction, carried: str, value: str, mask: str | None, lanes: int, is_across: bool
) -> tuple[str, str]:
    """What is carried after one more value, and what the scan comes to there. Along a vector (``is_across``) a chain
    carries one value; else each lane has what was carried so far."""
    if not is_across:
        found = step(lines, reduction, [carried], value, None, mask, lanes, True)[0]
        return found, found
    dtype, kind = reduction.value.dtype, reduction.kind
    wide, element = register_type(dtype, lanes), REGISTERS[dtype]
    neutral = start(reduction, lanes)[0][1]
    if mask is not None:
        value = lines.new(f"select {llvm_type('i1', lanes)} {mask}, {wide} {value}, {wide} {neutral}")
    if is_serial_scan(reduction):
        found = "poison"
        for lane in range(lanes):
            one = lines.new(f"extractelement {wide} {value}, i32 {lane}")
            carried = combined(lines, kind, carried, one, dtype, 1)
            found = lines.new(f"insertelement {wide} {found}, {element} {carried}, i32 {lane}")
        return carried, found
    distance = 1
    while distance < lanes:
        before = [lane - distance if lane >= distance else lanes for lane in range(lanes)]
        value = combined(lines, kind, lines.shuffled(wide, value, neutral, before), value, dtype, lanes)
        distance *= 2
    whole = lines.shuffled(wide, value, neutral, [lanes - 1] * lanes)
    return combined(lines, kind, carried, whole, dtype, lanes), combined(lines, kind, carried, value, dtype, lanes)


def combined(lines: Lines, kind: str, a: str, b: str, dtype: torch.dtype, lanes: int) -> str:
    """Combines two values of a reduction; of two equal ones it keeps a, the older."""
    dtype = compute_type(dtype)
    return operate(lines, OPERATIONS[kind], [b, a] if kind in ("max", "min") else [a, b], dtype, dtype, lanes)


def is_better(lines: Lines, reduction: Reduction, new: list[str], old: list[str], lanes: int) -> str:
    """Whether a later candidate of argmax (argmin) beats an earlier one: greater, or the first NaN."""
    dtype, is_greatest = reduction.value.dtype, reduction.kind == "argmax"
    if not dtype.is_floating_point:
        return operate(lines, "gt" if is_greatest else "lt", [new[0], old[0]], dtype, torch.bool, lanes)
    kind = register_type(dtype, lanes)
    better = lines.new(f"fcmp {'ugt' if is_greatest else 'ult'} {kind} {new[0]}, {old[0]}")
    known = lines.new(f"fcmp ord {kind} {old[0]}, {old[0]}")
    return lines.new(f"and {llvm_type('i1', lanes)} {better}, {known}")


def chosen(lines: Lines, taken: str, new: list[str], old: list[str], dtype: torch.dtype, lanes: int) -> list[str]:
    truth, kinds = llvm_type("i1", lanes), (register_type(dtype, lanes), llvm_type("i64", lanes))
    return [
        lines.new(f"select {truth} {taken}, {kind} {a}, {kind} {b}") for kind, a, b in zip(kinds, new, old, strict=True)
    ]


def joined(lines: Lines, reduction: Reduction, copies: list[list[str]], lanes: int) -> list[str]:
    """Combines what several copies carry."""
    while len(copies) > 1:
        pairs = zip(copies[::2], copies[1::2], strict=False)
        left = [copies[-1]] if len(copies) % 2 else []
        copies = [join_two(lines, reduction, a, b, lanes) for a, b in pairs] + left
    return copies[0]


def join_two(lines: Lines, reduction: Reduction, a: list[str], b: list[str], lanes: int) -> list[str]:
    dtype = reduction.value.dtype
    if reduction.position is None:
        return [combined(lines, reduction.kind, a[0], b[0], dtype, lanes)]
    return chosen(lines, is_better_place(lines, reduction, b, a, lanes), b, a, dtype, lanes)


def is_better_place(lines: Lines, reduction: Reduction, new: list[str], old: list[str], lanes: int) -> str:
    """Whether a candidate of argmax (argmin) beats another: greater, or as great and earlier; NaN is the greatest."""
    dtype = reduction.value.dtype
    kind, truth, whole = register_type(dtype, lanes), llvm_type("i1", lanes), llvm_type("i64", lanes)

    def both(how: str, a: str, b: str) -> str:
        return lines.new(f"{how} {truth} {a}, {b}")

    earlier = lines.new(f"icmp slt {whole} {new[1]}, {old[1]}")
    better = operate(lines, "gt" if reduction.kind == "argmax" else "lt", [new[0], old[0]], dtype, torch.bool, lanes)
    equal = operate(lines, "eq", [new[0], old[0]], dtype, torch.bool, lanes)
    if dtype.is_floating_point:
        nan_new = lines.new(f"fcmp uno {kind} {new[0]}, {new[0]}")
        nan_old = lines.new(f"fcmp uno {kind} {old[0]}, {old[0]}")
        equal = both("or", equal, both("and", nan_new, nan_old))
        only_new = both("and", nan_new, both("xor", nan_old, constant(True, torch.bool, lanes)))
        better = both("or", better, only_new)
    return both("or", better, both("and", equal, earlier))


def finish(lines: Lines, reduction: Reduction, carried: list[str], lanes: int, is_across: bool) -> str:
    """The result: of all lanes of a vector (``is_across``), or one for each lane."""
    if is_across and lanes > 1:
        carried = across(lines, reduction, carried, lanes)
        lanes = 1
    if reduction.position is not None:
        return carried[1]
    if reduction.dtype in HALF_TYPES and reduction.kind in ("sum", "prod"):
        return rounded(lines, carried[0], reduction.dtype, lanes)
    return carried[0]


def across(lines: Lines, reduction: Reduction, carried: list[str], lanes: int) -> list[str]:
    """Combines the lanes of a vector."""
    dtype = reduction.value.dtype
    element = REGISTERS[dtype]
    kind, suffix = llvm_type(element, lanes), suffix_of(element, lanes)
    value = carried[0]
    if reduction.kind in ("sum", "prod"):
        if not dtype.is_floating_point:
            how = "add" if reduction.kind == "sum" else "mul"
            return [lines.call(f"llvm.vector.reduce.{how}.{suffix}", element, [(kind, value)])]
        how, first = ("fadd", "-0.0") if reduction.kind == "sum" else ("fmul", "1.0")
        arguments = [(element, first), (kind, value)]
        return [lines.call(f"llvm.vector.reduce.{how}.{suffix}", element, arguments, "reassoc ")]
    if reduction.kind in ("any", "all"):
        how = "or" if reduction.kind == "any" else "and"
        return [lines.call(f"llvm.vector.reduce.{how}.{suffix}", element, [(kind, value)])]
    while lanes > 1:  # halves against each other
        lanes //= 2
        low, high = (
            [
                halved(lines, register, index, element_of(index, dtype), lanes, part)
                for index, register in enumerate(carried)
            ]
            for part in (0, 1)
        )
        carried = join_two(lines, reduction, low, high, lanes)
    return carried


def element_of(index: int, dtype: torch.dtype) -> str:
    return "i64" if index else REGISTERS[dtype]


def halved(lines: Lines, register: str, index: int, element: str, lanes: int, part: int) -> str:
    """The lower or upper half of a vector of twice as many lanes."""
    kind = llvm_type(element, 2 * lanes)
    if lanes == 1:
        return lines.new(f"extractelement {kind} {register}, i32 {part}")
    return lines.shuffled(kind, register, "poison", [part * lanes + lane for lane in range(lanes)])
