"""What a call did, as plain data: result, arguments afterwards, exception, what spies were asked."""

from __future__ import annotations

import collections
import enum
import itertools
import re
import types
from dataclasses import dataclass, field

import torch

from kiln.capture.shadows.builtin_tables import ITERATOR_TYPES

from . import values

ITERATOR = re.compile(r"\b\w+_(reverse)?(key|value|item)?iterator\b")
ADDRESS = re.compile(r"0x[0-9a-f]+")
ITEMS_TAKEN = 8  # of an iterator that comes out
BY_VALUE = (int, float, complex, str, bytes)


@dataclass
class Outcome:
    result: object = None
    raised: object = None
    arguments: object = None
    log: list[str] = field(default_factory=list)

    def differences(self, other: Outcome) -> list[str]:
        names = ("raised", "result", "arguments", "log")
        return [
            f"{name}: {getattr(self, name)!r:.300} expected, {getattr(other, name)!r:.300} seen"
            for name in names
            if getattr(self, name) != getattr(other, name)
        ]


def plain_text(text: str) -> str:
    """Text without addresses, and without the class of an iterator: one that is made again may have another."""
    return ITERATOR.sub("iterator", ADDRESS.sub("0x", text))


class Snapshot:
    """Describes values; objects with an identity are numbered in the order in which they are met."""

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}
        self.alive: list[object] = []
        self.iterators: list[tuple[list, object]] = []

    def describe(self, value: object) -> object:
        kind = type(value)
        if value is None or value is Ellipsis or value is NotImplemented:
            return repr(value)
        if isinstance(value, enum.Enum | torch.device):
            return str(value)
        if isinstance(value, type):
            return ("class", value.__qualname__)
        if isinstance(value, torch.Tensor):
            return ("tensor", str(value.dtype), tuple(value.shape), tuple(value.reshape(-1).tolist()))
        base = next((base for base in BY_VALUE if isinstance(value, base)), None)
        if base is not None:
            return (kind.__name__, plain_text(base.__repr__(value)))
        if isinstance(value, tuple):
            return (kind.__name__, [self.describe(item) for item in tuple.__iter__(value)])
        if id(value) in self.numbers:
            return ("same", self.numbers[id(value)])
        self.numbers[id(value)] = len(self.numbers)
        self.alive.append(value)
        return ("iterator" if kind in ITERATOR_TYPES else kind.__name__, self.contents(value))

    def contents(self, value: object) -> object:
        attributes = getattr(value, "__dict__", None) if not isinstance(value, types.FunctionType) else None
        own = self.describe_mapping(attributes) if type(attributes) is dict and attributes else None
        if isinstance(value, list):
            return (own, [self.describe(item) for item in list.__iter__(value)])
        if isinstance(value, dict):
            ordered = isinstance(value, collections.OrderedDict)
            pairs = collections.OrderedDict.items(value) if ordered else dict.items(value)
            factory = self.describe(value.default_factory) if isinstance(value, collections.defaultdict) else None
            return (own, factory, [(self.describe(k), self.describe(v)) for k, v in pairs])
        if isinstance(value, set | frozenset):
            base = set if isinstance(value, set) else frozenset
            return (own, sorted((self.describe(item) for item in base.__iter__(value)), key=repr))
        if isinstance(value, collections.deque):
            items = [self.describe(item) for item in collections.deque.__iter__(value)]
            return (own, value.maxlen, items)
        if isinstance(value, bytearray | range | slice | torch.dtype | torch.device | torch.finfo | torch.iinfo):
            return plain_text(repr(value))
        if isinstance(value, BaseException):
            return (own, [self.describe(arg) for arg in value.args])
        if isinstance(value, types.FunctionType | types.BuiltinFunctionType | types.MethodDescriptorType):
            return value.__qualname__
        if isinstance(value, types.MethodType):
            return (self.describe(value.__func__), self.describe(value.__self__))
        if isinstance(value, types.CellType):
            return self.describe(value.cell_contents) if _filled(value) else "empty"
        if isinstance(value, types.MappingProxyType):
            return [(self.describe(k), self.describe(v)) for k, v in value.items()]
        if type(value) in VIEWS:
            return [self.describe(item) for item in list(value)]
        if hasattr(type(value), "__next__") and not isinstance(value, values.Thing) and type(value).__name__ != "Only":
            waiting: list[object] = []
            self.iterators.append((waiting, value))
            return waiting
        if type(value).__module__ in ("functools", "operator", "re", "types", "builtins"):
            return plain_text(repr(value))
        return own

    def describe_mapping(self, mapping: dict) -> object:
        return [(key, self.describe(item)) for key, item in mapping.items()]

    def take_items(self) -> None:
        """Go through the iterators that were met, last: this changes what they iterate over."""
        for waiting, iterator in self.iterators:
            try:
                for item in itertools.islice(iterator, ITEMS_TAKEN):  # type: ignore[call-overload]
                    waiting.append(self.describe(item))
            except Exception as error:
                waiting.append(("raised", type(error).__name__, [self.describe(arg) for arg in error.args]))


VIEWS = tuple(type(view) for view in ({}.keys(), {}.values(), {}.items()))
VIEWS += tuple(type(getattr(collections.OrderedDict(), name)()) for name in ("keys", "values", "items"))


def _filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents
    except ValueError:
        return False
    return True
