"""Values that readers compute again instead of loading them, on a GPU.

A group normalization is computed over groups and goes through memory where the axes of groups and channels become one
again. Its backward cuts them once more, and reads it in several kernels. What it was computed from has fewer bytes (the
input in bfloat16, two numbers for each group) and is read by these kernels anyway. Such a value is put into all its
readers; then nothing stores it. That is right only for memory that one write makes, of memory that no later one
changes: zeros that are then added to, by index, are not what the readers see.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from kiln.loops import ir
from kiln.loops.ir import Access, Buffer, Expr, Write
from kiln.loops.sizes import same
from kiln.loops.steps import Call, View

from ..costs import is_cheap_again


def without_cheap_values(items: Sequence[Write | Call], outputs: Sequence[Any]) -> list[Write | Call]:
    """The items, with values that are cheap to compute again in place of loads of them."""
    readers: dict[Any, list[Write | Call]] = {}
    for item in items:
        for buffer in item.reads:
            readers.setdefault(buffer, []).append(item)
    results = {output.buffer for output in outputs if isinstance(output, View)}
    writes: dict[Any, list[int]] = {}
    for number, item in enumerate(items):
        for made in (item.buffer,) if isinstance(item, Write) else item.results:
            writes.setdefault(made, []).append(number)
    values: dict[Buffer, Expr] = {}
    found: list[Write | Call] = []
    for number, item in enumerate(items):
        if isinstance(item, Write):
            item = with_values(item, values)
            reading = readers.get(item.buffer, [])
            is_final = writes[item.buffer] == [number] and all(max(writes.get(b, [-1])) < number for b in item.reads)
            if len(reading) > 1 and item.buffer not in results and is_final and is_value(item):
                if all(isinstance(one, Write) and reads_in_place(one, item.target, item.shape) for one in reading):
                    values[item.buffer] = item.value
        found.append(item)
    return found


def is_value(write: Write) -> bool:
    """Whether a write stores a value of each point that is cheap to compute from what is in memory."""
    if write.reduce is not None or write.accumulate is not None or write.buffer.is_pieced:
        return False
    loads = ir.loads_of(write.value)
    return (
        write.target.is_plain and all(access.is_plain for access in loads) and is_cheap_again(write.value, write.shape)
    )


def reads_in_place(reader: Write, target: Access, shape: Sequence[Any]) -> bool:
    """Whether a write has this shape, and each of its points reads the element that the same point has written."""
    if len(reader.shape) != len(shape) or not all(map(same, reader.shape, shape)):
        return False
    accesses = [one for one in ir.loads_of(reader.value, *reader.target.parts) if one.buffer is target.buffer]
    return all(
        one.is_plain and same(one.offset, target.offset) and all(map(same, one.strides, target.strides))
        for one in accesses
    )


def with_values(write: Write, values: dict[Buffer, Expr]) -> Write:
    if not any(buffer in values for buffer in write.reads):
        return write

    def leaf(part: Expr) -> Expr:
        return values.get(part.payload.buffer, part) if part.kind == "load" else part

    def changed(expr: Expr) -> Expr:
        return ir.rewrite(expr, leaf)

    return dataclasses.replace(write, target=write.target.with_parts(changed), value=changed(write.value))
