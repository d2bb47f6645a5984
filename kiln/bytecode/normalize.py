"""Rewriting code so that every NULL on the operand stack is known without running it.

Loading a method pushes either (method, self) or (NULL, attribute), as the object turns out.  Here it becomes a plain
attribute load and a NULL.  Loads of variables get references of their own, for the code around them may change.
`super()` without arguments looks into the frame that calls it; here it gets its arguments, so that the code may run in
another frame.  Another `super` of the program gets none.
"""

import types
from typing import Any

from .instruction import Bytecode, Instruction
from .opcode_info import NULL_BELOW_CALLABLE, OWNING, VERSION

Replaced = dict[Instruction, tuple[Instruction, Instruction]]


def normalize(bytecode: Bytecode, *, own_frame: bool = False) -> Replaced:
    """Rewrite in place.  Returns, for every instruction that was there, the first and last of those in its place.

    In code that runs in a frame like the original's (`own_frame`), `super()` can stay what it is.
    """
    replaced: Replaced = {}
    result: list[Instruction] = []
    for instruction in bytecode.instructions:
        group = _replacement(bytecode, instruction, own_frame)
        replaced[instruction] = group[0], group[-1]
        result += group
    for instruction in result:
        if instruction.target is not None:
            instruction.target = replaced.get(instruction.target, (instruction.target,))[0]
    for entry in bytecode.exceptions:
        entry.start, entry.end = replaced[entry.start][0], replaced[entry.end][1]
        entry.target = replaced[entry.target][0]
    bytecode.instructions = result
    bytecode.renumber()
    return replaced


def _replacement(bytecode: Bytecode, instruction: Instruction, own_frame: bool) -> list[Instruction]:
    op = instruction.op
    if op == "LOAD_METHOD":
        return _with_null(instruction, Instruction("LOAD_ATTR", argval=instruction.argval))
    if op == "LOAD_ATTR" and instruction.flag:
        return _with_null(instruction, Instruction("LOAD_ATTR", argval=instruction.argval))
    if op == "LOAD_SUPER_ATTR":
        # Bit 1: class and object are given to super() rather than looked up in the frame.
        given = (instruction.arg or 0) & 2
        if not given and not own_frame:
            return _attribute_of_super(instruction)
        load = Instruction("LOAD_SUPER_ATTR", given, instruction.argval)
        return _with_null(instruction, load) if instruction.flag else _placed(instruction, [load])
    if op in OWNING:
        owning = instruction.copy()
        owning.op = OWNING[op]
        return [owning]
    if own_frame:
        return [instruction]
    if op == "LOAD_GLOBAL" and _is_bare_super(bytecode, instruction):
        return _call_of_super(instruction)
    if op == ("PRECALL" if VERSION == (3, 11) else "CALL") and _calls_bare_super(bytecode, instruction):
        return _super_arguments(bytecode, instruction) + [_with_three_arguments(instruction)]
    if op == "CALL" and VERSION == (3, 11) and _calls_bare_super(bytecode, bytecode[instruction.index - 1]):
        return [_with_three_arguments(instruction)]
    return [instruction]


def _with_null(original: Instruction, load: Instruction) -> list[Instruction]:
    group = [load, Instruction("PUSH_NULL")]
    if NULL_BELOW_CALLABLE:
        group.append(Instruction("SWAP", 2, 2))
    return _placed(original, group)


def _placed(original: Instruction, group: list[Instruction]) -> list[Instruction]:
    """Instructions that take the place of one."""
    for instruction in group:
        instruction.positions, instruction.offset = original.positions, original.offset
    return group


def _calls_bare_super(bytecode: Bytecode, instruction: Instruction) -> bool:
    """Whether this PRECALL (CALL from 3.12 on) is that of `super()` in a method."""
    if instruction.op not in ("PRECALL", "CALL") or instruction.argval != 0 or instruction.index == 0:
        return False
    load = bytecode[instruction.index - 1]
    named = load.op == "LOAD_GLOBAL" and load.argval == "super" and load.flag
    return named and "__class__" in bytecode.freevars and bytecode.argcount > 0


def _is_bare_super(bytecode: Bytecode, load: Instruction) -> bool:
    """Whether this LOAD_GLOBAL is that of `super()` in a method."""
    if load.argval != "super" or load.index + 1 >= len(bytecode.instructions):
        return False
    return _calls_bare_super(bytecode, bytecode[load.index + 1])


def call_super(function: Any, cls: Any, owner: Any) -> Any:
    """`super()` in a method, whatever the program has by that name.  The class may be in its cell."""
    if function is not _SUPER:
        return function()
    if type(cls) is types.CellType:
        if cls == _EMPTY:
            raise RuntimeError("super(): empty __class__ cell")
        cls = cls.cell_contents
    return function(cls, owner)


_SUPER = super
_EMPTY = types.CellType()  # equal only to one that is empty too


def _call_of_super(original: Instruction) -> list[Instruction]:
    callee = [Instruction("PUSH_NULL"), Instruction("LOAD_CONST", argval=call_super)]
    group = [*(callee if NULL_BELOW_CALLABLE else reversed(callee)), Instruction("LOAD_GLOBAL", argval="super")]
    return _placed(original, group)


def _attribute_of_super(original: Instruction) -> list[Instruction]:
    """For a LOAD_SUPER_ATTR, which calls what is below class and object without them."""
    callee = [Instruction("PUSH_NULL"), Instruction("LOAD_CONST", argval=call_super)]
    below = [*(callee if NULL_BELOW_CALLABLE else reversed(callee))]
    below += [Instruction("SWAP", each, each) for each in (4, 2, 5, 3)]  # all three, in order, are now above these two
    group = _placed(original, [*below, Instruction("CALL", 3, 3)])
    load = Instruction("LOAD_ATTR", argval=original.argval)
    return group + (_with_null(original, load) if original.flag else _placed(original, [load]))


def _super_arguments(bytecode: Bytecode, original: Instruction) -> list[Instruction]:
    first = bytecode.varnames[0]
    load = "LOAD_DEREF" if first in bytecode.cellvars else "LOAD_FAST"
    load_class = "LOAD_CLOSURE" if VERSION < (3, 13) else "LOAD_DEREF"  # the former is no instruction any more
    return _placed(original, [Instruction(load_class, argval="__class__"), Instruction(load, argval=first)])


def _with_three_arguments(instruction: Instruction) -> Instruction:
    copy = instruction.copy()
    copy.arg = copy.argval = 3
    return copy
