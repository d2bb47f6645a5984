"""Arguments of builtins that iterate over them or hash their elements."""

from __future__ import annotations

import collections
import enum
import types
from collections.abc import Iterable
from typing import Any

from ..._native import is_instance as isinstance
from ...platform.python_objects import words
from ..guards.source import lookup, native_iterator
from ..shadows.builtin_tables import (
    CONTAINERS,
    HASHING_FUNCTIONS,
    HASHING_TYPES,
    ITERATOR_TYPES,
    KEYED_NAMES,
    LAZY_ITERATORS,
    NATIVE_METHODS,
    SET_CONSUMING_NAMES,
    VIEW_TYPES,
    consumes,
    describe,
    is_keyed,
)
from ..shadows.native_arguments import COMPARISONS, ForcedIterator, Survey, is_object, proxy, python_methods
from ..shadows.wrap import force
from ..state.operations import operations
from ..state.trace import Trace
from ..state.values import CONSTANT_TYPES, InterpretedIterator


def ordered_elements(trace: Trace, function: Any, value: Any) -> object:
    """The ordered elements of a set from outside whose shadow iterates in another order, where these are enough."""
    if id(value) not in trace.outside.reordered_sets:
        return value
    record = trace.outside.record_of(value)
    if record is None or function not in ITERATING or set(set.__iter__(value)) != record.items:
        raise trace.fail(f"{describe(function)} on a set from outside whose order no other set has")
    if function not in (iter, enumerate, zip, map, filter):
        return record.order
    iterator = iter(record.order)
    trace.outside.set_iterators[id(iterator)] = (iterator, value)
    return iterator


ITERATING: frozenset[object] = frozenset(
    {list, tuple, sorted, sum, min, max, any, all, enumerate, zip, map, filter, collections.deque, iter, str.join}
)
"""Builtins that only iterate over an argument."""


def iterable_argument(trace: Trace, function: object, position: int, value: object) -> object:
    """An argument that native code iterates over: one that iterates in Python becomes a proxy."""
    if type(value) in CONSTANT_TYPES:
        return value
    if isinstance(value, type):
        return proxy(trace, value) if consumes(function, position) and iterates_in_python(value) else value
    if not consumes(function, position) or not is_object(value) or issubclass(type(value), InterpretedIterator):
        return value
    is_method = isinstance(function, NATIVE_METHODS)
    if is_method and isinstance(value, int) and "__iter__" not in python_methods(type(value)):
        return value  # an index: of an int CPython does not ask for one
    if isinstance(value, dict) and is_merged(function, position) and asks_in_python(type(value)):
        raise trace.fail(f"{describe(function)} on a {type(value).__qualname__}, which has its own way to give items")
    if isinstance(value, CONTAINERS) and "__iter__" not in python_methods(type(value)):
        sized = function in LENGTH_TAKERS and "__len__" in python_methods(type(value))
        if not sized or isinstance(value, dict):
            return value  # native code ignores its other methods
    if isinstance(value, dict) and (
        function in HASHING_FUNCTIONS or getattr(function, "__objclass__", None) in HASHING_TYPES
    ):
        return value  # a dictionary asks another one for its keys
    if position == 0 and is_method:
        return value
    return proxy(trace, value)


def is_merged(function: Any, position: int) -> bool:
    """Whether a builtin takes the items of a mapping at this position."""
    if isinstance(function, NATIVE_METHODS):
        return position > 0 and issubclass(function.__objclass__, dict)
    return isinstance(function, type) and issubclass(function, dict)


def asks_in_python(kind: type) -> bool:
    """Whether native code that takes the items of such a dictionary calls methods of it that are Python code."""
    if lookup(kind, "__iter__") is dict.__iter__:
        return False  # it looks into the table
    own = {"__iter__", "__getitem__"}.intersection(python_methods(kind))
    return bool(own) or isinstance(lookup(kind, "keys"), types.FunctionType)


