"""Builtins in Python: interpreted where native code would call special methods of the program itself."""

from __future__ import annotations

import collections
import sys
from typing import Any

from ...platform.cpython import count_elements as native_count_elements
from ...platform.python_objects import message_of
from ..interpreter.native_calls import POLYFILLS

SHOWS_VALUE = message_of(lambda: list[int]().index(0)).startswith("0")  # up to 3.13
NOT_REMOVED = "deque.remove(x): x not in deque"


def count_elements(mapping: Any, iterable: Any) -> Any:
    for element in iterable:
        mapping[element] = mapping.get(element, 0) + 1


def list_remove(self: Any, value: Any) -> Any:
    index = 0
    while index < list.__len__(self):
        item = list.__getitem__(self, index)
        if item is value or item == value:
            list.__delitem__(self, slice(index, index + 1))
            return
        index += 1
    raise ValueError("list.remove(x): x not in list")


def list_index(self: Any, value: Any, start: int = 0, stop: int = sys.maxsize, /) -> Any:
    size = list.__len__(self)
    index = max(start + size, 0) if start < 0 else start
    stop = max(stop + size, 0) if stop < 0 else stop
    while index < stop and index < list.__len__(self):
        item = list.__getitem__(self, index)
        if item is value or item == value:
            return index
        index += 1
    raise ValueError(f"{value!r} is not in list" if SHOWS_VALUE else "list.index(x): x not in list")


def list_count(self: Any, value: Any, /) -> Any:
    index = total = 0
    while index < list.__len__(self):
        item = list.__getitem__(self, index)
        if item is value or item == value:
            total += 1
        index += 1
    return total


def list_sort(self: Any, *, key: Any = None, reverse: bool = False) -> Any:
    items = list.copy(self)
    list.clear(self)
    try:
        items = sorted(items, key=key, reverse=reverse)
        if list.__len__(self):
            raise ValueError("list modified during sort")
    finally:
        list.__setitem__(self, slice(None), items)


# A deque that an __eq__ changes is noticed by its iterator, also at the end.


def deque_remove(self: Any, value: Any) -> Any:
    items, index = collections.deque.__iter__(self), 0
    while True:
        try:
            item = next(items)
        except StopIteration:
            raise ValueError(f"{value!r} is not in deque" if SHOWS_VALUE else NOT_REMOVED) from None
        except RuntimeError:
            raise IndexError("deque mutated during iteration") from None
        if item is value or item == value:
            try:
                next(items, None)
            except RuntimeError:
                raise IndexError("deque mutated during iteration") from None
            collections.deque.__delitem__(self, index)
            return
        index += 1


def deque_index(self: Any, value: Any, start: int = 0, stop: int = sys.maxsize, /) -> Any:
    size = collections.deque.__len__(self)
    start = max(start + size, 0) if start < 0 else start
    stop = max(stop + size, 0) if stop < 0 else stop
    for index, item in enumerate(collections.deque.__iter__(self)):
        if index >= stop:
            break
        if index >= start and (item is value or item == value):
            return index
    raise ValueError(f"{value!r} is not in deque" if SHOWS_VALUE else "deque.index(x): x not in deque")


def deque_count(self: Any, value: Any, /) -> Any:
    total = 0
    for item in collections.deque.__iter__(self):
        if item is value or item == value:
            total += 1
    return total


POLYFILLS.update(
    {
        native_count_elements: count_elements,
        list.remove: list_remove,
        list.index: list_index,
        list.count: list_count,
        list.sort: list_sort,
        collections.deque.remove: deque_remove,
        collections.deque.index: deque_index,
        collections.deque.count: deque_count,
    }
)
