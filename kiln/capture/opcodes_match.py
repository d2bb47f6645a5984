"""Opcodes of the ``match`` statement."""

from __future__ import annotations

from .._native import is_instance as isinstance
from . import operators
from .attributes import load_attribute
from .calls import call
from .frame import Frame
from .opcode_table import opcode
from .rules import is_instance
from .values import Raised
from .wrap import force

# -- match ----------------------------------------------------------------------------------------------------------


@opcode("GET_LEN")
def get_len(frame, instruction):
    frame.push(call(frame.trace, len, (frame.peek(),), {}))


@opcode("MATCH_SEQUENCE")
def match_sequence(frame, instruction):
    frame.push(bool(type(frame.peek()).__flags__ & (1 << 5)))


@opcode("MATCH_MAPPING")
def match_mapping(frame, instruction):
    frame.push(bool(type(frame.peek()).__flags__ & (1 << 6)))


@opcode("MATCH_KEYS")
def match_keys(frame, instruction):
    keys, subject = frame.peek(), frame.peek(2)
    values = []
    for key in keys:
        if not operators.contains(frame.trace, subject, key):
            frame.push(None)
            return
        values.append(force(frame.trace, operators.get_item(frame.trace, subject, key)))
    frame.push(tuple(values))


@opcode("MATCH_CLASS")
def match_class(frame, instruction):
    names, cls, subject = frame.pop(), frame.pop(), frame.pop()
    if not is_instance(frame.trace, subject, cls):
        frame.push(None)
        return
    positional = positional_names(frame, cls, instruction.arg)
    values = []
    for name in (*positional, *names):
        if name is SELF:
            values.append(subject)
            continue
        try:
            values.append(force(frame.trace, load_attribute(frame.trace, subject, name)))
        except Raised as raised:
            if not isinstance(raised.error, AttributeError):
                raise
            frame.push(None)
            return
    frame.push(tuple(values))


SELF = object()  # in `case int(x)`, x is the subject itself
SELF_MATCHING = (bool, bytearray, bytes, dict, float, frozenset, int, list, set, str, tuple)


def positional_names(frame: Frame, cls: type, count: int) -> list[object]:
    if not count:
        return []
    names = getattr(cls, "__match_args__", None)
    if names is None and issubclass(cls, SELF_MATCHING):
        if count > 1:
            frame.raise_error(TypeError(f"{cls.__name__}() accepts 1 positional sub-pattern ({count} given)"))
        return [SELF]
    if names is None or count > len(names):
        allowed = 0 if names is None else len(names)
        plural = "" if allowed == 1 else "s"
        frame.raise_error(
            TypeError(f"{cls.__name__}() accepts {allowed} positional sub-pattern{plural} ({count} given)")
        )
    return list(names[:count])
