"""Words for the program's values, in reasons and logs. None of the program's code runs for them: a ``__repr__`` may
print, raise, or write out a whole tensor."""

from __future__ import annotations

import enum
import types
from collections.abc import Callable
from itertools import islice
from typing import Any

import torch

from ..._native import is_instance as isinstance
from ...platform.cpython import enum_name

LONGEST = 80
PLAIN: tuple[type, ...] = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    type(Ellipsis),
    type(NotImplemented),
    range,
)
PLAIN += (types.FunctionType, types.BuiltinFunctionType, types.CodeType, types.ModuleType)
PLAIN += (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.SymInt, torch.SymFloat, torch.SymBool)
BRACKETS: dict[int, str] = {
    id(kind): both for kind, both in ((list, "[]"), (tuple, "()"), (torch.Size, "()"), (set, "{}"))
}
BRACKETS[id(frozenset)] = "{}"
PLAIN_IDS = frozenset(map(id, PLAIN))  # by identity: a metaclass may define __eq__ and __hash__


def short_text(value: object) -> str:
    """A value in a line."""
    text = text_of(value)
    return text if len(text) < LONGEST else text[: LONGEST - 3] + "..."


def error_text(error: BaseException) -> str:
    """An exception by its class, and what it says as far as that is plain text."""
    kind = type(error)
    plain = all(id(type(item)) in PLAIN_IDS for item in error.args)
    says = str(error) if plain and any(kind.__str__ is native for native in NATIVE_TEXTS) else ""
    return f"{kind.__name__}: {says}" if says else kind.__name__


NATIVE_TEXTS: tuple[object, ...] = (
    BaseException.__str__,
    KeyError.__str__,
    OSError.__str__,
    ImportError.__str__,
    SyntaxError.__str__,
)
NATIVE_TEXTS += (UnicodeDecodeError.__str__, UnicodeEncodeError.__str__)


def text_of(value: Any, depth: int = 0) -> str:
    kind = type(value)
    if kind is int and value.bit_length() > 4000:
        return f"an int of {value.bit_length()} bits"  # Python refuses to write it
    if id(kind) in PLAIN_IDS:
        return repr(value)
    if id(kind) in BRACKETS or kind is dict:
        return "..." if depth == 3 else contents(value, depth + 1)
    if isinstance(value, type):
        return type.__repr__(value)
    if isinstance(value, enum.Enum):
        name = enum_name(value)
        return f"{short_name(kind)}.{name if type(name) is str else '?'}"
    return f"<{type.__repr__(kind)[8:-2]} object at {id(value):#x}>"


_told_module = type.__dict__["__module__"].__get__
_qualified: Callable[[type], str] = type.__dict__["__qualname__"].__get__


_simple: Callable[[type], str] = type.__dict__["__name__"].__get__


def _module(cls: type) -> object:
    try:
        return _told_module(cls)
    except AttributeError:  # the program has removed it
        return None


def names_of(cls: type) -> tuple[str, str, object]:
    """``__name__``, ``__qualname__`` and ``__module__`` of a class, past what a metaclass may define."""
    return _simple(cls), _qualified(cls), _module(cls)


def short_name(cls: type) -> str:
    """A class's qualified name, past what a metaclass may define."""
    return _qualified(cls)


def full_name(cls: type) -> str:
    """A class's module and qualified name, past what a metaclass may define."""
    module = _module(cls)
    return f"{module}.{_qualified(cls)}" if type(module) is str else _qualified(cls)


def module_of(owner: object) -> str:
    """The module of a function or class; nothing where what stands there is no string: a program may put anything."""
    module = owner.__module__
    return module if type(module) is str else ""


def module_of_globals(namespace: dict[Any, Any]) -> str:
    """What the module of a globals dictionary is called; nothing where that is no string."""
    name = namespace.get("__name__")
    return name if type(name) is str else ""


def contents(value: list[Any] | dict[Any, Any], depth: int) -> str:
    """What is in a container of a builtin type, as far as a line can show."""
    if type(value) is dict:
        items = [f"{text_of(key, depth)}: {text_of(item, depth)}" for key, item in islice(value.items(), LONGEST // 3)]
        return "{" + ", ".join(items) + "}"
    opened, closed = tuple(BRACKETS[id(type(value))])
    items = [text_of(item, depth) for item in islice(value, LONGEST // 3)]
    return opened + ", ".join(items) + ("," if opened == "(" and len(items) == 1 else "") + closed
