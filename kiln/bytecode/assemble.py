"""`Bytecode` -> code object."""

import struct
import types
from typing import Any

from .analysis import stack_size
from .instruction import Bytecode, Instruction, Positions
from .opcode_info import (  # fmt: skip
    BACKWARD,
    CACHE,
    CACHES,
    COMPARE_MASK,
    COMPARE_OPERATORS,
    COMPARE_SHIFT,
    EXTENDED_ARG,
    FORWARD,
    HAS_CONST,
    HAS_NAME,
    HAS_PAIR,
    HAS_TARGET,
    HAS_VARIABLE,
    INDEXED,
    INVERSE,
    IS_BACKWARD,
    OPCODE,
    PAIRS,
    SHIFT,
    VERSION,
)
from .side_tables import build_exception_table, build_line_table


def assemble(bytecode: Bytecode) -> types.CodeType:
    """Put a code object together.  Sizes, jumps, tables and stack size are computed; `bytecode` keeps its content."""
    bytecode.renumber()
    pieces, first_piece = _lower(bytecode, tables := _Tables(bytecode))
    starts, size = _place(pieces)
    raw = bytearray()
    for piece in pieces:
        raw += piece.encode()
    return types.CodeType(
        bytecode.argcount,
        bytecode.posonlyargcount,
        bytecode.kwonlyargcount,
        len(bytecode.varnames),
        stack_size(bytecode),
        bytecode.flags,
        bytes(raw),
        tuple(tables.consts),
        tuple(tables.names),
        tuple(bytecode.varnames),
        bytecode.filename,
        bytecode.name,
        bytecode.qualname,
        bytecode.firstlineno,
        _line_table(bytecode, pieces),
        _exception_table(bytecode, first_piece, starts, size),
        tuple(bytecode.freevars),
        tuple(bytecode.cellvars),
    )


class _Tables:
    """The names, constants and variables that arguments index; unknown names and constants are added."""

    def __init__(self, bytecode: Bytecode) -> None:
        self.names = list(bytecode.names)
        self.consts = list(bytecode.consts)
        self.slots = bytecode.slots
        self._name_at = {name: at for at, name in reversed(list(enumerate(self.names)))}
        self._slot_at = {name: at for at, name in reversed(list(enumerate(self.slots)))}
        self._const_at = {constant_key(value): at for at, value in reversed(list(enumerate(self.consts)))}

    def name(self, name: str, hint: int | None) -> int:
        if hint is not None and hint < len(self.names) and self.names[hint] == name:
            return hint
        if name not in self._name_at:
            self._name_at[name] = len(self.names)
            self.names.append(name)
        return self._name_at[name]

    def const(self, value: object, hint: int | None) -> int:
        if hint is not None and hint < len(self.consts) and self.consts[hint] is value:
            return hint
        key = constant_key(value)
        if key not in self._const_at:
            self._const_at[key] = len(self.consts)
            self.consts.append(value)
        return self._const_at[key]

    def slot(self, name: str, hint: int | None) -> int:
        """The hint matters where a cell and a free variable of a class body share a name."""
        if hint is not None and hint < len(self.slots) and self.slots[hint] == name:
            return hint
        return self._slot_at[name]


def constant_key(value: Any) -> object:
    """A key under which two constants meet only if nothing can tell them apart; other objects meet only themselves."""
    kind = type(value)
    if kind in (int, str, bytes, bool, type(None), type(...)):
        return kind, value
    if kind is float:
        return kind, struct.pack("d", value)
    if kind is complex:
        return kind, struct.pack("dd", value.real, value.imag)
    if kind is tuple:
        return kind, tuple(map(constant_key, value))
    if kind is frozenset:
        return kind, frozenset(map(constant_key, value))
    return id, id(value)


class _Piece:
    """One machine instruction on its way to bytes; `target` (a piece number) becomes `arg` once places are known."""

    __slots__ = ("op", "arg", "target", "instruction", "prefixes", "size")

    def __init__(self, op: str, arg: int, instruction: Instruction, target: int | None = None) -> None:
        self.op, self.arg, self.instruction, self.target = op, arg, instruction, target
        self.prefixes = _prefixes(arg)
        self.size = 1 + CACHES[OPCODE[op]]

    def encode(self) -> bytes:
        arg, opcode = self.arg, OPCODE[self.op]
        raw = bytearray()
        for place in range(self.prefixes, 0, -1):
            raw += bytes((EXTENDED_ARG, arg >> 8 * place & 0xFF))
        raw += bytes((opcode, arg & 0xFF))
        raw += bytes((CACHE, 0)) * (self.size - 1)
        return bytes(raw)


def _prefixes(arg: int) -> int:
    """How many EXTENDED_ARG an argument needs."""
    return 0 if arg < 256 else (arg.bit_length() - 1) // 8


