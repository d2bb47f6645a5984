"""Protocols of Python values: truth, length, special methods, instance checks."""

from __future__ import annotations

import builtins
import sys
import types
import typing
from typing import Any

import torch
from torch.nn import Parameter

from ..._native import MISSING
from ..._native import is_instance as isinstance
from ...platform.cpython import is_protocol, protocol_members
from ...platform.python_objects import HEAP_TYPE
from ..guards.source import is_direct, lookup
from ..shadows.native_arguments import (
    VIEWS_AND_PROXIES,
    Survey,
    check_conversion,
    guard_all_keys,
    is_special,
    python_methods,
)
from ..shadows.symbolic_numbers import concrete, is_symbolic
from ..shadows.wrap import class_attribute, force
from ..state.exceptions import call_for_program
from ..state.operations import Args, operations
from ..state.trace import Trace
from ..state.value_ranges import known_truth
from ..state.values import InterpretedIterator, Raised, SpecialMethod, Trampoline
from .attributes import load_attribute
from .calls import call
from .descriptors import class_function, name_class_value
from .program_types import native_name, type_of

PROTOCOLS = type(typing.SupportsInt)


def force_all(trace: Trace, args: Args) -> tuple[Any, ...]:
    return tuple([force(trace, arg) for arg in args])


def is_instance(trace: Trace, value: Any, classes: Any) -> bool:
    if isinstance(classes, tuple):
        return any(is_instance(trace, value, force(trace, cls)) for cls in classes)
    custom = lookup(type(classes), "__instancecheck__")
    if isinstance(custom, types.FunctionType) and not has_default_instance_check(trace, value, classes):
        class_function(trace, type(classes), "__instancecheck__")
        return bool(truth(trace, call(trace, custom, (classes, value), {})))
    kind = type_of(trace, value)
    if isinstance(classes, PROTOCOLS) and is_protocol(classes):
        assume_members(trace, value, kind, classes)
    if isinstance(value, torch.Tensor):
        return tensor_is_instance(trace, value, kind, classes)
    if not is_direct(type(value)) and type(classes) is type and not issubclass(kind, classes):
        kind = force(trace, load_attribute(trace, value, "__class__"))
        return issubclass(kind, classes)
    check, subject = (builtins.isinstance, value) if kind is type(value) else (issubclass, kind)
    result = bool(call_for_program(trace, check, subject, classes))
    if isinstance(classes, type) and relation(kind, classes) is result:
        trace.guards.classes.relate(kind, classes, result)
    return result


def relation(kind: type, classes: Any) -> bool | None:
    """Whether a class is a subclass of others; None for protocols with attributes, which only an object can have."""
    try:
        return issubclass(kind, classes)
    except TypeError:
        if isinstance(classes, PROTOCOLS):
            return None
        raise


def assume_members(trace: Trace, value: object, kind: type, protocol: type) -> None:
    """Guard what an instance check of a protocol reads: its members, and which of them the object has."""
    watched = protocol.__flags__ & HEAP_TYPE and protocol.__module__ != "typing"
    if watched:
        class_attribute(trace, protocol, "_is_runtime_protocol")
    record = trace.outside.record_of(value)
    for name in protocol_members(protocol):
        if watched:
            class_attribute(trace, protocol, name)
        class_attribute(trace, kind, name)
        if record is not None and record.attributes is not None:
            trace.guards.add(record.source, "has_attribute" if name in record.attributes else "no_attribute", name)


def has_default_instance_check(trace: Trace, value: object, cls: object) -> bool:
    """Whether the ``__instancecheck__`` of a metaclass decides by the class of the value alone."""
    if type(cls).__module__ == "torch.nn.parameter":  # an attribute of the tensor may decide
        return not isinstance(value, torch.Tensor) or (
            cls is Parameter and trace.tensor_info(value).kind in (torch.Tensor, Parameter)
        )
    return type(cls).__module__ in ("abc", "typing", "torch", "enum", "torch._tensor")