LENGTH_TAKERS: frozenset[object] = frozenset({list, tuple, list.extend, list.__init__, list.__iadd__})
"""Builtins that ask an iterable for its length before they iterate."""


def iterates_in_python(cls: type) -> bool:
    """Whether a class has a metaclass that makes it an iterable, other than that of enums."""
    return not isinstance(cls, enum.EnumMeta) and isinstance(lookup(type(cls), "__iter__"), types.FunctionType)


def hashed_argument(trace: Trace, function: Any, position: int, value: Any) -> object:
    """An argument whose elements native code will hash: forced, and turned into a list if it is an iterator."""
    if type(value) in CONSTANT_TYPES:
        return value
    if position == 1 and (is_keyed(function) or getattr(function, "__objclass__", None) in (set, frozenset)):
        iterates = function.__name__ not in KEY_NAMES
        value = Survey(trace, keep_symbols=False, shallow=False, iterates=iterates).visit(value)
    method = isinstance(function, NATIVE_METHODS)
    consumed = consumes(function, position) or (method and function.__name__ in SET_CONSUMING_NAMES)
    if (position == 0 and method) or not consumed or isinstance(value, (dict, str, range)):
        return value
    survey = Survey(trace, keep_symbols=False, shallow=False)
    of_sets = function in (set, frozenset) or getattr(function, "__objclass__", None) in (set, frozenset)
    of_sets = of_sets or function in COMPARISONS
    past = of_sets and isinstance(value, (set, frozenset))  # sets take the elements of sets past any __iter__
    if "__iter__" in python_methods(type(value)) and isinstance(value, CONTAINERS) and not past:
        return [survey.visit(item) for item in elements_in_python(trace, function, value)]
    if type(value) in VIEW_TYPES and function == dict.fromkeys:  # it hashes anew what the view has
        return [survey.visit(item) for item in native_iterator(value)]
    if isinstance(value, (list, tuple, set, frozenset, collections.deque)) or type(value) in VIEW_TYPES:
        return survey.visit(value)
    if type(value) is ForcedIterator:
        value = value.iterator
    if type(value) in ITERATOR_TYPES or type(value) in LAZY_ITERATORS or issubclass(type(value), InterpretedIterator):
        trace.progress.entered += 1  # the iterator advances: if the instruction breaks after this, capture starts over
        return [survey.visit(item) for item in elements_in_python(trace, function, value)]
    takes_all = isinstance(function, type) or function == dict.fromkeys or (method and not is_operator(function))
    if is_object(value) and takes_all:
        trace.progress.entered += 1
        return [survey.visit(item) for item in elements_in_python(trace, function, value)]
    return value


KEY_NAMES = KEYED_NAMES | words("add discard remove contains __setitem__ __hash__")
"""Methods that take a key or an element as it is, even an iterator."""


def is_operator(function: Any) -> bool:
    name = function.__name__
    return name.startswith("__") and name not in ("__init__", "__new__", "__ior__")


def elements_in_python(trace: Trace, function: object, value: object) -> list[Any]:
    """The elements that native code would take from an iterable (or mapping, for a dictionary) written in Python."""
    base = getattr(function, "__objclass__", function)
    mapping = isinstance(base, type) and issubclass(base, dict)
    keys = operations.load_or_default(trace, value, "keys", None) if mapping else None
    if keys is None:
        return take_until_refused(operations.consume(trace, value), mapping)
    names = operations.consume(trace, operations.call(trace, keys, (), {}))
    return [(key, force(trace, operations.get_item(trace, value, key))) for key in names]


def take_until_refused(items: Iterable[Any], pairs: bool) -> list[Any]:
    """Elements up to the first that native code refuses, as it stops there."""
    taken = []
    for item in items:
        taken.append(item)
        kind = type(item)
        if pairs and (kind in REFUSED_AS_PAIRS or (kind in (tuple, list, str) and len(item) != 2)):
            break
        if not pairs and kind in (list, dict, set):
            break
    return taken


REFUSED_AS_PAIRS: frozenset[type] = frozenset({int, float, bool, complex, type(None)})
