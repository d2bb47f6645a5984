"""Loops and the numbers that they count with: arithmetic of type i64 that is done now where it can be."""

from __future__ import annotations

from collections.abc import Callable

from .llvm_text import Lines

Index = int | str  # a number of type i64: known now, or in a register
Carried = list[tuple[str, str]]  # types and values of what a loop hands from one round to the next
Body = Callable[[Lines, Index, list[str]], list[str]]  # writes a round, returns the values carried to the next


def number(text: str) -> Index:
    return int(text) if text.lstrip("-").isdigit() else text


def plus(lines: Lines, a: Index, b: Index) -> Index:
    if isinstance(a, int):
        a, b = b, a
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    return a if b == 0 else lines.new(f"add i64 {a}, {b}")


def times(lines: Lines, a: Index, b: Index) -> Index:
    if isinstance(a, int):
        a, b = b, a
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    if isinstance(b, int) and b in (0, 1):
        return a if b else 0
    return lines.new(f"mul i64 {a}, {b}")


def write_loop(
    outside: Lines,
    low: Index,
    high: Index,
    step: int,
    carried: Carried,
    body: Body,
    known_nonempty: bool = False,
) -> list[str]:
    """A loop from low to high. ``body(lines, counter, carried)`` writes a round and returns the values
    carried to the next.

    While the body is written, lines may still be added outside: they come before the loop.
    """
    if isinstance(low, int) and isinstance(high, int):
        if low >= high:
            return [value for _, value in carried]
        known_nonempty = True
        if low + step >= high:
            return body(outside, low, [value for _, value in carried])
    head, after = outside.fresh("loop"), outside.fresh("after")
    counter = f"%{outside.fresh('i')}"
    names = [f"%{outside.fresh('c')}" for _ in carried]
    inside = Lines(outside.names, head)
    results = body(inside, counter, names)
    following = inside.new(f"add i64 {counter}, {step}")
    more = inside.new(f"icmp slt i64 {following}, {high}")
    latch = inside.block
    inside.branch_if(more, head, after)
    if known_nonempty:
        outside.branch(head)
    else:
        some = outside.new(f"icmp slt i64 {low}, {high}")
        outside.branch_if(some, head, after)
    before = outside.block
    outside.label(head)
    outside.add(f"{counter} = phi i64 [ {low}, %{before} ], [ {following}, %{latch} ]")
    for (kind, first), name, result in zip(carried, names, results, strict=True):
        outside.add(f"{name} = phi {kind} [ {first}, %{before} ], [ {result}, %{latch} ]")
    outside.text += inside.text
    outside.label(after)
    if known_nonempty:
        return results
    return [
        outside.new(f"phi {kind} [ {first}, %{before} ], [ {result}, %{latch} ]")
        for (kind, first), result in zip(carried, results, strict=True)
    ]


def lane_mask(lines: Lines, left: Index, lanes: int) -> str:
    """The mask of the first lanes, as many as are left."""
    if isinstance(left, int):
        return "<" + ", ".join([f"i1 {lane < left}".lower() for lane in range(lanes)]) + ">"
    ramp = "<" + ", ".join([f"i64 {lane}" for lane in range(lanes)]) + ">"
    return lines.new(f"icmp sgt <{lanes} x i64> {lines.splat(left, 'i64', lanes)}, {ramp}")


def split_position(lines: Lines, position: Index, sizes: list[Index]) -> tuple[list[Index], Index]:
    """A flat position as the positions of the loops, and that of the last loop."""
    found: list[Index] = []
    for size in reversed(sizes[1:]):
        if position == 0:
            found.append(0)
            continue
        found.append(lines.new(f"urem i64 {position}, {size}"))
        position = lines.new(f"udiv i64 {position}, {size}")
    found.append(position)
    found.reverse()
    return found[:-1], found[-1]


def counted_up(lines: Lines, names: list[str], sizes: list[Index]) -> list[Index]:
    """The next positions of nested loops: the last one counts, with a carry to the one before."""
    found: list[Index] = []
    carry: Index = 1
    for place, (name, size) in enumerate(zip(reversed(names), reversed(sizes), strict=True)):
        following = plus(lines, name, carry)
        if place == len(names) - 1:
            found.append(following)
            break
        is_end = lines.new(f"icmp eq i64 {following}, {size}")
        found.append(lines.new(f"select i1 {is_end}, i64 0, i64 {following}"))
        carry = lines.new(f"zext i1 {is_end} to i64")
    found.reverse()
    return found


def smaller(lines: Lines, a: Index, b: Index) -> Index:
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    less = lines.new(f"icmp slt i64 {a}, {b}")
    return lines.new(f"select i1 {less}, i64 {a}, i64 {b}")


def minus(lines: Lines, a: Index, b: Index) -> Index:
    if isinstance(a, int) and isinstance(b, int):
        return a - b
    return a if b == 0 else lines.new(f"sub i64 {a}, {b}")


def round_down(lines: Lines, value: Index, step: int) -> Index:
    """Rounds down to a multiple of a power of two."""
    if isinstance(value, int):
        return value - value % step
    return value if step == 1 else lines.new(f"and i64 {value}, {-step}")


def ceil_div(lines: Lines, value: Index, step: int) -> Index:
    """Divides by a power of two, rounding up."""
    if isinstance(value, int):
        return -(-value // step)
    if step == 1:
        return value
    return lines.new(f"lshr i64 {plus(lines, value, step - 1)}, {step.bit_length() - 1}")
