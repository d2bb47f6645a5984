"""Iteration and unpacking."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from typing import Any

import torch

from ..._native import is_instance as isinstance
from ...platform.python_objects import HEAP_TYPE, message_of
from ..guards.source import lookup, mapping_of
from ..shadows.builtin_tables import VIEW_TYPES
from ..shadows.native_arguments import Proxy, proxy, unproxy
from ..shadows.wrap import force
from ..state.exceptions import from_native
from ..state.operations import operation, operations
from ..state.trace import Trace
from ..state.values import InterpretedIterator, Raised
from . import native_calls
from .calls import call
from .program_types import native_name, type_of
from .protocols import special_method

EMPTY: tuple[Any, ...] = ([], (), {}, {}.values(), {}.items(), range(0), "")
CONTAINER_ITERATORS: frozenset[type] = frozenset(type(iter(empty)) for empty in EMPTY)


def get_iterator(trace: Trace, value: Any) -> object:
    """``iter(value)``."""
    value = force(trace, value)
    if isinstance(value, torch.Tensor):
        operations.check_method(trace, value, "__iter__")
        return iter(unbind_tensor(trace, value))
    method = special_method(trace, value, "__iter__")
    if method is not None:
        made = force(trace, call(trace, method, (value,), {}))
        if not hasattr(type(made), "__next__"):
            raise Raised(TypeError(f"iter() returned non-iterator of type '{native_name(trace, made)}'"))
        return made
    native = lookup(type(value), "__iter__") is not None
    if not native and special_method(trace, value, "__getitem__") is not None:
        return iter(proxy(trace, value))
    if isinstance(value, Proxy):
        return value
    if native and special_method(trace, value, "__next__") is not None:
        return value
    if type(value).__flags__ & HEAP_TYPE and not any(lookup(type(value), name) for name in ("__iter__", "__getitem__")):
        raise Raised(TypeError(f"'{native_name(trace, value)}' object is not iterable"))
    if type(value) is types.MappingProxyType:
        return get_iterator(trace, mapping_of(value))
    made = native_calls.call_without_rule(trace, iter, (value,), {})
    if isinstance(value, dict) or type(value) in VIEW_TYPES:
        trace.mark_unbuildable(made)  # the dictionary may change before the graph has run
    return made


def unbind_tensor(trace: Trace, tensor: torch.Tensor) -> tuple[Any, ...]:
    if tensor.dim() == 0:
        raise Raised(TypeError("iteration over a 0-d tensor"))
    parts: tuple[torch.Tensor, ...] = operations.call_torch(trace, torch.Tensor.unbind, (tensor, 0), {})
    return parts


def next_item(trace: Trace, iterator: Any) -> object:
    """``next(iterator)``; raises ``Raised(StopIteration)`` at the end."""
    iterator = force(trace, iterator)
    if type(iterator) in CONTAINER_ITERATORS and id(iterator) not in trace.outside.foreign:
        trace.progress.entered += 1
        try:
            return unproxy(next(iterator))  # no code of the program runs
        except (StopIteration, RuntimeError) as error:
            raise Raised(from_native(trace, error)) from None
    if issubclass(type(iterator), InterpretedIterator):
        return iterator.resume(None)
    method = special_method(trace, iterator, "__next__")
    if method is not None:
        return call(trace, method, (iterator,), {})
    return native_calls.call_without_rule(trace, next, (iterator,), {})


@operation
def consume(trace: Trace, value: object) -> Iterator[Any]:
    """All elements of an iterable of the program."""
    return iterate_rest(trace, get_iterator(trace, value))


def iterate_rest(trace: Trace, iterator: object) -> Iterator[Any]:
    """All elements that an iterator of the program still gives."""
    while True:
        try:
            item = next_item(trace, iterator)
        except Raised as raised:
            if isinstance(raised.error, StopIteration):
                return
            raise
        trace.progress.count_step(trace)
        yield item


def unpack_one(value: Any) -> object:
    (element,) = value
    return element


def elements_to_unpack(trace: Trace, value: object) -> Iterator[Any]:
    """The elements of what is being unpacked."""
    value = force(trace, value)
    kind = type_of(trace, value)
    if not hasattr(kind, "__iter__") and not hasattr(kind, "__getitem__"):
        raise Raised(TypeError(f"cannot unpack non-iterable {kind.__name__} object"))
    return consume(trace, value)


TELLS_COUNT = frozenset(
    kind for kind in (list, tuple, dict) if "3" in message_of(functools.partial(unpack_one, kind({1: 1, 2: 2, 3: 3})))
)
"""The types whose elements CPython counts when there are too many of them."""


def too_many_values(value: Any, count: int) -> str:
    counted = f", got {len(value)}" if type(value) in TELLS_COUNT else ""
    return f"too many values to unpack (expected {count}{counted})"


def unpack(trace: Trace, value: object, count: int) -> list[object]:
    """``a, b = value``."""
    items: list[object] = []
    for item in elements_to_unpack(trace, value):
        items.append(item)
        if len(items) > count:
            raise Raised(ValueError(too_many_values(force(trace, value), count)))
    if len(items) < count:
        raise Raised(ValueError(f"not enough values to unpack (expected {count}, got {len(items)})"))
    return items
