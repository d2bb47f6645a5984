"""Builtins written out in Python: interpreted where native code would run special methods past the interpreter."""

from __future__ import annotations

import collections
from collections.abc import Callable


def count_elements(mapping, iterable):
    for element in iterable:
        mapping[element] = mapping.get(element, 0) + 1


def list_remove(self, value):
    for index in range(len(self)):
        if self[index] is value or self[index] == value:
            del self[index]
            return
    raise ValueError("list.remove(x): x not in list")


def deque_remove(self, value):
    for index in range(len(self)):
        if self[index] is value or self[index] == value:
            del self[index]
            return
    raise ValueError("deque.remove(x): x not in deque")


def list_sort(self, *, key=None, reverse=False):
    self[:] = sorted(self, key=key, reverse=reverse)


POLYFILLS: dict[object, Callable] = {
    collections._count_elements: count_elements,  # type: ignore[attr-defined]
    list.remove: list_remove,
    list.sort: list_sort,
    collections.deque.remove: deque_remove,
}
