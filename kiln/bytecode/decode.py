"""Code object -> `Bytecode`."""

import types

from .instruction import Bytecode, ExceptionRange, Instruction
from .opcode_info import (  # fmt: skip
    CACHES,
    COMPARE_OPERATORS,
    COMPARE_SHIFT,
    EXTENDED_ARG,
    FLAG,
    HAS_CONST,
    HAS_NAME,
    HAS_PAIR,
    HAS_TARGET,
    HAS_VARIABLE,
    INDEXED,
    IS_BACKWARD,
    OPNAME,
    SHIFT,
)
from .side_tables import parse_exception_table


def decode(code: types.CodeType) -> Bytecode:
    """Take a code object apart.  Inline caches and EXTENDED_ARG are dropped; jumps point at instructions."""
    bytecode = Bytecode(
        instructions=[],
        exceptions=[],
        name=code.co_name,
        qualname=code.co_qualname,
        filename=code.co_filename,
        firstlineno=code.co_firstlineno,
        argcount=code.co_argcount,
        posonlyargcount=code.co_posonlyargcount,
        kwonlyargcount=code.co_kwonlyargcount,
        flags=code.co_flags,
        varnames=list(code.co_varnames),
        cellvars=list(code.co_cellvars),
        freevars=list(code.co_freevars),
        names=list(code.co_names),
        consts=list(code.co_consts),
        stacksize=code.co_stacksize,
    )
    at_unit, jumps = _read_units(code, bytecode)
    for instruction, unit in jumps:
        instruction.argval = at_unit[unit]
    _read_exceptions(code, bytecode, at_unit)
    bytecode.renumber()
    return bytecode


def decode_apart(code: types.CodeType) -> Bytecode:
    """As `decode`, but an instruction of its own tests the truth of a comparison: code can be split between the two.
    From CPython 3.13 on, one instruction may do both."""
    bytecode = decode(code)
    if "COMPARE_OP" not in FLAG:
        return bytecode
    apart: dict[Instruction, Instruction] = {}
    for instruction in [one for one in bytecode.instructions if one.op == "COMPARE_OP" and one.flag]:
        instruction.flag = False
        apart[instruction] = Instruction("TO_BOOL", positions=instruction.positions, offset=instruction.offset)
    if apart:
        found = [(one, apart[one]) if one in apart else (one,) for one in bytecode.instructions]
        bytecode.instructions = [one for both in found for one in both]
        for entry in bytecode.exceptions:
            entry.end = apart.get(entry.end, entry.end)
        bytecode.renumber()
    return bytecode


def _read_units(
    code: types.CodeType, bytecode: Bytecode
) -> tuple[dict[int, Instruction], list[tuple[Instruction, int]]]:
    """Fill in the instructions; return them by code unit (also that of their prefixes) and the jumps to resolve."""
    raw = code.co_code
    positions = list(code.co_positions())
    resolve = _Resolver(bytecode)
    at_unit: dict[int, Instruction] = {}
    jumps: list[tuple[Instruction, int]] = []
    prefixes: list[int] = []
    extended = unit = 0
    while unit * 2 < len(raw):
        number, arg = raw[unit * 2], raw[unit * 2 + 1] | extended
        if number == EXTENDED_ARG:
            extended = arg << 8
            prefixes.append(unit)
            unit += 1
            continue
        name = OPNAME[number]
        following = unit + 1 + CACHES[number]
        where = positions[unit] if unit < len(positions) else NOWHERE  # a table may be cut short, or missing
        instruction = Instruction(name, arg, positions=None if where[0] is None else where, offset=unit * 2)
        if name in HAS_TARGET:
            jumps.append((instruction, following - arg if name in IS_BACKWARD else following + arg))
        else:
            instruction.argval = resolve(name, arg)
        bytecode.instructions.append(instruction)
        for place in (*prefixes, unit):
            at_unit[place] = instruction
        prefixes.clear()
        extended, unit = 0, following
    return at_unit, jumps


NOWHERE = (None, None, None, None)


class _Resolver:
    """Turns a raw argument into what it stands for."""

    def __init__(self, bytecode: Bytecode) -> None:
        self.names, self.consts, self.slots = bytecode.names, bytecode.consts, bytecode.slots

    def __call__(self, op: str, arg: int) -> object:
        if op in HAS_VARIABLE:
            return self.slots[arg]
        if op in HAS_CONST:
            return self.consts[arg]
        if op in HAS_NAME:
            return self.names[arg >> SHIFT.get(op, 0)]
        if op in HAS_PAIR:
            return self.slots[arg >> 4], self.slots[arg & 15]
        if op in INDEXED:
            return INDEXED[op][arg]
        if op == "COMPARE_OP":
            return COMPARE_OPERATORS[arg >> COMPARE_SHIFT]
        return arg


def _read_exceptions(code: types.CodeType, bytecode: Bytecode, at_unit: dict[int, Instruction]) -> None:
    units = sorted(at_unit)
    last_before = {}  # the end of a range is exclusive and may lie past the last instruction
    for unit, following in zip(units, [*units[1:], len(code.co_code) // 2], strict=True):
        last_before[following] = at_unit[unit]
    for start, end, target, depth, lasti in parse_exception_table(code.co_exceptiontable):
        entry = ExceptionRange(at_unit[start], last_before[end], at_unit[target], depth, lasti)
        bytecode.exceptions.append(entry)
