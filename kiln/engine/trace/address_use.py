"""What the Python code of a pass seems to do: read addresses of tensors and keep them, or add to pending gradients.

Graphs of the engine copy a gradient that Python code may have kept; torch's engine checks whether it is kept, and
copies only then. The numbers are the same, the address differs. Code that has kept an address can see that, so its
passes fall back to torch's engine. Code that only hands addresses to kernels, or compares them, cannot.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import types
from collections.abc import Iterable, Iterator
from typing import Any

from ...bytecode.instruction import codes_in
from ...platform.torch_autograd import FunctionBase
from ..walk.gradient_patterns import backward_of
from ..walk.inner_hooks import InnerHook

READS_ADDRESS = frozenset(["data_ptr", "storage", "untyped_storage", "_typed_storage", "_cdata"])
KEEPS = frozenset(["append", "appendleft", "add", "insert", "extend", "update", "setdefault", "put", "setattr"])
STORES = frozenset(["STORE_ATTR", "STORE_GLOBAL", "STORE_DEREF", "STORE_SUBSCR", "STORE_SLICE"])


def keep_addresses(objects: Iterable[Any]) -> bool:
    """Whether hooks, backwards of contexts, and functions that these name, seem to read an address and keep it."""
    reads = keeps = False
    for code in codes_of(objects):
        reads |= not READS_ADDRESS.isdisjoint(code.co_names)
        keeps |= not KEEPS.isdisjoint(code.co_names)
        keeps |= any(instruction.opname in STORES for instruction in dis.get_instructions(code))
        if reads and keeps:
            return True
    return False


def adds_to_buffers(context: Any) -> bool:
    """Whether the backward of a context seems to ask for the gradients that wait, which only torch's engine has.

    From torch 2.15 on it may add to them in place.
    """
    return any("input_grad_buffers" in name for code in codes_of([context]) for name in code.co_names)


def codes_of(objects: Iterable[Any]) -> Iterator[types.CodeType]:
    """The code of hooks, backwards of contexts, and functions that these name."""
    pending = [function for one in objects if (function := function_of(one)) is not None]
    seen: set[types.CodeType] = set()
    while pending:
        function = pending.pop()
        if function.__code__ in seen:
            continue
        named: list[Any] = []
        for code in codes_in(function.__code__):
            seen.add(code)
            yield code
            for instruction in dis.get_instructions(code):
                if instruction.opname == "LOAD_GLOBAL":
                    named.append(function.__globals__.get(instruction.argval))
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):  # empty
                named.append(cell.cell_contents)
        pending += [one for one in named if type(one) is types.FunctionType and not is_of_torch(one)]


def function_of(value: Any) -> types.FunctionType | None:
    """The Python function that is called: of a context, a bound method, a partial, an object with ``__call__``."""
    if isinstance(value, FunctionBase):
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
