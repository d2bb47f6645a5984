"""Elements of memory that several threads combine values into: by one instruction, or by a loop of compare and swap.

The order of threads is not known, so sums and products of floats are rounded in no fixed order. Neighbouring float32
elements are added to by one instruction, which moves as many bytes as a store does: one for each element touches the
memory as often as there are elements.
"""

from __future__ import annotations

import torch

from ..llvm.llvm_text import Lines
from ..llvm.operations import operate
from ..llvm.value_types import MEMORY, from_memory, to_memory

# The instruction of a combination, by the type in memory (bfloat16 is an integer there).
ADDITIONS = {
    torch.float32: ("fadd", "float"),
    torch.float64: ("fadd", "double"),
    torch.float16: ("fadd", "half"),
    torch.bfloat16: ("fadd", "bfloat"),
    torch.int32: ("add", "i32"),
    torch.int64: ("add", "i64"),
}
OPERATIONS = {"add": "add", "mul": "mul", "max": "maximum", "min": "minimum"}
COMBINED_TYPES = frozenset((*ADDITIONS, torch.int16, torch.int8, torch.uint8))


def combine(lines: Lines, how: str, pointer: str, value: str, dtype: torch.dtype) -> None:
    """Combines a value, as it is in memory, with an element: ``how`` is "add", "mul", "max" or "min"."""
    element = MEMORY[dtype]
    if how == "add" and dtype in ADDITIONS:
        name, kind = ADDITIONS[dtype]
        if kind != element:
            value = lines.new(f"bitcast {element} {value} to {kind}")
        lines.new(f"atomicrmw {name} ptr {pointer}, {kind} {value} monotonic")
    elif how in ("max", "min") and element in ("i32", "i64"):
        lines.new(f"atomicrmw {how} ptr {pointer}, {element} {value} monotonic")
    else:
        swap(lines, how, pointer, value, dtype)


def vector_width(how: str, dtype: torch.dtype, align: int) -> int:
    """How many neighbouring elements one instruction adds to, where the first is aligned to so many bytes."""
    return max(1, min(align, 16) // dtype.itemsize) if how == "add" and dtype is torch.float32 else 1


def add_vector(lines: Lines, pointer: str, values: list[str]) -> None:
    """Adds two or four float32 values to neighbouring elements."""
    there = lines.new(f"addrspacecast ptr {pointer} to ptr addrspace(1)")
    names = ", ".join(f"${number}" for number in range(1, len(values) + 1))
    kinds = ",".join("f" * len(values))
    given = ", ".join(f"float {value}" for value in values)
    lines.add(
        f'call void asm sideeffect "red.relaxed.gpu.global.add.v{len(values)}.f32 [$0], {{{names}}};", '
        f'"l,{kinds},~{{memory}}"(ptr addrspace(1) {there}, {given})'
    )


def swap(lines: Lines, how: str, pointer: str, value: str, dtype: torch.dtype) -> None:
    """Reads the element, combines, and writes if no other thread has changed it meanwhile; else again."""
    element, word = MEMORY[dtype], f"i{8 * dtype.itemsize}"
    given = from_memory(lines, value, dtype, 1)
    first = lines.new(f"load {word}, ptr {pointer}, align {dtype.itemsize}")
    before, again, done = lines.block, lines.fresh("swap"), lines.fresh("swapped")
    lines.branch(again)
    lines.label(again)
    seen, found = f"%{lines.fresh('seen')}", f"%{lines.fresh('found')}"
    place = len(lines.text)
    there = seen if element == word else lines.new(f"bitcast {word} {seen} to {element}")
    there = from_memory(lines, there, dtype, 1)
    combined = to_memory(lines, operate(lines, OPERATIONS[how], [there, given], dtype, dtype, 1), dtype, 1)
    if element != word:
        combined = lines.new(f"bitcast {element} {combined} to {word}")
    pair = lines.new(f'cmpxchg ptr {pointer}, {word} {seen}, {word} {combined} syncscope("device") monotonic monotonic')
    lines.add(f"{found} = extractvalue {{{word}, i1}} {pair}, 0")
    is_written = lines.new(f"extractvalue {{{word}, i1}} {pair}, 1")
    lines.text.insert(place, f"{seen} = phi {word} [ {first}, %{before} ], [ {found}, %{lines.block} ]")
    lines.branch_if(is_written, done, again)
    lines.label(done)
