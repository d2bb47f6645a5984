"""Dynamic sizes as instructions: numbers that a program computes from its inputs when a call begins.

An instruction is ``(operation, first, second)``. ``("size", input, dim)``, ``("stride", input, dim)`` and
``("value", input, 0)`` read an input, ``("constant", value, 0)`` is a constant, and the others (``add mul floordiv mod
min max pow eq ne lt le``) take the results of two earlier instructions, by number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import sympy

from ..loops.ir import Buffer
from ..loops.sizes import Size
from ..lower.lowering import CannotLower

Instruction = tuple[str, int, int]
Number = int | tuple[int]  # a number, or the number of the instruction that computes it

# Functions of sizes, by the name of their class: torch has its own of some that sympy has too.
FUNCTIONS = {"FloorDiv": "floordiv", "CleanDiv": "floordiv", "Mod": "mod", "PythonMod": "mod", "PowByNatural": "pow"}
FUNCTIONS |= {"Max": "max", "Min": "min", "Add": "add", "Mul": "mul"}
RELATIONS: dict[str, tuple[str, bool]] = {  # and whether the sides are exchanged
    "Equality": ("eq", False),
    "Unequality": ("ne", False),
    "StrictLessThan": ("lt", False),
    "LessThan": ("le", False),
    "StrictGreaterThan": ("lt", True),
    "GreaterThan": ("le", True),
}


def known_sizes(inputs: Sequence[Any]) -> Iterator[tuple[Any, Instruction]]:
    """Sizes and strides of the inputs, with the instructions that read them; sizes first."""
    for index, value in enumerate(inputs):
        if isinstance(value, Buffer):
            yield from ((size, ("size", index, dim)) for dim, size in enumerate(value.shape))
        else:
            yield value, ("value", index, 0)
    for index, value in enumerate(inputs):
        if isinstance(value, Buffer):
            yield from ((stride, ("stride", index, dim)) for dim, stride in enumerate(value.strides))


class SizeInstructions:
    """Writes the instructions of one program; equal ones are one."""

    def __init__(self, inputs: Sequence[Any]) -> None:
        self.instructions: list[Instruction] = []
        self.places: dict[Any, int] = {}
        self.symbols: dict[sympy.Symbol, Instruction] = {}
        self.solved: dict[sympy.Symbol, tuple[Size, Size]] = {}
        said = list(known_sizes(inputs))
        for value, instruction in said:
            if isinstance(value, sympy.Symbol):
                self.symbols.setdefault(value, instruction)
        for value, instruction in said:
            self.solve(value, instruction)

    def solve(self, value: Any, instruction: Instruction) -> None:
        """Solves for a symbol that only appears inside an expression, like ``2*s0 + 1``: it is a quotient."""
        if not isinstance(value, sympy.Expr) or value.is_Symbol:
            return
        unknown = [s for s in value.free_symbols if s not in self.symbols and s not in self.solved]
        if len(unknown) != 1:
            return
        symbol, value = unknown[0], value.expand()
        factor = value.coeff(symbol, 1)
        rest = value - (factor * symbol).expand()
        if factor != 0 and not rest.has(symbol) and not factor.has(symbol):
            whole = sympy.Symbol("_".join(map(str, instruction)), integer=True)
            self.symbols[whole] = instruction
            self.solved[symbol] = (whole - rest, factor)

    def number(self, size: Size) -> Number:
        if isinstance(size, int):
            return int(size)
        if size.is_Integer:
            return int(size)
        return (self.place(size),)

    def numbers(self, sizes: Sequence[Size]) -> list[Number]:
        return [self.number(size) for size in sizes]

    def place(self, size: Any) -> int:
        """The number of the instruction that computes a size."""
        if size not in self.places:
            self.places[size] = self.compute(size)
        return self.places[size]

    def add(self, operation: str, first: int, second: int = 0) -> int:
        instruction = (operation, first, second)
        if instruction not in self.places:
            self.places[instruction] = len(self.instructions)
            self.instructions.append(instruction)
        return self.places[instruction]

    def compute(self, size: Any) -> int:
        if isinstance(size, int) or size.is_Integer:
            return self.add("constant", int(size))
        if size.is_Symbol:
            if size in self.symbols:
                return self.add(*self.symbols[size])
            if size in self.solved:
                above, below = self.solved[size]
                return self.add("floordiv", self.place(above), self.place(below))
            raise CannotLower(f"a size that no input says: {size}")
        name = type(size).__name__
        if name == "Identity":
            return self.place(size.args[0])
        if name in RELATIONS:
            operation, is_exchanged = RELATIONS[name]
            first, second = (self.place(side) for side in size.args)
            return self.add(operation, second, first) if is_exchanged else self.add(operation, first, second)
        if name == "ModularIndexing":
            quotient = self.add("floordiv", self.place(size.args[0]), self.place(size.args[1]))
            return self.add("mod", quotient, self.place(size.args[2]))
        above, below = size.as_numer_denom()
        if below != 1:
            return self.add("floordiv", self.place(above), self.place(below))
        if name == "Pow" and size.exp.is_Integer:
            return self.add("pow", self.place(size.base), self.place(size.exp))
        if name in FUNCTIONS:
            found = self.place(size.args[0])
            for part in size.args[1:]:
                found = self.add(FUNCTIONS[name], found, self.place(part))
            return found
        raise CannotLower(f"a size of unknown form: {size}")
