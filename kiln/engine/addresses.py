"""Whether Python code of a pass asks where tensors lie in memory, and notes it.

Graphs of the engine copy a gradient that Python code may have kept, where torch's engine looks whether somebody has:
the same numbers at another address. Code that has noted an address can tell, so its passes are torch's. Code that only
hands addresses to kernels, or compares them, cannot.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import types
from collections.abc import Iterable
from typing import Any

import torch

from ..bytecode.instruction import codes_in
from .hooks import InnerHook
from .predictions import backward_of

ADDRESSES = frozenset(["data_ptr", "storage", "untyped_storage", "_typed_storage", "_cdata"])
NOTING = frozenset(["append", "appendleft", "add", "insert", "extend", "update", "setdefault", "put", "setattr"])
STORES = frozenset(["STORE_ATTR", "STORE_GLOBAL", "STORE_DEREF", "STORE_SUBSCR", "STORE_SLICE"])


def are_noted(objects: Iterable[Any]) -> bool:
    """Whether hooks, backwards of contexts, and functions that these name, seem to take an address and keep it."""
    pending = [function for one in objects if (function := function_of(one)) is not None]
    seen: set[types.CodeType] = set()
    asks = notes = False
    while pending and not (asks and notes):
        function = pending.pop()
        if function.__code__ in seen:
            continue
        named: list[Any] = []
        for code in codes_in(function.__code__):
            seen.add(code)
            asks |= not ADDRESSES.isdisjoint(code.co_names)
            notes |= not NOTING.isdisjoint(code.co_names)
            for instruction in dis.get_instructions(code):
                notes |= instruction.opname in STORES
                if instruction.opname == "LOAD_GLOBAL":
                    named.append(function.__globals__.get(instruction.argval))
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):  # empty
                named.append(cell.cell_contents)
        pending += [one for one in named if type(one) is types.FunctionType and not is_of_torch(one)]
    return asks and notes


def function_of(value: Any) -> types.FunctionType | None:
    """The Python function that is called: of a context, a bound method, a partial, an object with ``__call__``."""
    if isinstance(value, torch._C._FunctionBase):
        value = backward_of(type(value))
    if isinstance(value, InnerHook):
        value = value.function
    while isinstance(value, functools.partial):
        value = value.func
    if not isinstance(value, (types.FunctionType, types.MethodType)):
        value = type(value).__dict__.get("__call__")
    value = getattr(value, "__func__", value)
    while hasattr(value, "__wrapped__"):
        value = value.__wrapped__
    return value if isinstance(value, types.FunctionType) else None


def is_of_torch(function: types.FunctionType) -> bool:
    return (function.__module__ or "").partition(".")[0] in ("torch", "kiln")
