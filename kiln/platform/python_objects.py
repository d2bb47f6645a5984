"""What CPython's objects tell about themselves."""

from __future__ import annotations

import collections
import types
from collections.abc import Callable
from typing import Any

from .._native import is_instance as isinstance

HEAP_TYPE = 1 << 9  # the flag of a class made by a class statement: such a class can change


def message_of(action: Callable[[], object]) -> str:
    """The text of the exception that an action raises: what CPython says in a situation differs between versions."""
    try:
        action()
    except Exception as error:
        return str(error)
    raise AssertionError("the action raises nothing")


ANNOTATION_NAMES = frozenset(("__annotations__", "__annotations_cache__"))


def has_annotations(cls: type) -> bool:
    """Whether a class itself, not a base, has annotations."""
    return not (ANNOTATION_NAMES | {"__annotate_func__"}).isdisjoint(vars(cls))


def pending_annotate(owner: object) -> Any:
    """From 3.14 on: what evaluates the annotations of a function or class at the first read, if that may be to come."""
    if isinstance(owner, type) and not ANNOTATION_NAMES.isdisjoint(vars(owner)):
        return None
    return getattr(owner, "__annotate__", None)


def cell_is_empty(cell: types.CellType) -> bool:
    """Whether a closure cell holds nothing."""
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return True
    return False


def closure_values(function: types.FunctionType) -> list[Any]:
    """What a function's closure holds, without the cells that are empty."""
    values = []
    for cell in function.__closure__ or ():
        try:
            values.append(cell.cell_contents)
        except ValueError:
            continue
    return values


def words(text: str) -> frozenset[str]:
    """The words of a text, as a set."""
    return frozenset(text.split())


def mapping_items(mapping: dict[Any, Any]) -> list[tuple[Any, Any]]:
    """Keys and values in the order of iteration, past any method in Python. (``dict`` ignores ``move_to_end``.)"""
    if isinstance(mapping, collections.OrderedDict):
        return list(collections.OrderedDict.items(mapping))
    return list(dict.items(mapping))


PLAIN_VALUES: tuple[tuple[type, Callable[[Any], object]], ...] = (
    (int, int.__int__),
    (float, float.__float__),
    (str, str.__str__),
    (bytes, bytes.__bytes__),
    (complex, complex.__complex__),
)


def plain_value(value: object) -> object:
    """The int, float, str … that an instance of a subclass is, past any method in Python."""
    return next((plain(value) for base, plain in PLAIN_VALUES if isinstance(value, base)), value)


def slot_descriptors(cls: type) -> list[types.MemberDescriptorType]:
    return [
        raw
        for klass in cls.__mro__
        if klass.__flags__ & HEAP_TYPE and "__slots__" in klass.__dict__
        for raw in klass.__dict__.values()
        if type(raw) is types.MemberDescriptorType
    ]
