"""Private names of CPython and its standard library. Known for CPython 3.11 to 3.14.

A missing name makes the import fail, except where a comment says otherwise.
"""

from __future__ import annotations

import _thread
import collections
import copy
import dataclasses
import dis
import enum
import functools
import itertools
import opcode
import sys
import types
import typing
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

thread_module: types.ModuleType = _thread
get_ident = _thread.get_ident
get_frame = sys._getframe
lru_cache_class: type = functools._lru_cache_wrapper
tee_class: type = getattr(itertools, "_tee")  # noqa: B009  no stub
count_elements: Callable[..., None] = getattr(collections, "_count_elements")  # noqa: B009  no stub
"""What ``collections.Counter`` counts with."""
protocol_members: Callable[[type], Iterable[str]] = getattr(typing, "_get_protocol_attrs")  # noqa: B009  no stub

INLINE_CACHE_ENTRIES: Any = getattr(dis, "_inline_cache_entries")  # noqa: B009  no stub
"""Inline cache units after an opcode: a list by opcode in 3.11 and 3.12, a dictionary by name from 3.13 on."""
OPERATOR_SYMBOLS: list[tuple[str, str]] = getattr(dis, "_nb_ops")  # noqa: B009  no stub
"""Names and symbols of the operators of BINARY_OP, by its argument."""
COMMON_CONSTANTS: list[object] = getattr(opcode, "_common_constants", [])
"""What LOAD_COMMON_CONSTANT loads, by its argument (from 3.14 on)."""
SPECIAL_METHODS: list[str] = getattr(opcode, "_special_method_names", [])
"""The methods that LOAD_SPECIAL loads, by its argument (from 3.14 on)."""


_filters_in_force: Callable[[], list[Any]] | None = getattr(warnings, "_get_filters", None)
"""From 3.14 on filters may belong to a context, as ``-X context_aware_warnings`` asks for."""


def warning_filters() -> list[Any]:
    """The filters of warnings that are in force: the list itself."""
    return _filters_in_force() if _filters_in_force is not None else warnings.filters  # type: ignore[return-value]


METHOD_CACHE = "_method_cache"
"""The attribute in which a ``functools.singledispatchmethod`` keeps the methods that it made, from 3.13 on."""


def is_protocol(cls: type) -> bool:
    """Whether a class of the metaclass of protocols is one itself, not an implementation."""
    return getattr(cls, "_is_protocol", False)


_TAKEN_AS_THEY_ARE: Any = getattr(copy, "_atomic_types", None)
_DEEP_COPIERS: Any = getattr(copy, "_deepcopy_dispatch")  # noqa: B009  no stub


@contextmanager
def functions_found_in_memos() -> Iterator[None]:
    """Have ``copy.deepcopy`` take a function from its memo if it is there, which it does by itself up to 3.13.

    From 3.14 on it looks for the types of which it makes no copies first.
    """
    if _TAKEN_AS_THEY_ARE is None:
        yield
        return
    _TAKEN_AS_THEY_ARE.discard(types.FunctionType)
    _DEEP_COPIERS[types.FunctionType] = lambda function, memo: function
    try:
        yield
    finally:
        _TAKEN_AS_THEY_ARE.add(types.FunctionType)
        del _DEEP_COPIERS[types.FunctionType]


def recursive_repr_codes() -> list[types.CodeType]:
    """The code of what dataclasses wrap ``__repr__`` in; none from 3.13 on, where it is reprlib's."""
    wrap = getattr(dataclasses, "_recursive_repr", None)
    return [] if wrap is None else [wrap(lambda self: "").__code__]


def members_by_name(cls: type[enum.Enum]) -> Mapping[str, Any]:
    """The members of an enumeration, aliases included."""
    return cls._member_map_


def members_by_value(cls: type[enum.Enum]) -> Mapping[Any, Any]:
    """The members of an enumeration by value; values that have no hash are not there."""
    return cls._value2member_map_


def enum_value(member: enum.Enum) -> Any:
    """The value of a member of an enumeration as it was set, None if it was not."""
    return member.__dict__.get("_value_")


def enum_name(value: object) -> Any:
    """The name of a member of an enumeration, None for anything else: ``name`` may be a property of the program."""
    return getattr(value, "_name_", None)
