"""Keys of dictionaries and elements of sets whose ``__hash__`` or ``__eq__`` is Python code.

Native containers call these methods themselves, past the interpreter. So they are interpreted first, for
the guards and for what they look at; then everything they looked at is put in place of the lazies, and native code may
run the same methods and must come to the same result. Methods with effects break the graph.
"""

from __future__ import annotations

import collections
import enum
import types
from typing import Any

import torch

from ..._native import is_instance as isinstance
from ..guards.source import getattr_static_dict, native_iterator
from ..state.operations import Args, operation, operations
from ..state.trace import Trace
from ..state.values import CONSTANT_TYPES, HandleNumber, Lazy
from .native_arguments import is_object, python_methods
from .symbolic_numbers import concrete
from .wrap import force


@operation
def prepare_hashing(trace: Trace, args: Args) -> None:
    """Rehearse whatever a builtin would hash or compare by hash among its arguments."""
    if trace.outside.foreign and any(hashes_foreign_contents(trace, arg) for arg in args):
        raise trace.fail("a key or element from outside whose hash depends on what is in it")
    if trace.progress.key_methods_run or any(may_hash_object(arg) for arg in args):
        keys = [key for arg in args for key in keys_in(trace, arg)]
        if any(hashed_in_python(key) for key in keys):
            if any(written for _, written in trace.outside.globals.values()):  # which native code does not see yet
                raise trace.fail("a key with a __hash__ or __eq__ in Python, after assignments to global variables")
            interpret_key_methods(trace, keys)


def hashes_foreign_contents(trace: Trace, value: Any) -> bool:
    """Whether hashing a value looks into an object that nobody may look into (a date)."""
    kind: Any = type(value)
    if kind in CONSTANT_TYPES:
        return False
    if kind in (list, tuple, set, frozenset, collections.deque):
        return any(hashes_foreign_contents(trace, item) for item in value)
    return (
        id(value) in trace.outside.foreign and kind.__hash__ not in (object.__hash__, None) and kind is not HandleNumber
    )


def may_hash_object(value: Any) -> bool:
    kind = type(value)
    if kind in CONSTANT_TYPES:
        return False
    if kind in (list, tuple, set, frozenset, collections.deque):
        return any(may_hash_object(item) for item in value)
    return hashed_in_python(value)


@operation
def hashed_in_python(value: Any) -> bool:
    """Whether hashing or comparing a key would run Python code of the program."""
    kind = type(value)
    if kind in CONSTANT_TYPES or isinstance(value, (enum.Enum, type, torch.Tensor)):
        return False
    if kind is tuple or kind is frozenset:
        return any(hashed_in_python(item) for item in value)
    methods = python_methods(kind) if is_object(value) else ()
    return "__hash__" in methods or "__eq__" in methods


def keys_in(trace: Trace, value: object) -> list[object]:
    """What an argument contributes to hashing: itself as a key, its elements, its keys."""
    value = force(trace, value)
    if isinstance(value, dict):
        return list(dict.keys(value))
    if isinstance(value, (set, list, collections.deque)):
        return [force(trace, item) for item in native_iterator(value)]
    if isinstance(value, (tuple, frozenset)):
        return [value, *(force(trace, item) for item in native_iterator(value))]
    return [value]


def interpret_key_methods(trace: Trace, keys: list[object]) -> None:
    by_hash: dict[int, list[object]] = {}
    for key in keys:
        if isinstance(key, (list, dict, set)):
            continue  # not hashable: native code says so
        others = by_hash.setdefault(interpret_hash(trace, key), [])
        for other in others:
            if other is not key:
                interpret_equality(trace, key, other)
                interpret_equality(trace, other, key)
        others.append(key)


def interpret_hash(trace: Trace, key: object) -> int:
    if type(key) is tuple or type(key) is frozenset:
        for item in key:
            interpret_hash(trace, item)
    if "__hash__" not in python_methods(type(key)) or not hashed_in_python(key):
        return hash(key) if getattr(type(key), "__hash__", None) is not None else 0
    from ..guards.source import lookup

    method = lookup(type(key), "__hash__")
    operations.name_class_value(trace, type(key), "__hash__", method)
    number = interpret_first(trace, method, key)
    try:
        native = hash(key)
    except Exception:
        native = None
    if type(number) is not int or as_hash(number) != native:
        raise trace.fail(f"a {type(key).__qualname__}, whose __hash__ cannot be foreseen, as a key")
    return native


def as_hash(number: int) -> int:
    """What ``hash()`` makes of the result of a ``__hash__`` method."""
    if not -(2**63) <= number < 2**63:
        return hash(number)
    return -2 if number == -1 else number


def interpret_equality(trace: Trace, left: object, right: object) -> None:

    if hashed_in_python(left) or hashed_in_python(right):
        interpret_first(trace, lambda: operations.compare(trace, "==", left, right), left, right)


def interpret_first(trace: Trace, function: object, *values: object) -> object:
    """Interpret a method, then put what it looked at in place."""

    before = count_operations(trace)
    trace.progress.key_method_depth += 1
    try:
        if isinstance(function, types.FunctionType) and function.__name__ == "<lambda>":
            result = function()
        else:
            result = operations.call(trace, function, values, {})
    finally:
        trace.progress.key_method_depth -= 1
    if count_operations(trace) != before:
        raise trace.fail("a key whose __hash__ or __eq__ computes with tensors")
    trace.progress.key_methods_run = True
    seen: set[int] = set()
    for value in values:
        replace_lazies(trace, value, seen)
    return concrete(trace, result)


def count_operations(trace: Trace) -> int:
    return sum(node.op != "placeholder" for node in trace.graph.nodes)


def replace_lazies(trace: Trace, value: object, seen: set[int]) -> None:
    """Replace lazies that were looked at, and symbols, by their values, in everything reachable."""
    if id(value) in seen or type(value) in CONSTANT_TYPES or isinstance(value, (torch.Tensor, type)):
        return
    seen.add(id(value))
    for holder in (getattr_static_dict(value), value):
        if isinstance(holder, dict):
            for key, item in list(dict.items(holder)):
                dict.__setitem__(holder, key, without_lazies(trace, item, seen))
        elif isinstance(holder, list):
            for index, item in enumerate(list.copy(holder)):
                list.__setitem__(holder, index, without_lazies(trace, item, seen))
        elif isinstance(holder, tuple):
            for item in tuple.__iter__(holder):
                replace_lazies(trace, item, seen)


def without_lazies(trace: Trace, item: object, seen: set[int]) -> object:
    if type(item) is Lazy:
        if not item.done:
            return item
        item = item.value
    replace_lazies(trace, item, seen)
    return concrete(trace, item)
