"""The descriptor protocol: an attribute that was found on a class, bound to an instance or a class."""

from __future__ import annotations

import functools
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

from ..._native import is_instance as isinstance
from ...platform.python_objects import HEAP_TYPE
from ...program import call_markers
from ..guards.source import Attribute, InstanceAttribute, getattr_static_dict, lookup
from ..shadows import marked_calls
from ..shadows.builtin_tables import SAFE_OWNERS
from ..shadows.wrap import class_attribute, class_attribute_source, force, load_slot, wrap
from ..state.exceptions import from_native
from ..state.operations import operation, operations
from ..state.trace import Trace
from ..state.values import Lazy, Raised, unwrap

NATIVE_DESCRIPTORS = (
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
    types.BuiltinFunctionType,
)

NATIVE_OWNERS: dict[type, Callable[[Trace, object, str], object]] = {}
"""Native classes whose shadows are bare instances -> how their native attributes are read from the real object."""

NATIVE_STORES: dict[type, Callable[[Trace, object, str, object], None]] = {}
"""Native classes -> how these attributes are assigned to."""


PARTIAL_WARNING = (
    "functools.partial will be a method descriptor in future Python versions; "
    "wrap it in staticmethod() if you want to preserve the old behavior"
)
"""What 3.13 says when a partial is found on a class, which it does not bind yet."""


def is_foreign(cls: type) -> bool:
    return not any(base in SAFE_OWNERS for base in cls.__mro__ if base is not object)


def is_data_descriptor(raw: object) -> bool:
    kind = type(raw)
    return hasattr(kind, "__set__") or hasattr(kind, "__delete__")


def bind_class_attribute(
    trace: Trace, owner: Any, cls: type, name: str, raw: Any, own_class: type | None = None
) -> object:
    """Run the descriptor protocol for an attribute of an instance that was found on a class.

    ``own_class`` is the class of the instance if it differs from ``cls``, where the attribute was found: ``super``
    looks past the class, but binds to it.
    """
    kind = type(raw)
    if kind is types.FunctionType:
        name_class_value(trace, cls, name, raw)
        return types.MethodType(raw, owner)
    if kind is staticmethod or kind is classmethod:
        function = wrap(trace, raw.__func__, Attribute(class_attribute_source(trace, cls, name), "__func__"))
        return function if kind is staticmethod else bind_to_class(trace, function, own_class or cls)
    if isinstance(raw, property) and type(raw).__get__ is property.__get__:
        if call_markers.marker_of(raw.fget).fact:
            return marked_calls.load_assumed_property(trace, owner, name, raw)
        return operations.call(trace, property_part(trace, cls, name, raw, "fget"), (owner,), {})
    if kind is types.MemberDescriptorType:
        return load_member(trace, owner, name, raw)
    if kind is types.BuiltinFunctionType:  # no descriptor: ``__new__``, or a builtin that the class was given
        return Lazy(raw, class_attribute_source(trace, cls, name))
    if kind in (types.GetSetDescriptorType,) or isinstance(raw, NATIVE_DESCRIPTORS):
        return get_natively(trace, raw, owner, own_class or cls)
    if kind is functools.cached_property and getattr_static_dict(owner) is not None:
        return load_cached_property(trace, owner, cls, name, raw)
    getter = class_function(trace, kind, "__get__") or lookup(kind, "__get__")
    if isinstance(getter, types.FunctionType):
        descriptor = wrap(trace, raw, class_attribute_source(trace, cls, name))
        return operations.call(trace, getter, (descriptor, owner, own_class or cls), {})
    if isinstance(getter, (staticmethod, classmethod)):
        raise trace.fail(f"a descriptor whose __get__ is a {type(getter).__name__}")
    if kind is functools.partial and sys.version_info[:2] == (3, 13):
        operations.call(trace, warnings.warn, (PARTIAL_WARNING, FutureWarning), {})
        return Lazy(raw, class_attribute_source(trace, cls, name))
    if kind is functools.partialmethod or getter is not None:
        return get_natively(trace, raw, owner, own_class or cls)
    return Lazy(raw, class_attribute_source(trace, cls, name))


def load_cached_property(
    trace: Trace, owner: object, cls: type, name: str, raw: functools.cached_property[Any]
) -> object:
    """``functools.cached_property``: computed once and kept in the instance dictionary."""
    source = class_attribute_source(trace, cls, name)
    if "attrname" not in raw.__dict__:
        trace.guards.add(source, "no_attribute", "attrname")
    else:
        trace.guards.add(InstanceAttribute(source, "attrname"), "constant", raw.attrname)
    if raw.__dict__.get("attrname") != name:
        raise trace.fail(f"a cached property that is kept by another name than {name}")
    function = wrap(trace, raw.func, Attribute(source, "func"))
    value = operations.call(trace, function, (owner,), {})
    owner.__dict__[name] = value
    return value


