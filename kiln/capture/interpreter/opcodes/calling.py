"""Opcodes of calls, functions, generators and imports."""

from __future__ import annotations

import sys
import types
from typing import Any

from ...._native import is_instance as isinstance
from ....bytecode import Instruction
from ....bytecode.opcode_info import KEYWORDS_OR_NULL, OPCODE
from ...guards.source import lookup
from ...shadows.wrap import force
from ...state.exceptions import generator_stopped
from ...state.values import InterpretedIterator, Raised
from .. import operators
from ..attributes import load_attribute
from ..calls import call
from ..frame import NULL, YIELDED, Frame
from ..items import plain_mapping
from ..iteration import get_iterator, next_item
from ..program_types import native_name
from .building import list_to_tuple, name_in_errors
from .table import CALLABLE_FIRST, opcode


@opcode("KW_NAMES")
def kw_names(frame: Frame, instruction: Instruction) -> None:
    frame.keyword_names = instruction.argval


@opcode("CALL")
def call_opcode(frame: Frame, instruction: Instruction) -> None:
    names = frame.keyword_names
    frame.keyword_names = ()
    call_with_values(frame, frame.pop_many(instruction.argval), names)


@opcode("CALL_KW")
def call_kw(frame: Frame, instruction: Instruction) -> None:
    names = frame.pop()
    call_with_values(frame, frame.pop_many(instruction.argval), names)


def call_with_values(frame: Frame, values: list[object], names: tuple[str, ...]) -> None:
    second, first = frame.pop_raw(), frame.pop_raw()
    if CALLABLE_FIRST:
        function, owner = first, second
    elif first is NULL:
        function, owner = second, NULL
    else:
        function, owner = first, second
    if owner is not NULL:
        values = [owner, *values]
    split = len(values) - len(names)
    frame.push(call(frame.trace, function, tuple(values[:split]), dict(zip(names, values[split:], strict=True))))


@opcode("CALL_FUNCTION_EX")
def call_function_ex(frame: Frame, instruction: Instruction) -> None:
    kwargs: object = {}
    if KEYWORDS_OR_NULL or instruction.flag:
        given = frame.pop()
        kwargs = {} if given is NULL else given
    args = frame.pop()
    if CALLABLE_FIRST:
        frame.pop_raw()
        function = frame.pop()
    else:
        function = frame.pop()
        frame.pop_raw()
    if type(args) is not tuple:
        if lookup(type(args), "__iter__") is None and lookup(type(args), "__getitem__") is None:
            what = f"{name_in_errors(frame, function)} argument after *"
            frame.raise_error(TypeError(f"{what} must be an iterable, not {native_name(frame.trace, args)}"))
        args = call(frame.trace, tuple, (args,), {})
    keywords = plain_mapping(frame.trace, kwargs)
    if not all(isinstance(name, str) for name in keywords):
        frame.raise_error(TypeError("keywords must be strings"))
    frame.push(call(frame.trace, function, args, keywords))


@opcode("MAKE_FUNCTION")
def make_function(frame: Frame, instruction: Instruction) -> None:
    code = frame.pop()
    parts = following_parts(frame) if PARTS_FOLLOW else flagged_parts(frame, instruction.argval)
    function = types.FunctionType(code, frame.globals, code.co_name, None, parts.pop(CLOSURE, None))
    for flag, content in parts.items():
        set_function_part(frame, function, flag, content)
    frame.push(set_names(frame, function))


CLOSURE = 8
PARTS_FOLLOW = "SET_FUNCTION_ATTRIBUTE" in OPCODE


def flagged_parts(frame: Frame, flags: int) -> dict[int, Any]:
    """The closure, annotations, keyword defaults and defaults of a new function, popped as the flags say."""
    return {flag: frame.pop() for flag in (CLOSURE, 4, 2, 1) if flags & flag}


def following_parts(frame: Frame) -> dict[int, Any]:
    """The same where instructions give them to the function (from 3.13 on), which are executed with MAKE_FUNCTION.

    There must be no break between: no function can be made that has no closure yet.
    """
    parts: dict[int, Any] = {}
    steps = frame.bytecode.instructions
    while steps[frame.next].op == "SET_FUNCTION_ATTRIBUTE":
        parts[steps[frame.next].argval] = frame.pop()
        frame.next += 1
    return parts


