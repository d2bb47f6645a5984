"""Opcodes of the operand stack and of variables."""

from __future__ import annotations

import types

from ....bytecode import Instruction
from ....bytecode.opcode_info import LOADS_CONSTANT
from ...shadows.wrap import force
from ...state.values import DELETED, Raised
from .. import operators  # noqa: F401  (fill the table)
from ..frame import HANDLERS, NULL, Frame
from .table import CALLABLE_FIRST, opcode


@opcode("NOP", "RESUME", "PRECALL", "CACHE", "COPY_FREE_VARS", "SETUP_ANNOTATIONS", "EXTENDED_ARG", "NOT_TAKEN")
def nothing(frame: Frame, instruction: Instruction) -> None:
    return None


@opcode("POP_TOP", "POP_ITER")
def pop_top(frame: Frame, instruction: Instruction) -> None:
    frame.stack.pop()


@opcode("COPY")
def copy(frame: Frame, instruction: Instruction) -> None:
    frame.push(frame.stack[-instruction.argval])


@opcode("SWAP")
def swap(frame: Frame, instruction: Instruction) -> None:
    stack, depth = frame.stack, instruction.argval
    stack[-1], stack[-depth] = stack[-depth], stack[-1]


@opcode("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW", "LOAD_CLOSURE")
def load_fast(frame: Frame, instruction: Instruction) -> None:
    frame.push(local(frame, instruction.argval))


def unbound_local(name: str) -> Raised:
    return Raised(UnboundLocalError(f"cannot access local variable '{name}' where it is not associated with a value"))


def local(frame: Frame, name: str) -> object:
    if name in frame.cells:
        return frame.cells[name]
    if name not in frame.locals:
        raise unbound_local(name)
    return frame.locals[name]


@opcode("LOAD_FAST_LOAD_FAST", "LOAD_FAST_BORROW_LOAD_FAST_BORROW")
def load_fast_twice(frame: Frame, instruction: Instruction) -> None:
    for name in instruction.argval:
        frame.push(local(frame, name))


@opcode("LOAD_FAST_AND_CLEAR")
def load_fast_and_clear(frame: Frame, instruction: Instruction) -> None:
    name = instruction.argval
    if name in frame.cells:
        frame.push(frame.cells.pop(name))
    else:
        frame.push(frame.locals.pop(name, NULL))


def store_local(frame: Frame, name: str, value: object) -> None:
    """Assign to a variable. From 3.12 on, inlined comprehensions restore the cell of the enclosing scope this way."""
    if name in frame.cell_names:
        frame.cells.pop(name, None)
        value = force(frame.trace, value)
        if type(value) is types.CellType:
            frame.cells[name] = value
            return
    if value is NULL:
        frame.locals.pop(name, None)
    else:
        frame.locals[name] = value


@opcode("STORE_FAST_STORE_FAST")
def store_fast_twice(frame: Frame, instruction: Instruction) -> None:
    for name in instruction.argval:
        store_local(frame, name, frame.pop_raw())


@opcode("STORE_FAST_LOAD_FAST")
def store_and_load(frame: Frame, instruction: Instruction) -> None:
    first, second = instruction.argval
    store_local(frame, first, frame.pop_raw())
    frame.push(local(frame, second))


@opcode("DELETE_FAST")
def delete_fast(frame: Frame, instruction: Instruction) -> None:
    local(frame, instruction.argval)
    frame.locals.pop(instruction.argval, None)


@opcode("MAKE_CELL")
def make_cell(frame: Frame, instruction: Instruction) -> None:
    name = instruction.argval
    if name in frame.locals:
        frame.cells[name] = types.CellType(frame.locals.pop(name))
    else:
        frame.cells[name] = types.CellType()


@opcode("LOAD_DEREF", "LOAD_CLASSDEREF")
def load_deref(frame: Frame, instruction: Instruction) -> None:
    name = instruction.argval
    try:
        frame.push(frame.trace.outside.reach(frame.cells[name].cell_contents))
    except ValueError:
        if name in frame.code.co_freevars:
            if frame is frame.trace.root:  # only the real function can raise this
                raise frame.trace.fail(f"free variable {name!r} is not bound yet", whole=True) from None
            message = f"cannot access free variable '{name}' where it is not associated with a value in enclosing scope"
            frame.raise_error(NameError(message, name=name))
        raise unbound_local(name) from None


@opcode("STORE_DEREF")
def store_deref(frame: Frame, instruction: Instruction) -> None:
    frame.cells[instruction.argval].cell_contents = frame.pop_raw()


@opcode("DELETE_DEREF")
def delete_deref(frame: Frame, instruction: Instruction) -> None:
    load_deref(frame, instruction)
    frame.stack.pop()
    del frame.cells[instruction.argval].cell_contents


@opcode("LOAD_GLOBAL", "LOAD_NAME")
def load_global(frame: Frame, instruction: Instruction) -> None:
    if instruction.op == "LOAD_GLOBAL" and instruction.flag and not CALLABLE_FIRST:
        frame.push(NULL)
    frame.push(frame.trace.outside.load_global(frame.globals, instruction.argval))
    if instruction.op == "LOAD_GLOBAL" and instruction.flag and CALLABLE_FIRST:
        frame.push(NULL)


@opcode("STORE_GLOBAL", "STORE_NAME")
def store_global(frame: Frame, instruction: Instruction) -> None:
    frame.trace.outside.written_globals(frame.globals)[instruction.argval] = frame.pop_raw()


@opcode("DELETE_GLOBAL", "DELETE_NAME")
def delete_global(frame: Frame, instruction: Instruction) -> None:
    name = instruction.argval
    if name not in frame.globals and name not in frame.trace.outside.written_globals(frame.globals):
        frame.raise_error(NameError(f"name {name!r} is not defined", name=name))
    frame.trace.outside.load_global(frame.globals, name)
    frame.trace.outside.written_globals(frame.globals)[name] = DELETED


@opcode("LOAD_BUILD_CLASS")
def load_build_class(frame: Frame, instruction: Instruction) -> None:
    raise frame.trace.fail("a class statement inside the compiled function", "define the class at module level")


@opcode("LOAD_LOCALS")
def load_locals(frame: Frame, instruction: Instruction) -> None:
    raise frame.trace.fail("locals of a class body")


@opcode(*LOADS_CONSTANT)
def load_constant(frame: Frame, instruction: Instruction) -> None:
    frame.push(instruction.argval)


HANDLERS.update(
    {
        "PUSH_NULL": lambda frame, instruction: frame.push(NULL),
        "STORE_FAST": lambda frame, instruction: store_local(frame, instruction.argval, frame.pop_raw()),
        "LOAD_ASSERTION_ERROR": lambda frame, instruction: frame.push(AssertionError),
    }
)
