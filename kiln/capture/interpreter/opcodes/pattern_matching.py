"""Opcodes of the ``match`` statement."""

from __future__ import annotations

from typing import Any

from ...._native import MISSING
from ...._native import is_instance as isinstance
from ....bytecode import Instruction
from ....platform.python_objects import message_of
from ...shadows.symbolic_numbers import concrete
from ...shadows.wrap import force, is_constant
from ..attributes import load_attribute, load_or_default
from ..calls import call
from ..frame import HANDLERS, Frame
from ..program_types import native_name
from ..protocols import is_instance
from .table import opcode


@opcode("MATCH_KEYS")
def match_keys(frame: Frame, instruction: Instruction) -> None:
    """Keys are looked up with the ``get`` of the subject."""
    keys, subject = frame.peek(), frame.peek(2)
    values: list[object] = []
    seen: set[object] = set()
    get = load_attribute(frame.trace, subject, "get") if keys else None
    missing = object()
    for key in keys:
        key = concrete(frame.trace, key)
        if not is_constant(key):
            raise frame.trace.fail("a mapping pattern that asks for an object")
        if key in seen:
            frame.raise_error(ValueError(f"mapping pattern checks duplicate key ({key!r})"))
        seen.add(key)
        value = force(frame.trace, call(frame.trace, get, (key, missing), {}))
        if value is missing:
            frame.push(None)
            return
        values.append(value)
    frame.push(tuple(values))


def match_with(cls: Any) -> None:
    match None:
        case cls():
            return


CALLED_NO_CLASS = message_of(lambda: match_with(0))


@opcode("MATCH_CLASS")
def match_class(frame: Frame, instruction: Instruction) -> None:
    names, cls, subject = frame.pop(), frame.pop(), frame.pop()
    if not isinstance(cls, type):
        frame.raise_error(TypeError(CALLED_NO_CLASS))
    if not is_instance(frame.trace, subject, cls):
        frame.push(None)
        return
    positional = positional_names(frame, cls, instruction.argval)
    values: list[object] = []
    seen: set[str] = set()
    for name in (*positional, *names):
        if name is SELF:
            values.append(subject)
            continue
        if not isinstance(name, str):
            kind_name = native_name(frame.trace, name)
            frame.raise_error(TypeError(f"__match_args__ elements must be strings (got {kind_name})"))
        if name in seen:
            frame.raise_error(TypeError(f"{cls.__name__}() got multiple sub-patterns for attribute {name!r}"))
        seen.add(name)
        value = load_or_default(frame.trace, subject, name, MISSING)
        if value is MISSING:
            frame.push(None)
            return
        values.append(force(frame.trace, value))
    frame.push(tuple(values))


SELF = object()  # in `case int(x)`, x is the subject itself
MATCH_SELF = 1 << 22  # the flag of such classes


def positional_names(frame: Frame, cls: type, count: int) -> list[object]:
    if not count:
        return []
    names = force(frame.trace, load_or_default(frame.trace, cls, "__match_args__", MISSING))
    if names is MISSING:
        names = (SELF,) if cls.__flags__ & MATCH_SELF else ()
    elif type(names) is not tuple:
        kind_name = native_name(frame.trace, names)
        frame.raise_error(TypeError(f"{cls.__name__}.__match_args__ must be a tuple (got {kind_name})"))
    if count > len(names):
        plural = "" if len(names) == 1 else "s"
        frame.raise_error(
            TypeError(f"{cls.__name__}() accepts {len(names)} positional sub-pattern{plural} ({count} given)")
        )
    return [force(frame.trace, name) for name in names[:count]]


HANDLERS.update(
    {
        "GET_LEN": lambda frame, instruction: frame.push(call(frame.trace, len, (frame.peek(),), {})),
        "MATCH_SEQUENCE": lambda frame, instruction: frame.push(bool(type(frame.peek()).__flags__ & (1 << 5))),
        "MATCH_MAPPING": lambda frame, instruction: frame.push(bool(type(frame.peek()).__flags__ & (1 << 6))),
    }
)
