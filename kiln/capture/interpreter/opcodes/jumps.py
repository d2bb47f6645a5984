"""Opcodes of jumps, loops and returns."""

from __future__ import annotations

import sys
from collections.abc import Callable

from ...._native import is_instance as isinstance
from ....bytecode import Instruction
from ...state.operations import operations
from ...state.values import Raised
from .. import operators  # noqa: F401  (fill the table)
from ..frame import HANDLERS, RETURNED, Frame
from ..iteration import get_iterator, next_item
from ..membership import is_same
from ..protocols import truth
from .table import CALLABLE_FIRST, opcode


@opcode("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT")
def jump(frame: Frame, instruction: Instruction) -> None:
    frame.jump(instruction.argval)
    frame.trace.progress.count_step(frame.trace)


def conditional(names: tuple[str, ...], test: Callable[[Frame, Instruction], bool]) -> None:
    def handler(frame: Frame, instruction: Instruction) -> None:
        if test(frame, instruction):
            frame.jump(instruction.argval)

    for name in names:
        HANDLERS[name] = handler


conditional(
    ("POP_JUMP_IF_TRUE", "POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_BACKWARD_IF_TRUE"),
    lambda frame, instruction: operations.branch(frame, instruction, frame.pop()),
)


conditional(
    ("POP_JUMP_IF_FALSE", "POP_JUMP_FORWARD_IF_FALSE", "POP_JUMP_BACKWARD_IF_FALSE"),
    lambda frame, instruction: not operations.branch(frame, instruction, frame.pop()),
)


conditional(
    ("POP_JUMP_IF_NONE", "POP_JUMP_FORWARD_IF_NONE", "POP_JUMP_BACKWARD_IF_NONE"),
    lambda frame, instruction: is_same(frame.trace, frame.pop_raw(), None),
)


conditional(
    ("POP_JUMP_IF_NOT_NONE", "POP_JUMP_FORWARD_IF_NOT_NONE", "POP_JUMP_BACKWARD_IF_NOT_NONE"),
    lambda frame, instruction: not is_same(frame.trace, frame.pop_raw(), None),
)


@opcode("JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP")
def jump_or_pop(frame: Frame, instruction: Instruction) -> None:
    wanted = instruction.op == "JUMP_IF_TRUE_OR_POP"
    if truth(frame.trace, frame.peek()) == wanted:
        frame.jump(instruction.argval)
    else:
        frame.stack.pop()


@opcode("GET_ITER")
def get_iter(frame: Frame, instruction: Instruction) -> None:
    frame.push(get_iterator(frame.trace, frame.pop()))


@opcode("FOR_ITER")
def for_iter(frame: Frame, instruction: Instruction) -> None:
    frame.trace.progress.count_step(frame.trace)
    iterator = frame.peek()
    try:
        frame.push(next_item(frame.trace, iterator))
    except Raised as raised:
        if not isinstance(raised.error, StopIteration):
            raise
        if CALLABLE_FIRST:
            frame.jump(instruction.argval)  # END_FOR and POP_TOP follow there
            frame.push(None)
        elif sys.version_info >= (3, 12):
            frame.jump(instruction.argval)
            frame.push(None)  # END_FOR pops both
        else:
            frame.stack.pop()
            frame.jump(instruction.argval)


@opcode("END_FOR")
def end_for(frame: Frame, instruction: Instruction) -> None:
    frame.stack.pop()
    if not CALLABLE_FIRST:
        frame.stack.pop()


@opcode("RETURN_VALUE")
def return_value(frame: Frame, instruction: Instruction) -> object:
    frame.result = frame.pop_raw()
    return RETURNED


@opcode("RETURN_CONST")
def return_const(frame: Frame, instruction: Instruction) -> object:
    frame.result = instruction.argval
    return RETURNED
