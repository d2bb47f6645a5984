"""Every builtin that capture may run while tracing (``builtin_tables.is_allowed``), by enumeration."""

from __future__ import annotations

import _bisect
import _heapq
import _operator
import _stat
import _struct
import builtins
import cmath
import importlib
import itertools
import math
import pkgutil
import types
from dataclasses import dataclass

import kiln.capture
from kiln.capture.interpreter import native_calls
from kiln.capture.interpreter.call_rules import rule_for
from kiln.capture.shadows import builtin_tables
from kiln.capture.shadows.native_arguments import CALLBACKS, PROXY_FUNCTIONS

for _module in pkgutil.walk_packages(kiln.capture.__path__, "kiln.capture."):
    importlib.import_module(_module.name)  # each may add rules

DESCRIPTORS = (types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType)
MODULES = (math, cmath, _operator, itertools, _bisect, _heapq, _stat, _struct)


@dataclass(frozen=True)
class Entry:
    """One callable: ``owner`` is the class of a method, the class itself, or None for a function of a module."""

    name: str
    function: object
    owner: type | None

    @property
    def is_class(self) -> bool:
        return self.function is self.owner

    @property
    def is_method(self) -> bool:
        return self.owner is not None and not self.is_class


def all_entries() -> list[Entry]:
    """All entries, sorted by name."""
    found: dict[str, Entry] = {}

    def add(name: str, function: object, owner: type | None) -> None:
        if builtin_tables.is_allowed(function):
            found.setdefault(name, Entry(name, function, owner))

    for owner in {*builtin_tables.SAFE_OWNERS, object}:
        prefix = owner.__name__ if owner.__module__ == "builtins" else f"{owner.__module__}.{owner.__name__}"
        if owner is not object:
            add(prefix, owner, owner)
        for name, value in vars(owner).items():
            if isinstance(value, DESCRIPTORS):
                if not is_inherited_error(owner, name):
                    add(f"{prefix}.{name}", getattr(owner, name), owner)
            elif isinstance(value, types.BuiltinFunctionType | staticmethod):
                add(f"{prefix}.{name}", getattr(owner, name), owner)
    for module in MODULES:
        for name, value in vars(module).items():
            if isinstance(value, types.BuiltinFunctionType):
                add(f"{module.__name__.lstrip('_')}.{name}", value, None)
    for function in builtin_tables.SAFE_FUNCTIONS:
        name = getattr(function, "__qualname__", "")
        home = getattr(function, "__module__", None) or ""
        add(name if home in ("builtins", "") else f"{home.lstrip('_')}.{name}", function, None)
    return [found[name] for name in sorted(found)]


def is_inherited_error(owner: type, name: str) -> bool:
    """Exceptions share a few native methods: those of one class speak for all."""
    kept = (BaseException, StopIteration, OSError, UnicodeDecodeError, ImportError, KeyError, BaseExceptionGroup)
    return issubclass(owner, BaseException) and owner not in kept


def treatment(entry: Entry) -> list[str]:
    """What capture's tables do with a call, in words of ``docs/natives.md``."""
    function = entry.function
    words = []
    if rule_for(function) is not None:
        words.append("rule")
    if function in native_calls.POLYFILLS:
        words.append("polyfill")
    words.append("shallow" if builtin_tables.is_shallow(function) else "deep")
    name = getattr(function, "__name__", "")
    if function in builtin_tables.TEXT_FUNCTIONS or (name in builtin_tables.TEXT_NAMES and not entry.is_class):
        words.append("text")
    if builtin_tables.is_hashing(function, ()):
        words.append("hashing")
    if builtin_tables.is_mutating(function):
        words.append("mutating")
    if function in PROXY_FUNCTIONS:
        words.append("proxies")
    if function in CALLBACKS:
        words.append("callback")
    if builtin_tables.is_shallow(function) or function in builtin_tables.SYMBOLIC_FUNCTIONS:
        words.append("symbols")
    return words


def is_builtin_class(cls: type) -> bool:
    return vars(builtins).get(cls.__name__) is cls
