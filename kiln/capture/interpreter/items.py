"""Items of containers: reading, assigning and deleting ``container[key]``."""

from __future__ import annotations

import enum
import types
from typing import Any

import torch

from ... import operator_functions as operator
from ..._native import is_instance as isinstance
from ..guards.source import lookup
from ..shadows.builtin_tables import is_allowed
from ..shadows.native_arguments import is_object, load_keys
from ..shadows.symbolic_numbers import concrete
from ..shadows.wrap import force
from ..state.enum_tables import watch_members
from ..state.exceptions import call_for_program
from ..state.operations import Args, Kwargs, operation
from ..state.trace import Trace
from ..state.values import Opaque
from . import calls, native_calls
from .call_rules import rule
from .descriptors import name_class_value
from .membership import contains_hashed
from .operators import SIMPLE, operand_iterable, record_operator
from .protocols import call_index, special_method


@operation
def get_item(trace: Trace, container: Any, key: Any) -> object:
    """``container[key]``; may be lazy."""
    key = index_of(trace, container, key)
    if isinstance(container, torch.Tensor):
        return record_operator(trace, operator.getitem, container, key)
    if isinstance(container, type):
        return get_class_item(trace, container, key)
    if type(container).__module__ == "typing":  # Optional[int]: typing's cache is no state of the program
        return get_class_item(trace, container, key)
    method = special_method(trace, container, "__getitem__")
    if method is not None:
        return calls.call(trace, method, (container, key), {})
    if isinstance(container, Opaque):
        raise trace.fail("indexing a graph value that is not a tensor")
    return subscript(trace, "__getitem__", container, key)


SEQUENCES = (list, tuple, str, bytes, bytearray, range, torch.Tensor)


def index_of(trace: Trace, container: object, key: object) -> object:
    """A key for a sequence, after ``__index__`` of user classes."""
    if not isinstance(container, SEQUENCES) or type(key) in SIMPLE or isinstance(key, torch.Tensor):
        return key
    if type(key) is slice:
        return slice(*(index_of(trace, container, part) for part in (key.start, key.stop, key.step)))
    if type(key) is tuple and isinstance(container, torch.Tensor):
        return tuple([index_of(trace, container, part) for part in key])
    method = special_method(trace, key, "__index__") if not isinstance(key, int) else None  # an int is its own
    return key if method is None else call_index(trace, method, key)


def subscript(trace: Trace, name: str, container: object, *operands: object) -> object:
    """An item method of a builtin container, with the key made concrete."""
    key = concrete_key(trace, operands[0])
    descriptor = lookup(type(container), name)
    if name == "__getitem__" and isinstance(container, dict):
        if special_method(trace, container, "__missing__") is not None:
            return missing_item(trace, container, key)
    if isinstance(descriptor, (types.WrapperDescriptorType, types.MethodDescriptorType)):
        return native_calls.call_native(trace, descriptor, (container, key, *operands[1:]), {})
    function = {"__getitem__": operator.getitem, "__setitem__": operator.setitem, "__delitem__": operator.delitem}[name]
    if descriptor is not None and not is_allowed(descriptor):
        raise trace.fail(f"an item of a {type(container).__qualname__} object")
    return native_calls.call_without_rule(trace, function, (container, key, *operands[1:]), {})


def missing_item(trace: Trace, container: dict[Any, Any], key: object) -> object:
    """A dict subclass with a Python ``__missing__``."""
    if contains_hashed(trace, container, key):
        return dict.__getitem__(container, key)
    return calls.call(trace, special_method(trace, container, "__missing__"), (container, key), {})


@rule(dict.__getitem__)
def rule_dict_item(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    """Also reached by ``super().__getitem__``: a ``__missing__`` in Python is interpreted."""
    container, key = [force(trace, arg) for arg in args]
    if special_method(trace, container, "__missing__") is not None:
        return missing_item(trace, container, concrete_key(trace, key))
    return native_calls.call_without_rule(trace, dict.__getitem__, (container, key), kwargs)


def concrete_key(trace: Trace, key: object) -> object:
    if type(key) is slice:
        return slice(*(concrete(trace, part) for part in (key.start, key.stop, key.step)))
    return concrete(trace, key)


def get_class_item(trace: Trace, cls: type, key: object) -> object:
    """``list[int]``, ``Color["RED"]``."""
    method = lookup(type(cls), "__getitem__")
    if isinstance(method, types.FunctionType) and type(cls).__module__ != "typing":
        if isinstance(cls, enum.EnumMeta):
            watch_members(trace, cls)
            return call_for_program(trace, operator.getitem, cls, concrete(trace, key))
        name_class_value(trace, type(cls), "__getitem__", method)
        return calls.call(trace, method, (cls, key), {})
    made = call_for_program(trace, operator.getitem, cls, key)
    trace.outside.pinned(made)
    return made


def set_item(trace: Trace, container: object, key: object, value: object) -> None:
    """``container[key] = value``."""
    key = index_of(trace, container, key)
    if isinstance(container, torch.Tensor):
        record_operator(trace, operator.setitem, container, key, force(trace, value))
        return
    method = special_method(trace, container, "__setitem__")
    if method is not None:
        calls.call(trace, method, (container, key, value), {})
        return
    if type(key) is slice:
        value = force(trace, value)
        value = calls.call(trace, list, (value,), {}) if is_object(value) else operand_iterable(trace, value)
    subscript(trace, "__setitem__", container, key, value)


def delete_item(trace: Trace, container: object, key: object) -> None:
    """``del container[key]``."""
    key = index_of(trace, container, key)
    method = special_method(trace, container, "__delitem__")
    if method is not None:
        calls.call(trace, method, (container, key), {})
        return
    subscript(trace, "__delitem__", container, key)


@operation
def plain_mapping(trace: Trace, value: object) -> dict[str, object]:
    """Keyword arguments from ``**value``."""
    if type(value) is dict:
        load_keys(trace, value)
        return dict(value)
    raise trace.fail("** of something that is not a dictionary")
