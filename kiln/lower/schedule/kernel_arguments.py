"""Which numbers of a kernel are its arguments, so that launches with other numbers share it.

A kernel that is one plain loop takes its length as an argument. On a GPU a kernel's launches become one, if they do not
depend on each other; so there reductions of whole tensors take their lengths as arguments, too. So are the places of
single elements in larger buffers: of the results of such reductions, as in the norms of a list of tensors, and of
numbers that a plain loop reads, as the rates of an optimizer.
"""

from __future__ import annotations

from dataclasses import replace

import sympy

from kiln.loops import ir
from kiln.loops.ir import Access, Buffer, Expr
from kiln.loops.kernel import Kernel, Loop, Output
from kiln.loops.sizes import ROW_LENGTH, Size

LENGTH = sympy.Symbol("length", integer=True, positive=True)
LEAST_LENGTH = 64
LONG_ROW = 8192  # elements: a block of threads for each row, however many rows there are
LONGEST_SMALL_ROW = 8192  # elements that a block reads one by one as fast as in vectors


def with_arguments(kernel: Kernel, device: str) -> tuple[Kernel, tuple[Size, ...]]:
    """A kernel that has arguments where it can, and the sizes of the launch."""
    if kernel.sizes:
        return kernel, kernel.sizes
    loops, outputs, actual = kernel.loops, kernel.outputs, {}
    if len(loops) == 1 and not kernel.reductions and is_long_enough(loops[0].size):
        loops, actual = (Loop(LENGTH),), {LENGTH: loops[0].size}
        if device == "cuda":
            outputs, places = places_of_numbers(kernel)
            actual |= places
    elif device == "cuda" and kernel.reductions:
        loops, actual = reduction_loops(kernel)
        outputs, places = places_in_buffers(kernel)
        actual |= places
    if not actual:
        return kernel, ()
    found = Kernel(kernel.name, loops, kernel.reductions, outputs, kernel.vector, kernel.nodes)
    return found, tuple(actual[size] for size in found.sizes)


def is_long_enough(size: Size) -> bool:
    return isinstance(size, int) and size >= LEAST_LENGTH


def reduction_loops(kernel: Kernel) -> tuple[tuple[Loop, ...], dict[sympy.Symbol, Size]]:
    """The loops of a reduction: the number of its long rows, or the length of its only row, as an argument. A kernel
    that stores rows which depend on their sums, a normalization, is planned for the number of rows that it has."""
    loops = kernel.loops
    if any(one.position is not None for one in kernel.reductions):
        return loops, {}
    sizes = [loop.size for loop in loops]
    if not all(isinstance(size, int) for size in sizes):
        return loops, {}
    is_norm = any(output.is_inner and kernel.phase(output.value) for output in kernel.outputs)
    if [loop.is_reduced for loop in loops] == [False, True] and is_row_of_whole(sizes[1]) and not is_norm:
        return (Loop(LENGTH), loops[1]), {LENGTH: sizes[0]}
    if [loop.is_reduced for loop in loops] == [True] and sizes[0] <= LONGEST_SMALL_ROW and reads_once(kernel):
        return (Loop(ROW_LENGTH, True),), {ROW_LENGTH: sizes[0]}
    return loops, {}


def reads_once(kernel: Kernel) -> bool:
    """Whether a kernel goes through its row once. Others (a layer norm) keep a row of known length in registers."""
    values = [reduction.value for reduction in kernel.reductions]
    for output in kernel.outputs:
        values += [output.value, *output.target.parts] if output.is_inner else []
    return kernel.phase(*values) == 0


def is_row_of_whole(size: int) -> bool:
    """Whether it is a length that whole_reductions.py cuts tensors into."""
    return size >= LONG_ROW and size & (size - 1) == 0


def places_in_buffers(kernel: Kernel) -> tuple[tuple[Output, ...], dict[sympy.Symbol, Size]]:
    """The outputs of a reduction to one element, with the places of those in larger buffers as arguments."""
    if any(not loop.is_reduced for loop in kernel.loops):
        return kernel.outputs, {}
    outputs, actual = [], {}
    for number, output in enumerate(kernel.outputs):
        target = output.target
        if not output.is_inner and target.is_plain and isinstance(target.offset, int) and target.buffer.span != 1:
            place = sympy.Symbol(f"place{number}", integer=True, nonnegative=True)
            actual[place] = target.offset
            output = replace(output, target=replace(target, offset=place))
        outputs.append(output)
    return tuple(outputs), actual


def places_of_numbers(kernel: Kernel) -> tuple[tuple[Output, ...], dict[sympy.Symbol, Size]]:
    """The outputs of a plain loop, with the places of the numbers that it reads from larger buffers as arguments."""
    symbols: dict[tuple[Buffer, Size], sympy.Symbol] = {}

    def leaf(part: Expr) -> Expr:
        if part.kind != "load":
            return part
        access: Access = part.payload
        if access.buffer.kind == "drawn":  # seed and offset are parameters of the kernel, known by their places
            return part
        if not access.is_plain or not isinstance(access.offset, int) or access.buffer.span == 1 or any(access.strides):
            return part
        key = access.buffer, access.offset
        place = symbols.setdefault(key, sympy.Symbol(f"place{len(symbols)}", integer=True, nonnegative=True))
        return ir.load(replace(access, offset=place))

    outputs = tuple(replace(output, value=ir.rewrite(output.value, leaf)) for output in kernel.outputs)
    return outputs, {symbol: offset for (_, offset), symbol in symbols.items()}