def annotation_table(value: Any) -> dict[Any, Any]:
    return dict(zip(value[::2], value[1::2], strict=True)) if isinstance(value, tuple) else value


def force_items(frame: Frame, value: dict[Any, Any]) -> dict[Any, Any]:
    return {key: force(frame.trace, item) for key, item in value.items()}


def set_names(frame: Frame, function: types.FunctionType) -> types.FunctionType:
    function.__qualname__ = function.__code__.co_qualname
    function.__module__ = frame.globals.get("__name__")  # type: ignore[assignment]  # may be None
    return function


def set_function_part(frame: Frame, function: types.FunctionType, flag: int, value: Any) -> None:
    if flag == 4:
        function.__annotations__ = annotation_table(value)
    elif flag == 16:
        function.__annotate__ = value  # type: ignore[attr-defined]  # from 3.14 on
    elif flag == 2:
        function.__kwdefaults__ = force_items(frame, value)
    else:
        function.__defaults__ = value


@opcode("RETURN_GENERATOR")
def return_generator(frame: Frame, instruction: Instruction) -> None:
    frame.push(None)  # POP_TOP drops it: the caller has the generator already


@opcode("YIELD_VALUE")
def yield_value(frame: Frame, instruction: Instruction) -> object:
    frame.result = frame.pop_raw()
    return YIELDED


@opcode("GET_YIELD_FROM_ITER")
def get_yield_from_iter(frame: Frame, instruction: Instruction) -> None:
    value = frame.pop()
    frame.push(value if issubclass(type(value), InterpretedIterator) else get_iterator(frame.trace, value))


@opcode("SEND")
def send(frame: Frame, instruction: Instruction) -> None:
    value = frame.pop()
    receiver = frame.peek()
    try:
        if value is None:
            frame.push(next_item(frame.trace, receiver))
        else:
            frame.push(call(frame.trace, load_attribute(frame.trace, receiver, "send"), (value,), {}))
    except Raised as raised:
        if not isinstance(raised.error, StopIteration):
            raise
        if sys.version_info < (3, 12):
            frame.stack.pop()
        frame.push(raised.error.value)
        frame.jump(instruction.argval)


@opcode("END_SEND")
def end_send(frame: Frame, instruction: Instruction) -> None:
    value = frame.pop_raw()
    frame.stack.pop()
    frame.push(value)


@opcode("CLEANUP_THROW")
def cleanup_throw(frame: Frame, instruction: Instruction) -> None:
    """An exception left the delegate of a generator: StopIteration ends it, others are raised again."""
    error = frame.pop()
    if not isinstance(error, StopIteration):
        raise Raised(error)
    frame.pop_many(2)
    frame.push(None)
    frame.push(error.value)


@opcode("IMPORT_NAME")
def import_name(frame: Frame, instruction: Instruction) -> None:
    names, level = frame.pop(), frame.pop()
    try:
        module = __import__(instruction.argval, frame.globals, None, names, level)
    except Exception as error:
        raise frame.trace.fail(f"importing {instruction.argval} fails", error=error) from error
    frame.trace.outside.pinned(module)
    frame.push(module)


@opcode("IMPORT_FROM")
def import_from(frame: Frame, instruction: Instruction) -> None:
    module = frame.peek()
    try:
        frame.push(load_attribute(frame.trace, module, instruction.argval))
    except Raised:
        raise frame.trace.fail(f"cannot import name {instruction.argval!r}") from None


@opcode("CALL_INTRINSIC_1")
def call_intrinsic(frame: Frame, instruction: Instruction) -> None:
    number = instruction.argval
    if number == 6:
        list_to_tuple(frame, instruction)
    elif number == 5:
        frame.push(operators.unary(frame.trace, "UNARY_POSITIVE", frame.pop()))
    elif number == 3:
        error = frame.pop()
        if isinstance(error, StopIteration):
            error = generator_stopped(frame.trace, error)
        frame.push(error)
    else:
        raise frame.trace.fail(f"the intrinsic {number}")
