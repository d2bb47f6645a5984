"""Builtins bound to an object (``log.append``, ``log.__len__``): which descriptor they are, and from outside, whose.

A bound builtin is its owner's: the owner is looked at like any other object from outside, and the method bound to its
shadow. Those of classes are what they are by equality, those of modules by identity.
"""

from __future__ import annotations

import collections
import functools
import types
from typing import Any

import torch

from ..._native import is_instance as isinstance
from ...platform.python_objects import HEAP_TYPE
from ..guards.descriptions import module_of
from ..guards.source import Attribute, Computed, Pinned, Source
from ..state.operations import operations
from ..state.trace import Trace
from ..state.values import Lazy
from .appended_lists import list_method
from .symbolic_numbers import concrete, is_symbolic

DESCRIPTORS = types.MethodDescriptorType | types.WrapperDescriptorType


def bind_method(descriptor: Any, owner: Any) -> object:
    """A native method bound to its owner. (CPython 3.11 crashes on some methods of C if not told the class as well.)"""
    return descriptor.__get__(owner, type(owner))


def native_descriptor(bound: Any) -> Any:
    """The descriptor that a bound builtin was made from. (``super()`` may have gone past others of the same name.)"""
    owner, name = bound.__self__, bound.__name__
    kind: Any = type(owner)
    found = descriptors_in(kind, name) if kind.__flags__ & HEAP_TYPE else builtin_descriptors(kind, name)
    if len(found) > 1:  # bound builtins compare by owner and C function, without asking the owner
        found = [descriptor for descriptor in found if bind_method(descriptor, owner) == bound] or found
    return found[0] if found else None


def descriptors_in(kind: type, name: str) -> list[object]:
    """The native methods of a name in a class and its bases."""
    tables = [klass.__dict__ for klass in kind.__mro__ if name in klass.__dict__]
    return [table[name] for table in tables if isinstance(table[name], DESCRIPTORS)]


builtin_descriptors = functools.cache(descriptors_in)  # these classes do not change


def is_found_by_name(bound: Any, descriptor: Any) -> bool:
    """Whether ``owner.name`` gives the method, with no other one before it."""
    name = bound.__name__
    cls = type(bound.__self__)
    first = next((klass.__dict__[name] for klass in cls.__mro__ if name in klass.__dict__), None)
    return first is descriptor


def wrap_bound_builtin(trace: Trace, real: types.BuiltinFunctionType, source: Source) -> object:
    """A builtin from outside; one that is bound to an object is bound to that object's shadow."""

    owner = real.__self__
    if isinstance(owner, type) and not isinstance(source, Pinned):  # made anew wherever it is asked for
        trace.guards.add(source, "constant", real)
        return operations.name_copy(trace, real, source, real)
    if owner is None or isinstance(owner, (types.ModuleType, type)) or is_native_owner(owner):
        return operations.wrap_identity(trace, real, source)
    trace.guards.add(source, "type", type(real))
    trace.guards.add(Attribute(source, "__name__"), "constant", real.__name__)
    descriptor = native_descriptor(real)
    owner_source = Attribute(source, "__self__")
    found_by_name = is_found_by_name(real, descriptor)
    if isinstance(owner, collections.OrderedDict) and getattr(descriptor, "__objclass__", None) is dict:
        raise trace.fail("a method of dict on an OrderedDict", "the two may have another order")
    shadow = operations.wrap(trace, owner, owner_source)
    if is_symbolic(shadow):
        shadow = concrete(trace, shadow)
    if descriptor is None or isinstance(shadow, torch.Tensor):
        return operations.name_copy(trace, getattr(shadow, real.__name__), source, real)
    if type(owner).__flags__ & HEAP_TYPE or not found_by_name:
        trace.guards.add(Computed(native_descriptor, (source,)), "identity", descriptor)
    return operations.name_copy(trace, bind_method(descriptor, shadow), source, real)


def appending_method(trace: Trace, value: Lazy) -> object:
    """A method of a list from outside that is about to be called, and only that; None if it is not one."""
    real = value.real
    if type(real) is not types.BuiltinFunctionType or type(real.__self__) is not list:
        return None
    made = list_method(trace, Lazy(real.__self__, Attribute(value.source, "__self__")), real.__name__)
    if made is not None:
        trace.guards.add(value.source, "type", types.BuiltinFunctionType)
        trace.guards.add(Attribute(value.source, "__name__"), "constant", real.__name__)
    return made


def is_native_owner(owner: object) -> bool:
    """Whether a bound builtin belongs to torch's or a pybind11 extension's own machinery (a tensor's does not)."""
    return not isinstance(owner, torch.Tensor) and module_of(type(owner)).startswith(("torch", "pybind11"))
