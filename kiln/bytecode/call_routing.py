"""Code that does what it did, but passes whatever it calls through a router first.

For frames that run as they are (generators, what cannot be split): the functions they call may still be compiled.
"""

import types
from collections.abc import Callable

from .analysis import stack_kinds
from .assemble import assemble
from .decode import decode
from .instruction import Bytecode, Instruction
from .normalize import normalize
from .opcode_info import CALL_PREFIXES, CALLS, NULL_BELOW_CALLABLE
from .split import callable_place
from .stack_effects import Stack
from .writer import Writer


def route_calls(code: types.CodeType, route: Callable[[object], object]) -> types.CodeType:
    """The code with every call going to what `route` (a constant of the code) gives for its callable."""
    bytecode = decode(code)
    normalize(bytecode, own_frame=True)
    _insert(bytecode, _routes(bytecode, stack_kinds(bytecode), route))
    return assemble(bytecode)


def _routes(bytecode: Bytecode, kinds: list[Stack | None], route: object) -> dict[Instruction, list[Instruction]]:
    """What to put before each call (and before its prefixes, which the interpreter takes as one with it)."""
    groups: dict[Instruction, list[Instruction]] = {}
    for index, instruction in enumerate(bytecode.instructions):
        stack = kinds[index]
        if instruction.op in CALLS and stack is not None:
            first = index
            while bytecode[first - 1].op in CALL_PREFIXES:
                first -= 1
            groups[bytecode[first]] = _routing(instruction, callable_place(instruction, stack), route)
    return groups


def _routing(call: Instruction, place: int, route: object) -> list[Instruction]:
    """Replace the callable, which lies `place` slots from the top, by what the router makes of it."""
    writer = Writer("", None)
    writer.positions = call.positions
    for op in ("PUSH_NULL", "LOAD_CONST") if NULL_BELOW_CALLABLE else ("LOAD_CONST", "PUSH_NULL"):
        writer.emit(op, route if op == "LOAD_CONST" else None)
    writer.emit("COPY", place + 2)
    writer.call(1)
    writer.emit("SWAP", place + 1)
    writer.emit("POP_TOP")
    return [instruction for instruction, _ in writer.rows]


def _insert(bytecode: Bytecode, groups: dict[Instruction, list[Instruction]]) -> None:
    def first(instruction: Instruction) -> Instruction:
        return groups[instruction][0] if instruction in groups else instruction

    steps = [step for old in bytecode.instructions for step in (*groups.get(old, ()), old)]
    for step in steps:
        if step.target is not None:
            step.target = first(step.target)
    for entry in bytecode.exceptions:
        entry.start, entry.target = first(entry.start), first(entry.target)
    bytecode.instructions = steps
    bytecode.renumber()
