"""Opcodes of CPython 3.11 to 3.13, one handler each: stack, variables, attributes, operators, jumps.

The other handlers are in the ``opcodes_*.py`` files; operators on values are in ``operators.py``.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable

from ..._native import is_instance as isinstance
from ...bytecode import Instruction
from ..shadows.wrap import force
from ..state.operations import operations
from ..state.values import DELETED, Raised
from . import opcodes_building, opcodes_calls, opcodes_exceptions, opcodes_match, operators  # noqa: F401  (fill the table)
from .attributes import delete_attribute, load_attribute, load_method, store_attribute
from .calls import call
from .frame import NULL, RETURNED, Frame
from .opcode_table import CALLABLE_FIRST, HANDLERS, opcode, push_callable
from .protocols import get_iterator, next_item, truth

# -- stack and variables --------------------------------------------------------------------------------------------


@opcode("NOP", "RESUME", "PRECALL", "CACHE", "COPY_FREE_VARS", "SETUP_ANNOTATIONS", "EXTENDED_ARG")
def nothing(frame, instruction):
    return None


@opcode("POP_TOP")
def pop_top(frame, instruction):
    frame.stack.pop()


@opcode("PUSH_NULL")
def push_null(frame, instruction):
    frame.push(NULL)


@opcode("COPY")
def copy(frame, instruction):
    frame.push(frame.stack[-instruction.arg])


@opcode("SWAP")
def swap(frame, instruction):
    stack, depth = frame.stack, instruction.arg
    stack[-1], stack[-depth] = stack[-depth], stack[-1]


@opcode("LOAD_CONST")
def load_const(frame, instruction):
    frame.push(instruction.argval)


@opcode("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_CLOSURE")
def load_fast(frame, instruction):
    frame.push(local(frame, instruction.argval))


def local(frame: Frame, name: str) -> object:
    if name in frame.cells:
        return frame.cells[name]
    if name not in frame.locals:
        frame.raise_error(
            UnboundLocalError(f"cannot access local variable '{name}' where it is not associated with a value")
        )
    return frame.locals[name]


@opcode("LOAD_FAST_LOAD_FAST")
def load_fast_twice(frame, instruction):
    for name in instruction.argval:
        frame.push(local(frame, name))


@opcode("LOAD_FAST_AND_CLEAR")
def load_fast_and_clear(frame, instruction):
    name = instruction.argval
    if name in frame.cells:
        frame.push(frame.cells.pop(name))
    else:
        frame.push(frame.locals.pop(name, NULL))


@opcode("STORE_FAST")
def store_fast(frame, instruction):
    store_local(frame, instruction.argval, frame.pop_raw())


def store_local(frame: Frame, name: str, value: object) -> None:
    """Names of cells hold cells: comprehensions inlined by 3.12 put the cell of the enclosing scope back like this."""
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
def store_fast_twice(frame, instruction):
    for name in instruction.argval:
        store_local(frame, name, frame.pop_raw())


@opcode("STORE_FAST_LOAD_FAST")
def store_and_load(frame, instruction):
    first, second = instruction.argval
    store_local(frame, first, frame.pop_raw())
    frame.push(local(frame, second))


@opcode("DELETE_FAST")
def delete_fast(frame, instruction):
    local(frame, instruction.argval)
    frame.locals.pop(instruction.argval, None)


@opcode("MAKE_CELL")
def make_cell(frame, instruction):
    name = instruction.argval
    if name in frame.locals:
        frame.cells[name] = types.CellType(frame.locals.pop(name))
    else:
        frame.cells[name] = types.CellType()


@opcode("LOAD_DEREF", "LOAD_CLASSDEREF")
def load_deref(frame, instruction):
    name = instruction.argval
    try:
        frame.push(frame.trace.outside.reach(frame.cells[name].cell_contents))
    except ValueError:
        if name in frame.code.co_freevars:
            if frame is frame.trace.root:  # only the function itself, run as it is, can say this
                raise frame.trace.fail(f"free variable {name!r} is not bound yet", whole=True) from None
            message = f"cannot access free variable '{name}' where it is not associated with a value in enclosing scope"
            frame.raise_error(NameError(message, name=name))
        frame.raise_error(
            UnboundLocalError(f"cannot access local variable '{name}' where it is not associated with a value")
        )


@opcode("STORE_DEREF")
def store_deref(frame, instruction):
    frame.cells[instruction.argval].cell_contents = frame.pop_raw()


@opcode("DELETE_DEREF")
def delete_deref(frame, instruction):
    load_deref(frame, instruction)
    frame.stack.pop()
    del frame.cells[instruction.argval].cell_contents


@opcode("LOAD_GLOBAL", "LOAD_NAME")
def load_global(frame, instruction):
    if instruction.op == "LOAD_GLOBAL" and instruction.flag and not CALLABLE_FIRST:
        frame.push(NULL)
    frame.push(frame.trace.outside.load_global(frame.globals, instruction.argval))
    if instruction.op == "LOAD_GLOBAL" and instruction.flag and CALLABLE_FIRST:
        frame.push(NULL)


@opcode("STORE_GLOBAL", "STORE_NAME")
def store_global(frame, instruction):
    frame.trace.outside.written_globals(frame.globals)[instruction.argval] = frame.pop_raw()


@opcode("DELETE_GLOBAL", "DELETE_NAME")
def delete_global(frame, instruction):
    name = instruction.argval
    if name not in frame.globals and name not in frame.trace.outside.written_globals(frame.globals):
        frame.raise_error(NameError(f"name {name!r} is not defined", name=name))
    frame.trace.outside.load_global(frame.globals, name)
    frame.trace.outside.written_globals(frame.globals)[name] = DELETED


@opcode("LOAD_ASSERTION_ERROR")
def load_assertion_error(frame, instruction):
    frame.push(AssertionError)


@opcode("LOAD_BUILD_CLASS")
def load_build_class(frame, instruction):
    raise frame.trace.fail("a class statement inside the compiled function", "define the class at module level")


@opcode("LOAD_LOCALS")
def load_locals(frame, instruction):
    raise frame.trace.fail("locals of a class body")


# -- attributes and items -------------------------------------------------------------------------------------------


@opcode("LOAD_ATTR")
def load_attr(frame, instruction):
    if instruction.flag:
        push_callable(frame, load_method(frame.trace, frame.pop_raw(), instruction.argval))
    else:
        load = load_method if is_split_method_load(frame) else load_attribute
        frame.push(load(frame.trace, frame.pop_raw(), instruction.argval))


def is_split_method_load(frame: Frame) -> bool:
    """In continuations, loading a method is an attribute, a NULL, and (before 3.13) their exchange."""
    following = [step.op for step in frame.bytecode.instructions[frame.next : frame.next + 2]]
    return following[:1] == ["PUSH_NULL"] and (CALLABLE_FIRST or following[1:] == ["SWAP"])


@opcode("LOAD_METHOD")
def load_method_opcode(frame, instruction):
    push_callable(frame, load_method(frame.trace, frame.pop_raw(), instruction.argval))


@opcode("LOAD_SUPER_ATTR")
def load_super_attr(frame, instruction):
    owner, cls, function = frame.pop(), frame.pop(), frame.pop()
    proxy = call(frame.trace, function, (cls, owner) if (instruction.arg & 2) else (), {})
    value = load_attribute(frame.trace, proxy, instruction.argval)
    if instruction.flag:
        push_callable(frame, value)
    else:
        frame.push(value)


@opcode("STORE_ATTR")
def store_attr(frame, instruction):
    owner, value = frame.pop(), frame.pop_raw()
    store_attribute(frame.trace, owner, instruction.argval, value)


@opcode("DELETE_ATTR")
def delete_attr(frame, instruction):
    delete_attribute(frame.trace, frame.pop(), instruction.argval)


@opcode("BINARY_SUBSCR")
def binary_subscr(frame, instruction):
    key, container = frame.pop(), frame.pop()
    frame.push(operators.get_item(frame.trace, container, key))


@opcode("BINARY_SLICE")
def binary_slice(frame, instruction):
    stop, start, container = frame.pop(), frame.pop(), frame.pop()
    frame.push(operators.get_item(frame.trace, container, slice(start, stop)))


@opcode("STORE_SUBSCR")
def store_subscr(frame, instruction):
    key, container, value = frame.pop(), frame.pop(), frame.pop_raw()
    operators.set_item(frame.trace, container, key, value)


@opcode("STORE_SLICE")
def store_slice(frame, instruction):
    stop, start, container, value = frame.pop(), frame.pop(), frame.pop(), frame.pop()
    operators.set_item(frame.trace, container, slice(start, stop), value)


@opcode("DELETE_SUBSCR")
def delete_subscr(frame, instruction):
    key, container = frame.pop(), frame.pop()
    operators.delete_item(frame.trace, container, key)


# -- operators ------------------------------------------------------------------------------------------------------


@opcode("BINARY_OP")
def binary_op(frame, instruction):
    right, left = frame.pop(), frame.pop()
    frame.push(operators.binary(frame.trace, instruction.argval, left, right))


@opcode("UNARY_NEGATIVE", "UNARY_POSITIVE", "UNARY_INVERT")
def unary(frame, instruction):
    frame.push(operators.unary(frame.trace, instruction.op, frame.pop()))


@opcode("UNARY_NOT")
def unary_not(frame, instruction):
    frame.push(not truth(frame.trace, frame.pop()))


@opcode("TO_BOOL")
def to_bool(frame, instruction):
    frame.push(operations.branch_ahead(frame, frame.pop()))


@opcode("COMPARE_OP")
def compare_op(frame, instruction):
    right, left = frame.pop(), frame.pop()
    result = operators.compare(frame.trace, instruction.argval, left, right)
    frame.push(operations.branch_ahead(frame, result) if CALLABLE_FIRST and instruction.flag else result)


@opcode("IS_OP")
def is_op(frame, instruction):
    right, left = frame.pop_raw(), frame.pop_raw()
    same = operators.is_same(frame.trace, left, right)
    frame.push(same != bool(instruction.arg))


@opcode("CONTAINS_OP")
def contains_op(frame, instruction):
    container, value = frame.pop(), frame.pop()
    frame.push(operators.contains(frame.trace, container, value) != bool(instruction.arg))


# -- jumps and loops ------------------------------------------------------------------------------------------------


@opcode("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT")
def jump(frame, instruction):
    frame.jump(instruction.target)
    frame.trace.progress.count_step(frame.trace)


def conditional(names: tuple[str, ...], test: Callable[[Frame, Instruction], bool]) -> None:
    def handler(frame, instruction):
        if test(frame, instruction):
            frame.jump(instruction.target)

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
    lambda frame, instruction: operators.is_same(frame.trace, frame.pop_raw(), None),
)
conditional(
    ("POP_JUMP_IF_NOT_NONE", "POP_JUMP_FORWARD_IF_NOT_NONE", "POP_JUMP_BACKWARD_IF_NOT_NONE"),
    lambda frame, instruction: not operators.is_same(frame.trace, frame.pop_raw(), None),
)


@opcode("JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP")
def jump_or_pop(frame, instruction):
    wanted = instruction.op == "JUMP_IF_TRUE_OR_POP"
    if truth(frame.trace, frame.peek()) == wanted:
        frame.jump(instruction.target)
    else:
        frame.stack.pop()


@opcode("GET_ITER")
def get_iter(frame, instruction):
    frame.push(get_iterator(frame.trace, frame.pop()))


@opcode("FOR_ITER")
def for_iter(frame, instruction):
    frame.trace.progress.count_step(frame.trace)
    iterator = frame.peek()
    try:
        frame.push(next_item(frame.trace, iterator))
    except Raised as raised:
        if not isinstance(raised.error, StopIteration):
            raise
        if CALLABLE_FIRST:
            frame.jump(instruction.target)  # END_FOR and POP_TOP follow there
            frame.push(None)
        elif sys.version_info >= (3, 12):
            frame.jump(instruction.target)
            frame.push(None)  # END_FOR pops both
        else:
            frame.stack.pop()
            frame.jump(instruction.target)


@opcode("END_FOR")
def end_for(frame, instruction):
    frame.stack.pop()
    if not CALLABLE_FIRST:
        frame.stack.pop()


@opcode("RETURN_VALUE")
def return_value(frame, instruction):
    frame.result = frame.pop_raw()
    return RETURNED


@opcode("RETURN_CONST")
def return_const(frame, instruction):
    frame.result = instruction.argval
    return RETURNED
