"""Opcodes that build and unpack containers and text."""

from __future__ import annotations

import types
from collections import OrderedDict
from typing import Any

from ...._native import is_instance as isinstance
from ....bytecode import Instruction
from ....platform.python_objects import mapping_items
from ...guards.source import lookup
from ...shadows.native_arguments import load_keys
from ...shadows.unknown_text import UnknownText, is_unknown, unknown_text
from ...shadows.wrap import force, is_constant
from ...state.trace import Trace
from ...state.values import Raised
from .. import native_calls, operators
from ..attributes import load_or_default
from ..calls import call
from ..frame import Frame
from ..items import get_item, set_item
from ..iteration import consume, elements_to_unpack, unpack
from ..program_types import native_name
from .table import CALLABLE_FIRST, opcode


@opcode("BUILD_TUPLE")
def build_tuple(frame: Frame, instruction: Instruction) -> None:
    items = frame.pop_many(instruction.argval)
    following = frame.bytecode.instructions[frame.next]
    if following.op == "RETURN_VALUE" and frame is frame.trace.frames[0]:
        frame.push(tuple(items))  # returned as it is: its elements need not be forced
    else:
        frame.push(tuple([force(frame.trace, item) for item in items]))


@opcode("BUILD_LIST")
def build_list(frame: Frame, instruction: Instruction) -> None:
    frame.push(frame.pop_many(instruction.argval))


@opcode("BUILD_SET")
def build_set(frame: Frame, instruction: Instruction) -> None:
    items = [force(frame.trace, item) for item in frame.pop_many(instruction.argval)]
    frame.push(call_builtin(frame, set, items))


def call_builtin(frame: Frame, function: object, *args: object) -> object:
    return native_calls.call_without_rule(frame.trace, function, args, {})


@opcode("BUILD_MAP")
def build_map(frame: Frame, instruction: Instruction) -> None:
    items = frame.pop_many(2 * instruction.argval)
    made: dict[Any, Any] = {}
    frame.push(made)
    for key, value in zip(items[::2], items[1::2], strict=True):
        set_item(frame.trace, made, force(frame.trace, key), value)


@opcode("BUILD_CONST_KEY_MAP")
def build_const_key_map(frame: Frame, instruction: Instruction) -> None:
    keys = frame.pop()
    frame.push(dict(zip(keys, frame.pop_many(instruction.argval), strict=True)))


@opcode("BUILD_STRING")
def build_string(frame: Frame, instruction: Instruction) -> None:
    parts = [force(frame.trace, part) for part in frame.pop_many(instruction.argval)]
    frame.push(UnknownText(frame.trace) if any(map(is_unknown, parts)) else "".join(parts))


@opcode("BUILD_SLICE")
def build_slice(frame: Frame, instruction: Instruction) -> None:
    frame.push(slice(*(force(frame.trace, part) for part in frame.pop_many(instruction.argval))))


@opcode("FORMAT_VALUE")
def format_value(frame: Frame, instruction: Instruction) -> None:
    flags = instruction.argval
    spec = frame.pop() if flags & 4 else ""
    value = convert_text(frame, frame.pop(), flags & 3)
    frame.push(format_text(frame, value, spec))


def format_text(frame: Frame, value: object, spec: object) -> object:
    """A part of an f-string."""
    unknown = unknown_text(frame.trace, value, frame.stack)
    return call(frame.trace, format, (value, spec), {}) if unknown is None else unknown


def convert_text(frame: Frame, value: object, kind: int) -> object:
    converter = (None, str, repr, ascii)[kind]
    return value if converter is None else call(frame.trace, converter, (value,), {})


@opcode("CONVERT_VALUE")
def convert_value(frame: Frame, instruction: Instruction) -> None:
    frame.push(convert_text(frame, frame.pop(), instruction.argval))


@opcode("FORMAT_SIMPLE")
def format_simple(frame: Frame, instruction: Instruction) -> None:
    frame.push(format_text(frame, frame.pop(), ""))


@opcode("FORMAT_WITH_SPEC")
def format_with_spec(frame: Frame, instruction: Instruction) -> None:
    spec, value = frame.pop(), frame.pop()
    frame.push(format_text(frame, value, spec))


@opcode("BUILD_INTERPOLATION", "BUILD_TEMPLATE")
def build_template(frame: Frame, instruction: Instruction) -> None:
    raise frame.trace.fail("a template string")


@opcode("LIST_APPEND")
def list_append(frame: Frame, instruction: Instruction) -> None:
    value = frame.pop_raw()
    frame.peek(instruction.argval).append(value)


@opcode("SET_ADD")
def set_add(frame: Frame, instruction: Instruction) -> None:
    value = frame.pop()
    call(frame.trace, frame.peek(instruction.argval).add, (value,), {})


@opcode("MAP_ADD")
def map_add(frame: Frame, instruction: Instruction) -> None:
    value, key = frame.pop_raw(), frame.pop()
    set_item(frame.trace, frame.peek(instruction.argval), key, value)