def _lower(bytecode: Bytecode, tables: _Tables) -> tuple[list[_Piece], list[int]]:
    """The pieces in order, and the number of the first piece of each instruction."""
    pieces: list[_Piece] = []
    first_piece: list[int] = []
    waiting: list[tuple[_Piece, Instruction]] = []
    for instruction in bytecode.instructions:
        first_piece.append(len(pieces))
        if instruction.op in HAS_TARGET:
            _lower_jump(instruction, pieces, waiting)
        elif instruction.op in HAS_PAIR:
            _lower_pair(instruction, tables, pieces)
        else:
            pieces.append(_Piece(instruction.op, _argument(instruction, tables), instruction))
    for piece, target in waiting:
        piece.target = first_piece[target.index]
    return pieces, first_piece


def _lower_jump(instruction: Instruction, pieces: list[_Piece], waiting: list[tuple[_Piece, Instruction]]) -> None:
    """Choose the opcode for the direction.  Where there is none backward, jump over a plain jump on the opposite."""
    target = instruction.target
    assert target is not None
    op = instruction.op
    if target.index > instruction.index:
        op = FORWARD.get(op, op)
    elif op in BACKWARD:
        op = BACKWARD[op]
    elif op in INVERSE:
        over = len(pieces) + 2
        pieces.append(_Piece(INVERSE[op], 0, instruction, target=over))
        op = "JUMP_BACKWARD"
    else:
        raise ValueError(f"{op} cannot jump backward")
    pieces.append(_Piece(op, 0, instruction))
    waiting.append((pieces[-1], target))


def _lower_pair(instruction: Instruction, tables: _Tables, pieces: list[_Piece]) -> None:
    """A superinstruction, or its two halves if a variable's number needs more than four bits."""
    first, second = (tables.slot(name, None) for name in instruction.argval)
    if first < 16 and second < 16:
        pieces.append(_Piece(instruction.op, first << 4 | second, instruction))
        return
    for op, slot in zip(PAIRS[instruction.op], (first, second), strict=True):
        pieces.append(_Piece(op, slot, instruction))


def _argument(instruction: Instruction, tables: _Tables) -> int:
    """The raw argument of anything that is no jump."""
    op, arg, value = instruction.op, instruction.arg, instruction.argval
    if op in HAS_VARIABLE:
        return tables.slot(value, arg)
    if op in HAS_CONST:
        return tables.const(value, arg)
    if op in HAS_NAME:
        shift = SHIFT.get(op, 0)
        flags = (arg or 0) & ((1 << shift) - 1)
        return tables.name(value, None if arg is None else arg >> shift) << shift | flags
    if op in INDEXED:
        return _place_in(INDEXED[op], value)
    if op == "COMPARE_OP":
        return _compare_argument(value, arg or 0)
    if isinstance(value, int):
        return value
    return arg or 0


def _place_in(table: tuple[object, ...], value: object) -> int:
    return next(at for at, item in enumerate(table) if item is value or (type(value) is str and item == value))


def _compare_argument(operator: str, flags: int) -> int:
    number = COMPARE_OPERATORS.index(operator) << COMPARE_SHIFT
    if VERSION == (3, 11):
        return number
    return number | COMPARE_MASK[operator] | (flags & 16 if VERSION >= (3, 13) else 0)


def _place(pieces: list[_Piece]) -> tuple[list[int], int]:
    """Give every jump its distance.  Longer arguments move what follows, so repeat until nothing grows."""
    while True:
        starts, unit = [], 0
        for piece in pieces:
            starts.append(unit)
            unit += piece.prefixes + piece.size
        starts.append(unit)
        grown = False
        for number, piece in enumerate(pieces):
            if piece.target is None:
                continue
            end = starts[number + 1]
            piece.arg = end - starts[piece.target] if piece.op in IS_BACKWARD else starts[piece.target] - end
            if (needed := _prefixes(piece.arg)) > piece.prefixes:
                piece.prefixes = needed
                grown = True
        if not grown:
            return starts, unit


def _line_table(bytecode: Bytecode, pieces: list[_Piece]) -> bytes:
    runs: list[tuple[Positions | None, int]] = []
    for piece in pieces:
        positions = piece.instruction.positions
        size = piece.prefixes + piece.size
        if runs and runs[-1][0] == positions:
            size += runs.pop()[1]
        runs.append((positions, size))
    return build_line_table(bytecode.firstlineno, runs)


def _exception_table(bytecode: Bytecode, first_piece: list[int], starts: list[int], size: int) -> bytes:
    ends = [*first_piece[1:], len(starts) - 1]
    entries = [
        (
            starts[first_piece[entry.start.index]],
            starts[ends[entry.end.index]],
            starts[first_piece[entry.target.index]],
            entry.depth,
            entry.lasti,
        )
        for entry in bytecode.exceptions
    ]
    return build_exception_table(sorted(entries))
