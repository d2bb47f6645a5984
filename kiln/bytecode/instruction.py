"""The editable form of a code object: instructions with resolved arguments, exception ranges, and the rest."""

import types
from collections.abc import Iterator
from dataclasses import field
from typing import Any

from ..platform.light_dataclass import dataclass
from .opcode_info import FLAG, HAS_TARGET

Positions = tuple[int | None, int | None, int | None, int | None]
"""First line, last line, first column, last column, as `types.CodeType.co_positions` gives them."""


class Instruction:
    """One instruction.  Two instructions are equal only if they are the same object, so jumps can point at them.

    `argval` is what counts when assembling; of `arg` only flag bits are read (and the whole of it where `argval` is
    None and the opcode takes a plain number).
    """

    __slots__ = ("op", "arg", "argval", "positions", "offset", "index")

    def __init__(
        self,
        op: str,
        arg: int | None = None,
        argval: object = None,
        *,
        target: "Instruction | None" = None,
        flag: bool = False,
        positions: Positions | None = None,
        offset: int = -1,
        index: int = -1,
    ) -> None:
        self.op = op
        self.arg = arg
        self.argval: Any = target if target is not None else argval
        self.positions = positions
        self.offset = offset
        self.index = index
        if flag:
            self.flag = True

    @property
    def target(self) -> "Instruction | None":
        """Where a jump goes, or what else an instruction names another one for; None for all others."""
        target: Instruction | None = self.argval if self.op in HAS_TARGET else None
        return target

    @target.setter
    def target(self, instruction: "Instruction") -> None:
        self.argval = instruction

    @property
    def flag(self) -> bool:
        """The low-bit flag that shares the argument with an index: LOAD_GLOBAL's NULL, LOAD_ATTR's method bit, …"""
        return bool((self.arg or 0) & FLAG.get(self.op, 0))

    @flag.setter
    def flag(self, value: bool) -> None:
        bit = FLAG[self.op]
        self.arg = ((self.arg or 0) & ~bit) | (bit if value else 0)

    @property
    def line(self) -> int | None:
        """The first source line, if known."""
        return self.positions[0] if self.positions else None

    def copy(self) -> "Instruction":
        """A new instruction with the same content; a jump still points at the old target."""
        return Instruction(
            self.op, self.arg, self.argval, positions=self.positions, offset=self.offset, index=self.index
        )

    def __repr__(self) -> str:
        value = self.argval
        shown = f"-> {value.index} {value.op}" if isinstance(value, Instruction) else repr(value)
        return f"<{self.index} {self.op} {shown}>"


@dataclass(eq=False, slots=True)
class ExceptionRange:
    """What happens to an exception raised from `start` to `end` (both included).

    The stack is cut to `depth`, the place of the exception (if `lasti`) and the exception are pushed, and control goes
    to `target`.  No two ranges overlap.
    """

    start: Instruction
    end: Instruction
    target: Instruction
    depth: int
    lasti: bool


@dataclass(eq=False)
class Bytecode:
    """A code object taken apart.  After editing `instructions` or `exceptions` call `renumber`."""

    instructions: list[Instruction]
    exceptions: list[ExceptionRange]
    name: str
    qualname: str
    filename: str
    firstlineno: int
    argcount: int
    posonlyargcount: int
    kwonlyargcount: int
    flags: int
    varnames: list[str]
    cellvars: list[str]
    freevars: list[str]
    names: list[str] = field(default_factory=list)
    """Names the assembled table starts with (may be emptied; what is needed gets added)."""
    consts: list[object] = field(default_factory=list)
    """Constants the assembled table starts with; the first of them is the docstring of a function."""
    stacksize: int = 0
    """The decoded stack size, for information: assembling computes it anew."""
    handler_at: list[ExceptionRange | None] = field(default_factory=list)
    """By instruction index: the exception range the instruction lies in."""
    handling: dict[int, bool] = field(default_factory=dict, compare=False)
    """By the index where a handler begins, where computed: whether it is an ``except`` clause."""
    raising: dict[int, bool] = field(default_factory=dict, compare=False)
    """By instruction index, where computed: whether everything that follows ends in an exception."""

    def __post_init__(self) -> None:
        self.renumber()

    def renumber(self) -> None:
        """Bring `Instruction.index` and `handler_at` up to date with the lists."""
        for index, instruction in enumerate(self.instructions):
            instruction.index = index
        self.handling.clear()
        self.raising.clear()
        self.handler_at = [None] * len(self.instructions)
        for entry in self.exceptions:
            first, last = entry.start.index, entry.end.index
            self.handler_at[first : last + 1] = [entry] * (last + 1 - first)

    @property
    def slots(self) -> list[str]:
        """Variable names by frame slot: locals, then cells that are no locals, then free variables."""
        local = set(self.varnames)
        return [*self.varnames, *(name for name in self.cellvars if name not in local), *self.freevars]

    @property
    def arguments(self) -> list[str]:
        """The names of all parameters, star parameters included, in slot order."""
        stars = bool(self.flags & 0x04) + bool(self.flags & 0x08)
        return self.varnames[: self.argcount + self.kwonlyargcount + stars]

    def __iter__(self) -> Iterator[Instruction]:
        return iter(self.instructions)

    def __len__(self) -> int:
        return len(self.instructions)

    def __getitem__(self, index: int) -> Instruction:
        return self.instructions[index]


def codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    """A code object and those of all functions and classes that it makes."""
    yield code
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield from codes_in(part)
