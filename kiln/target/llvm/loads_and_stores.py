"""Loads and stores of vectors and single values: contiguous, backwards, at places far apart, masked."""

from __future__ import annotations

import torch

from ...platform.light_dataclass import dataclass
from .llvm_text import Lines, llvm_type, suffix_of
from .value_types import MEMORY


@dataclass
class Place:
    """The address of a vector (or of one value): a pointer, and the offset of each lane."""

    pointer: str
    is_contiguous: bool = True
    offsets: str | None = None  # a vector of i64, in elements, where it is not contiguous
    mask: str | None = None
    is_reversed: bool = False  # contiguous, with the last lane first
    align: int = 0  # of the pointer, in bytes; 0: that of an element


def load_at(lines: Lines, place: Place, dtype: torch.dtype, lanes: int, beyond: str) -> str:
    """Loads a vector, in the type that it has in memory; masked lanes are ``beyond``."""
    element, size = MEMORY[dtype], dtype.itemsize
    kind = llvm_type(element, lanes)
    if lanes == 1:
        pointer = place.pointer
        if place.mask is not None:  # where the mask is false, a constant zero is read instead
            pointer = lines.new(f"select i1 {place.mask}, ptr {pointer}, ptr {zeros(lines)}")
        return lines.new(f"load {kind}, ptr {pointer}, align {size}")
    if place.is_contiguous and place.mask is None:
        found = lines.new(f"load {kind}, ptr {place.pointer}, align {place.align or size}")
        return backwards(lines, found, kind, lanes) if place.is_reversed else found
    mask_kind, suffix = llvm_type("i1", lanes), suffix_of(element, lanes)
    if place.is_contiguous and is_first_lane(place.mask):
        one = lines.new(f"load {element}, ptr {place.pointer}, align {size}")
        return lines.new(f"insertelement {kind} {beyond}, {element} {one}, i64 0")
    if place.is_contiguous:
        lines.declare(f"declare {kind} @llvm.masked.load.{suffix}.p0(ptr, {mask_kind}, {kind})")
        return lines.new(
            f"call {kind} @llvm.masked.load.{suffix}.p0(ptr align {size} {place.pointer}, "
            f"{mask_kind} {place.mask}, {kind} {beyond})"
        )
    pointers, wide = lane_pointers(lines, place, element, lanes), llvm_type("ptr", lanes)
    mask = place.mask or "splat (i1 true)"
    lines.declare(f"declare {kind} @llvm.masked.gather.{suffix}.v{lanes}p0({wide}, {mask_kind}, {kind})")
    return lines.new(
        f"call {kind} @llvm.masked.gather.{suffix}.v{lanes}p0({wide} align {size} {pointers}, "
        f"{mask_kind} {mask}, {kind} {beyond})"
    )


def store_at(lines: Lines, place: Place, value: str, dtype: torch.dtype, lanes: int) -> None:
    """Store a value as memory has it. A single value has no mask here."""
    element, size = MEMORY[dtype], dtype.itemsize
    kind = llvm_type(element, lanes)
    if lanes == 1 or (place.is_contiguous and place.mask is None):
        if place.is_reversed:
            value = backwards(lines, value, kind, lanes)
        lines.add(f"store {kind} {value}, ptr {place.pointer}, align {(place.align if lanes > 1 else 0) or size}")
        return
    mask_kind, suffix = llvm_type("i1", lanes), suffix_of(element, lanes)
    mask = place.mask or "splat (i1 true)"
    if place.is_contiguous and is_first_lane(mask):
        one = lines.new(f"extractelement {kind} {value}, i64 0")
        lines.add(f"store {element} {one}, ptr {place.pointer}, align {size}")
        return
    if place.is_contiguous:
        lines.declare(f"declare void @llvm.masked.store.{suffix}.p0({kind}, ptr, {mask_kind})")
        lines.add(
            f"call void @llvm.masked.store.{suffix}.p0({kind} {value}, ptr align {size} {place.pointer}, "
            f"{mask_kind} {mask})"
        )
        return
    pointers, wide = lane_pointers(lines, place, element, lanes), llvm_type("ptr", lanes)
    lines.declare(f"declare void @llvm.masked.scatter.{suffix}.v{lanes}p0({kind}, {wide}, {mask_kind})")
    lines.add(
        f"call void @llvm.masked.scatter.{suffix}.v{lanes}p0({kind} {value}, {wide} align {size} {pointers}, "
        f"{mask_kind} {mask})"
    )


def zeros(lines: Lines) -> str:
    """A pointer to an element that is zero, of any type; on a GPU to a vector of them."""
    if not lines.is_for_gpu:
        lines.declare("@kiln.zeros = internal constant [8 x i8] zeroinitializer, align 8")
        return "@kiln.zeros"
    lines.declare("@kiln_zeros = internal addrspace(1) constant [64 x i8] zeroinitializer, align 16")
    return "addrspacecast (ptr addrspace(1) @kiln_zeros to ptr)"


def lane_pointers(lines: Lines, place: Place, element: str, lanes: int) -> str:
    return lines.new(f"getelementptr {element}, ptr {place.pointer}, <{lanes} x i64> {place.offsets}")


def beyond_the_end(dtype: torch.dtype) -> str:
    """What a vector's lanes have where there is no more memory: ones. LLVM takes 0/0 in lanes that it knows to be zero
    for 0, and forgets that they are masked."""
    is_float = MEMORY[dtype] in ("float", "double")
    one = {torch.bfloat16: "16256", torch.float16: "0xH3C00"}.get(dtype, "1.0" if is_float else "1")
    return f"splat ({MEMORY[dtype]} {one})"


def backwards(lines: Lines, value: str, kind: str, lanes: int) -> str:
    """A vector with its lanes reversed."""
    return lines.shuffled(kind, value, "poison", range(lanes - 1, -1, -1))


def is_first_lane(mask: str | None) -> bool:
    """Whether a mask is constant, with one lane. LLVM 22 makes a scalar store of such a masked one, and where the value
    was truncated it stores the wide one: beyond the end of memory."""
    return mask is not None and mask.startswith("<i1 true") and mask.count("true") == 1
