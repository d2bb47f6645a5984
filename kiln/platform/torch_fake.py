"""Fake tensors, and modes made without loading torch's own compiler. Known for torch 2.11 to 2.15.

Without one of the classes, importing this module fails.

Making a ``FakeTensorMode`` imports torch's compiler for two of its settings, and its first operation imports it to keep
itself out of that compiler's way: more than a second in a fresh process, nearly all that Kiln's first compile would
cost. Here the constructor's own code runs with an ``import`` that answers for those settings alone, and while Kiln
captures, the mode's handler counts as kept out already. Should a release of torch ask for more, the plain way is taken,
and is merely slow. (Some shape rules of torch load its compiler all the same; that is its business.)
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import importlib
import sys
import types
from typing import Any, cast

import torch
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)

from .locks import new_lock
from .python_objects import closure_values

__all__ = [
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "FakeTensor",
    "FakeTensorMode",
    "UnsupportedFakeTensorException",
    "UnsupportedOperatorException",
    "detect_fake_mode",
]

_REFERENCES = ("", ".nn.functional", ".special", ".linalg", ".fft")


def reference_modules() -> list[types.ModuleType]:
    """The modules of torch's operators in Python, by which fake tensors find shapes."""
    return [importlib.import_module("torch._refs" + name) for name in _REFERENCES]


LOGGER = "torch._subclasses.fake_tensor"
"""The logger that failures on fake tensors go to."""


def refuse_data_pointers(mode: Any) -> None:
    """Have a mode raise where code asks for the address of a fake's data; by default it answers 0, with a warning."""
    mode._allow_unsafe_data_ptr_access = False


COMPILER = "torch._dy" + "namo"
KEPT_OUT = "__dy" + "namo_disable"  # where torch remembers a function that its compiler leaves alone
SETTINGS = {
    "fake_tensor_cache_enabled": True,
    "fake_tensor_cache_crosscheck_enabled": False,
    "_custom_ops_profile": None,
}


def is_compiler_loaded() -> bool:
    return COMPILER in sys.modules


# ---- functions that torch keeps out of its compiler ------------------------------------------------------------------


class KeptOut:
    """Functions that torch keeps out of its compiler count as kept out already, while some thread is in the block."""

    def __init__(self) -> None:
        self.users = 0
        self.lock = new_lock()

    @functools.cached_property
    def functions(self) -> list[tuple[dict[str, Any], types.FunctionType]]:
        return [(function.__dict__, function) for function in functions_kept_out()]

    def __enter__(self) -> None:
        with self.lock:
            self.users += 1
            if self.users == 1 and not is_compiler_loaded():
                for names, function in self.functions:
                    names.setdefault(KEPT_OUT, function)

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.users -= 1
            if self.users == 0 and "functions" in self.__dict__:
                for names, function in self.functions:
                    if names.get(KEPT_OUT) is function:
                        del names[KEPT_OUT]


_kept_out = KeptOut()


def without_torch_compiler() -> contextlib.AbstractContextManager[None]:
    """A block in which operations on fake tensors do not load torch's compiler."""
    return _kept_out


def functions_kept_out() -> list[types.FunctionType]:
    """The functions that torch keeps out of its compiler's way at their first call, among those that fakes need."""
    found: dict[int, types.FunctionType] = {}
    candidates = [value for module in reference_modules() for value in vars(module).values()]
    pending = [value for value in candidates if type(value) is types.FunctionType]
    pending.append(cast(types.FunctionType, FakeTensorMode.__torch_dispatch__))
    seen: set[types.FunctionType] = set()
    while pending:
        function = pending.pop()
        if function.__closure__ is None or function in seen:
            continue
        seen.add(function)
        functions = [value for value in closure_values(function) if type(value) is types.FunctionType]
        pending += functions
        if functions and function.__code__.co_filename.endswith("torch/_compile.py"):
            found.update((id(value), value) for value in functions)
    return list(found.values())


# ---- settings of the compiler that fake tensors ask for --------------------------------------------------------------


@functools.cache
def light_fake_mode() -> type:
    """``FakeTensorMode``, with the methods that look at settings of torch's compiler seeing their defaults."""
    methods = {name: with_settings(getattr(FakeTensorMode, name)) for name in ("__init__", "_dispatch_impl")}
    return type(FakeTensorMode.__name__, (FakeTensorMode,), methods)


def with_settings(function: types.FunctionType) -> types.FunctionType:
    """The same code in a world where ``torch`` is a stand-in that already has those settings."""
    torch_with_settings = types.SimpleNamespace(**vars(torch))
    config = types.SimpleNamespace(**SETTINGS)
    setattr(torch_with_settings, COMPILER.split(".")[1], types.SimpleNamespace(config=config))

    def import_light(name: str, *rest: Any) -> Any:
        if name.startswith(COMPILER):
            return torch_with_settings
        module = builtins.__import__(name, *rest)
        return torch_with_settings if module is torch else module

    world = {**function.__globals__, "torch": torch_with_settings}
    world["__builtins__"] = {**vars(builtins), "__import__": import_light}
    made = types.FunctionType(function.__code__, world, function.__name__, function.__defaults__, function.__closure__)
    made.__kwdefaults__ = function.__kwdefaults__
    return made
