"""Opcodes of attributes, items and operators."""

from __future__ import annotations

from ....bytecode import Instruction
from ...state.operations import operations
from .. import operators  # noqa: F401  (fill the table)
from ..attribute_stores import delete_attribute, store_attribute
from ..attributes import load_attribute, load_method
from ..calls import call
from ..frame import Frame
from ..items import delete_item, get_item, set_item
from ..membership import contains, is_same
from ..protocols import truth
from .table import CALLABLE_FIRST, opcode, push_callable


@opcode("LOAD_ATTR")
def load_attr(frame: Frame, instruction: Instruction) -> None:
    if instruction.flag:
        push_callable(frame, load_method(frame.trace, frame.pop_raw(), instruction.argval))
    else:
        load = load_method if is_split_method_load(frame) else load_attribute
        frame.push(load(frame.trace, frame.pop_raw(), instruction.argval))


def is_split_method_load(frame: Frame) -> bool:
    """In continuations, loading a method is an attribute, a NULL, and (before 3.13) their exchange.

    A NULL right before CALL_FUNCTION_EX stands for keyword arguments.
    """
    following = [step.op for step in frame.bytecode.instructions[frame.next : frame.next + 2]]
    if following[:1] != ["PUSH_NULL"]:
        return False
    return following[1:] != ["CALL_FUNCTION_EX"] if CALLABLE_FIRST else following[1:] == ["SWAP"]


@opcode("LOAD_METHOD")
def load_method_opcode(frame: Frame, instruction: Instruction) -> None:
    push_callable(frame, load_method(frame.trace, frame.pop_raw(), instruction.argval))


@opcode("LOAD_SUPER_ATTR")
def load_super_attr(frame: Frame, instruction: Instruction) -> None:
    owner, cls, function = frame.pop(), frame.pop(), frame.pop()
    proxy = call(frame.trace, function, (cls, owner) if (instruction.arg or 0) & 2 else (), {})
    value = load_attribute(frame.trace, proxy, instruction.argval)
    if instruction.flag:
        push_callable(frame, value)
    else:
        frame.push(value)


@opcode("STORE_ATTR")
def store_attr(frame: Frame, instruction: Instruction) -> None:
    owner, value = frame.pop(), frame.pop_raw()
    store_attribute(frame.trace, owner, instruction.argval, value)


@opcode("DELETE_ATTR")
def delete_attr(frame: Frame, instruction: Instruction) -> None:
    delete_attribute(frame.trace, frame.pop(), instruction.argval)


@opcode("BINARY_SUBSCR")
def binary_subscr(frame: Frame, instruction: Instruction) -> None:
    key, container = frame.pop(), frame.pop()
    frame.push(get_item(frame.trace, container, key))


@opcode("BINARY_SLICE")
def binary_slice(frame: Frame, instruction: Instruction) -> None:
    stop, start, container = frame.pop(), frame.pop(), frame.pop()
    frame.push(get_item(frame.trace, container, slice(start, stop)))


@opcode("STORE_SUBSCR")
def store_subscr(frame: Frame, instruction: Instruction) -> None:
    key, container, value = frame.pop(), frame.pop(), frame.pop_raw()
    set_item(frame.trace, container, key, value)


@opcode("STORE_SLICE")
def store_slice(frame: Frame, instruction: Instruction) -> None:
    stop, start, container, value = frame.pop(), frame.pop(), frame.pop(), frame.pop()
    set_item(frame.trace, container, slice(start, stop), value)


@opcode("DELETE_SUBSCR")
def delete_subscr(frame: Frame, instruction: Instruction) -> None:
    key, container = frame.pop(), frame.pop()
    delete_item(frame.trace, container, key)


@opcode("BINARY_OP")
def binary_op(frame: Frame, instruction: Instruction) -> None:
    right, left = frame.pop(), frame.pop()
    if instruction.argval == "[]":
        frame.push(get_item(frame.trace, left, right))
    else:
        frame.push(operators.binary(frame.trace, instruction.argval, left, right))


@opcode("UNARY_NEGATIVE", "UNARY_POSITIVE", "UNARY_INVERT")
def unary(frame: Frame, instruction: Instruction) -> None:
    frame.push(operators.unary(frame.trace, instruction.op, frame.pop()))


@opcode("UNARY_NOT")
def unary_not(frame: Frame, instruction: Instruction) -> None:
    frame.push(not truth(frame.trace, frame.pop()))


@opcode("TO_BOOL")
def to_bool(frame: Frame, instruction: Instruction) -> None:
    frame.push(operations.branch_ahead(frame, frame.pop()))


@opcode("COMPARE_OP")
def compare_op(frame: Frame, instruction: Instruction) -> None:
    right, left = frame.pop(), frame.pop()
    result = operators.compare(frame.trace, instruction.argval, left, right)
    frame.push(operations.branch_ahead(frame, result) if CALLABLE_FIRST and instruction.flag else result)


@opcode("IS_OP")
def is_op(frame: Frame, instruction: Instruction) -> None:
    right, left = frame.pop_raw(), frame.pop_raw()
    same = is_same(frame.trace, left, right)
    frame.push(same != bool(instruction.argval))


@opcode("CONTAINS_OP")
def contains_op(frame: Frame, instruction: Instruction) -> None:
    container, value = frame.pop(), frame.pop()
    frame.push(contains(frame.trace, container, value) != bool(instruction.argval))