def tensor_is_instance(trace: Trace, value: torch.Tensor, kind: type, classes: Any) -> bool:
    if classes is Parameter:
        return isinstance(value, classes)
    if isinstance(classes, type) and type(classes).__module__ == "torch":  # torch.FloatTensor and friends
        return isinstance(value, classes)
    related = relation(kind, classes)
    if related is None:
        raise trace.fail(f"whether a tensor has the attributes of the protocol {classes.__qualname__}")
    return related


def force_classes(trace: Trace, classes: object) -> Any:
    """A class or (nested) tuple of classes for native code, with all elements forced."""
    classes = force(trace, classes)
    return tuple([force_classes(trace, cls) for cls in classes]) if isinstance(classes, tuple) else classes


def truth(trace: Trace, value: Any) -> bool:
    """The truth of a value, as ``if`` sees it."""
    value = force(trace, value)
    kind = type(value)
    if kind is bool:
        return value is True
    if isinstance(value, torch.Tensor):
        operations.check_method(trace, value, "__bool__")
        known = known_truth(trace, value)
        if known is not None:
            return known
        raise trace.fail(
            "a branch on a tensor's value", "use torch.where, or let the graph break here (without fullgraph=True)"
        )
    if kind in VIEWS_AND_PROXIES:
        return bool(call(trace, len, (value,), {}))
    record = trace.outside.record_of(value)
    native_length = isinstance(value, dict) and not {"__len__", "__bool__"} & {*python_methods(kind)}
    if native_length and record is not None and not record.loaded:
        if len(record.items) == len(value):
            trace.guards.add(record.source, "truth", bool(record.items))
        else:
            guard_all_keys(trace, record)
        return len(value) > 0
    if kind.__flags__ & HEAP_TYPE:
        for name, check in (("__bool__", checked_truth), ("__len__", checked_length)):
            method = special_method(trace, value, name)
            if method is not None:
                return bool(check(trace, concrete(trace, call(trace, method, (value,), {}))))
    if id(value) in trace.hooks.registrations or id(value) in trace.hooks.handles:
        return True
    if id(value) in trace.outside.foreign:
        raise trace.fail(f"the truth of a {kind.__module__}.{kind.__qualname__} object from outside")
    if Survey(trace, keep_symbols=True, shallow=True).visit(value) is not value:
        return bool(value)
    if kind.__module__ == "numpy":
        raise trace.fail("the truth of a NumPy object")
    if value is NotImplemented:
        raise trace.fail("the truth of NotImplemented, which Python warns of")
    return bool(value)


def checked_truth(trace: Trace, result: object) -> bool:
    if type(result) is not bool:
        raise Raised(TypeError(f"__bool__ should return bool, returned {native_name(trace, result)}"))
    return result


def call_index(trace: Trace, method: object, value: object) -> object:
    """The result of ``__index__``, checked."""
    index = force(trace, call(trace, method, (value,), {}))
    if type(index) is not torch.SymInt:
        check_conversion(trace, "__index__", concrete(trace, index))
    return index


def checked_length(trace: Trace, result: Any) -> int:
    """The result of ``__len__``, checked."""
    if not isinstance(result, int):
        index = special_method(trace, result, "__index__")
        if index is None:
            name = native_name(trace, result)
            raise Raised(TypeError(f"'{name}' object cannot be interpreted as an integer"))
        result = concrete(trace, call_index(trace, index, result))
    if result < 0:
        raise Raised(ValueError("__len__() should return >= 0"))
    if result > sys.maxsize:
        raise Raised(OverflowError("cannot fit 'int' into an index-sized integer"))
    return int(result)


def special_method(trace: Trace, value: object, name: str) -> types.FunctionType | SpecialMethod | None:
    """A special method that is not native code, to be called with the value first; None if there is none."""
    kind = type(value)
    if not kind.__flags__ & HEAP_TYPE or isinstance(value, (torch.Tensor, Trampoline)) or is_symbolic(value):
        return None
    if issubclass(kind, InterpretedIterator):
        return None
    method = class_attribute(trace, kind, name, MISSING)
    if isinstance(method, types.FunctionType):
        name_class_value(trace, kind, name, method)
        return method
    return SpecialMethod(name) if is_special(method) else None