def bind_to_class(trace: Trace, function: Any, cls: type) -> object:
    """What ``classmethod(function)`` binds to: a method, or (before 3.13) the result of the inner descriptor."""
    function = force(trace, function)
    if not callable(function) and not hasattr(type(function), "__get__"):
        return classmethod(function).__get__(None, cls)
    if type(function) is types.FunctionType or sys.version_info >= (3, 13):
        return types.MethodType(function, cls)
    getter = class_function(trace, type(function), "__get__") or lookup(type(function), "__get__")
    if isinstance(getter, types.FunctionType):
        return operations.call(trace, getter, (function, cls, cls), {})
    if isinstance(function, classmethod):
        source = trace.outside.source_of(function)
        inner = function.__func__ if source is None else wrap(trace, function.__func__, Attribute(source, "__func__"))
        return bind_to_class(trace, inner, cls)
    if isinstance(function, property) and type(function).__get__ is property.__get__:
        return operations.call(trace, function.fget, (cls,), {})
    return types.MethodType(function, cls) if getter is None else get_natively(trace, function, cls, cls)


def get_natively(trace: Trace, raw: Any, owner: Any, cls: type) -> object:
    loader = NATIVE_OWNERS.get(raw.__objclass__) if type(raw) is types.GetSetDescriptorType else None
    if loader is not None:
        return loader(trace, owner, raw.__name__)
    if is_foreign(cls) and not cls.__flags__ & HEAP_TYPE and type(raw) is types.GetSetDescriptorType:
        raise trace.fail(f"attribute {getattr(raw, '__name__', '?')!r} of a {cls.__module__}.{cls.__qualname__} object")
    try:
        return unwrap(raw.__get__(owner, cls))
    except Exception as error:
        raise Raised(error) from None


def property_part(trace: Trace, cls: type, name: str, raw: property, part: str) -> object:
    function = getattr(raw, part)
    if function is None:
        verb = {"fget": "getter", "fset": "setter", "fdel": "deleter"}[part]
        raise Raised(AttributeError(f"property {name!r} of {cls.__qualname__!r} object has no {verb}"))
    return wrap(trace, function, Attribute(class_attribute_source(trace, cls, name), part))


def load_member(trace: Trace, owner: Any, name: str, descriptor: Any) -> object:
    record = trace.outside.record_of(owner)
    if record is not None:
        load_slot(trace, record, name, descriptor)
    try:
        value = unwrap(descriptor.__get__(owner))
    except AttributeError as error:
        raise Raised(error) from None
    source = trace.outside.source_of(owner) if record is None and isinstance(value, types.FunctionType) else None
    # The getter of a property from outside has a source.
    if source is not None and trace.outside.source_of(value) is None:
        trace.outside.name_source(value, Attribute(source, name))
    return value


def watch_method(trace: Trace, cls: type, name: str, function: types.FunctionType) -> None:
    """Guard a method of a class that is about to be called, and give it a source."""
    class_attribute(trace, cls, name)
    name_class_value(trace, cls, name, function)


@operation
def name_class_value(trace: Trace, cls: type, name: str, value: object) -> None:
    """Give a function found on a guarded class a source; it needs no guard of its own."""
    if id(value) not in trace.outside.sources:
        trace.outside.name_source(value, class_attribute_source(trace, cls, name))


def class_function(trace: Trace, cls: type, name: str) -> types.FunctionType | None:
    """A special method that is a Python function, with its source; None if there is none."""
    raw = class_attribute(trace, cls, name)
    if not isinstance(raw, types.FunctionType):
        return None
    name_class_value(trace, cls, name, raw)
    return raw


def unbound_class_attribute(trace: Trace, cls: type, name: str, raw: Any, own_class: type) -> object:
    """Run the descriptor protocol for an attribute of a class (``own_class``) that was found on ``cls``."""
    kind = type(raw)
    if kind is types.FunctionType:
        name_class_value(trace, cls, name, raw)
        return raw
    if kind is staticmethod or kind is classmethod:
        function = wrap(trace, raw.__func__, Attribute(class_attribute_source(trace, cls, name), "__func__"))
        return function if kind is staticmethod else bind_to_class(trace, function, own_class)
    getter = class_function(trace, kind, "__get__") or lookup(kind, "__get__")
    if isinstance(getter, types.FunctionType):
        descriptor = wrap(trace, raw, class_attribute_source(trace, cls, name))
        return operations.call(trace, getter, (descriptor, None, own_class), {})
    if getter is None or kind is functools.partial:  # a partial, if it is a descriptor, stays what it is on a class
        return Lazy(raw, class_attribute_source(trace, cls, name))
    if isinstance(getter, (staticmethod, classmethod)):
        raise trace.fail(f"a descriptor whose __get__ is a {type(getter).__name__}")
    try:
        value = getattr(cls, name) if cls is own_class else getter(raw, None, own_class)
    except Exception as error:
        raise Raised(from_native(trace, error)) from None
    if not isinstance(value, NATIVE_DESCRIPTORS):
        trace.outside.pinned(value)
    return value