@opcode("LIST_EXTEND")
def list_extend(frame: Frame, instruction: Instruction) -> None:
    items = frame.pop()
    target = frame.peek(instruction.argval)
    try:
        call(frame.trace, target.extend, (operators.operand_iterable(frame.trace, items),), {})
    except Raised as raised:
        if isinstance(raised.error, TypeError) and "not iterable" in str(raised.error):
            name = native_name(frame.trace, items)
            frame.raise_error(TypeError(f"Value after * must be an iterable, not {name}"))
        raise


@opcode("SET_UPDATE")
def set_update(frame: Frame, instruction: Instruction) -> None:
    items = frame.pop()
    call(frame.trace, frame.peek(instruction.argval).update, (operators.operand_iterable(frame.trace, items),), {})


@opcode("DICT_UPDATE", "DICT_MERGE")
def dict_update(frame: Frame, instruction: Instruction) -> None:
    items = frame.pop()
    target = frame.peek(instruction.argval)
    if instruction.op == "DICT_MERGE":
        merge_keywords(frame, target, items, frame.peek(instruction.argval + (3 if CALLABLE_FIRST else 2)))
    else:
        update_mapping(frame, target, items)


def update_mapping(frame: Frame, target: dict[Any, Any], items: object) -> None:
    """``{**items}``. Unlike ``dict.update`` it takes only mappings, and ignores overrides in subclasses of dict."""
    trace = frame.trace
    if isinstance(items, dict) and is_copied_natively(type(items)):
        call(trace, dict.update, (target, items_of(trace, items)), {})
        return
    keys = load_or_default(trace, items, "keys", None)
    if keys is None:
        frame.raise_error(TypeError(f"'{native_name(trace, items)}' object is not a mapping"))
    for key in list(consume(trace, call(trace, keys, (), {}))):
        set_item(trace, target, key, get_item(trace, items, key))


def is_copied_natively(kind: type) -> bool:
    """Whether CPython copies the items of such a dictionary without calling its methods."""
    return kind is OrderedDict or lookup(kind, "__iter__") is dict.__iter__


def items_of(trace: Trace, mapping: dict[Any, Any]) -> dict[Any, Any]:
    """A plain dictionary of all items, ignoring methods that a subclass overrides."""
    load_keys(trace, mapping)
    if type(mapping) in (dict, OrderedDict):
        return mapping
    if not all(is_constant(key) for key in dict.keys(mapping)):
        raise trace.fail(f"the items of a {type(mapping).__qualname__} whose keys are objects")
    return dict(mapping_items(mapping))


def merge_keywords(frame: Frame, target: dict[Any, Any], items: object, function: object) -> None:
    """``f(**items)``, after other keyword arguments."""
    method = load_or_default(frame.trace, items, "keys", None)
    if method is None:
        what = f"{name_in_errors(frame, function)} argument after **"
        frame.raise_error(TypeError(f"{what} must be a mapping, not {native_name(frame.trace, items)}"))
    keys: object
    if isinstance(items, dict) and is_copied_natively(type(items)):
        items = items_of(frame.trace, items)
        keys = items.keys()
    else:
        keys = call(frame.trace, method, (), {})
    for key in list(consume(frame.trace, keys)):
        if key in target:
            what = name_in_errors(frame, function)
            frame.raise_error(TypeError(f"{what} got multiple values for keyword argument '{key}'"))
        set_item(frame.trace, target, key, get_item(frame.trace, items, key))


def name_in_errors(frame: Frame, function: object) -> str:
    """A callable in CPython's messages about a call's arguments."""
    if not isinstance(function, NAMED):
        raise frame.trace.fail(f"a call of a {type(function).__name__} with arguments that are none")
    module = getattr(function, "__module__", None)
    return f"{module}.{function.__qualname__}()" if module not in (None, "builtins") else f"{function.__qualname__}()"


NAMED = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, type)


@opcode("LIST_TO_TUPLE")
def list_to_tuple(frame: Frame, instruction: Instruction) -> None:
    frame.push(tuple([force(frame.trace, item) for item in frame.pop()]))


@opcode("UNPACK_SEQUENCE")
def unpack_sequence(frame: Frame, instruction: Instruction) -> None:
    value = frame.pop()
    items = unpack(frame.trace, value, instruction.argval)
    frame.stack.extend(reversed(items))


@opcode("UNPACK_EX")
def unpack_ex(frame: Frame, instruction: Instruction) -> None:
    before, after = instruction.argval & 0xFF, instruction.argval >> 8
    items = list(elements_to_unpack(frame.trace, frame.pop()))
    if len(items) < before + after:
        frame.raise_error(
            ValueError(f"not enough values to unpack (expected at least {before + after}, got {len(items)})")
        )
    middle = items[before : len(items) - after]
    parts = [*items[:before], middle, *(items[len(items) - after :] if after else [])]
    frame.stack.extend(reversed(parts))
