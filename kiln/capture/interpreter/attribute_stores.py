"""Assigning to attributes and deleting them."""

from __future__ import annotations

import types
from typing import Any

import torch

from ..._native import is_instance as isinstance
from ..guards.source import lookup
from ..shadows.wrap import class_attribute, class_attribute_source, force, load_slot, wrap
from ..state.operations import operations
from ..state.trace import Trace
from ..state.values import DELETED, Raised
from .attributes import load_attribute
from .descriptors import NATIVE_OWNERS, NATIVE_STORES, class_function, is_data_descriptor, property_part
from .instance_attributes import attribute_hook


def check_plain_module(trace: Trace, module: types.ModuleType, name: str, doing: str) -> None:
    """Writing to a module writes to its dictionary, unless its class overrides that: then the graph breaks."""
    kind = type(module)
    own = lookup(kind, "__setattr__") is not lookup(types.ModuleType, "__setattr__")
    if own or is_data_descriptor(lookup(kind, name)):
        raise trace.fail(f"{doing} {name!r} of a module that has code of its own for it")


def store_attribute(trace: Trace, owner: object, name: str, value: object) -> None:
    """``owner.name = value``."""
    owner = force(trace, owner)
    if trace.progress.key_method_depth:
        raise trace.fail("an effect inside a __hash__ or __eq__ that a dictionary or set is going to call")
    if isinstance(owner, torch.Tensor):
        operations.set_tensor_attribute(trace, owner, name, value)
    elif isinstance(owner, types.ModuleType):
        check_plain_module(trace, owner, name, "setting")
        trace.outside.written_globals(owner.__dict__)[name] = value
    elif isinstance(owner, type):
        raise trace.fail(f"assigning to attribute {name!r} of class {owner.__qualname__}")
    else:
        setter = attribute_hook(trace, type(owner), "__setattr__")
        if setter is not None:
            operations.call(trace, setter, (owner, name, value), {})
        else:
            generic_store(trace, owner, name, value)


def generic_store(trace: Trace, owner: object, name: str, value: object) -> None:
    """``object.__setattr__``."""
    cls = type(owner)
    if name in ("__dict__", "__class__"):
        raise trace.fail(f"assigning to {name} of a {cls.__qualname__} object", "do it outside the compiled function")
    raw = class_attribute(trace, cls, name)
    if calls_descriptor(trace, raw, owner, name, ("fset", "__set__"), value):
        return
    if type(raw) is types.MemberDescriptorType:
        record = trace.outside.record_of(owner)
        if record is not None:
            load_slot(trace, record, name, raw)
    check_writable(trace, owner, name)
    if type(raw) is types.GetSetDescriptorType and raw.__objclass__ in NATIVE_OWNERS:
        NATIVE_STORES[raw.__objclass__](trace, owner, name, value)
        return
    if type(raw) is types.GetSetDescriptorType or (raw is not None and isinstance(owner, types.FunctionType)):
        value = force(trace, value)  # native code reads it (a function's __annotations__, __module__)
    try:
        object.__setattr__(owner, name, value)
    except Exception as error:
        raise Raised(error) from None


def calls_descriptor(trace: Trace, raw: Any, owner: object, name: str, parts: tuple[str, str], *values: object) -> bool:
    """Call the function of a property, or the method of a descriptor in Python; whether there was one."""
    cls, (part, method) = type(owner), parts
    if isinstance(raw, property):
        operations.call(trace, property_part(trace, cls, name, raw, part), (owner, *values), {})
        return True
    function = class_function(trace, type(raw), method) if raw is not None else None
    if function is not None:
        descriptor = wrap(trace, raw, class_attribute_source(trace, cls, name))
        operations.call(trace, function, (descriptor, owner, *values), {})
    elif isinstance(lookup(type(raw), method), (staticmethod, classmethod)):
        raise trace.fail(f"a descriptor whose {method} is no plain method")
    return function is not None


def check_writable(trace: Trace, owner: object, name: str) -> None:
    """Break the graph for objects that have no copy: nothing may be written to them while tracing."""
    if trace.outside.record_of(owner) is None and (
        id(owner) in trace.outside.sources or id(owner) in trace.outside.foreign
    ):
        raise trace.fail(f"assigning to attribute {name!r} of a {type(owner).__qualname__} object from outside")
    if isinstance(owner, types.FunctionType) and trace.outside.source_of(owner) is not None:
        raise trace.fail("assigning to an attribute of a function from outside")


def delete_attribute(trace: Trace, owner: object, name: str) -> None:
    """``del owner.name``."""
    owner = force(trace, owner)
    if isinstance(owner, types.ModuleType):
        check_plain_module(trace, owner, name, "deleting")
        load_attribute(trace, owner, name)
        trace.outside.written_globals(owner.__dict__)[name] = DELETED
        return
    if isinstance(owner, (torch.Tensor, type)):
        raise trace.fail(f"deleting attribute {name!r} of a {type(owner).__qualname__}")
    deleter = attribute_hook(trace, type(owner), "__delattr__")
    if deleter is not None:
        operations.call(trace, deleter, (owner, name), {})
    else:
        generic_delete(trace, owner, name)


def generic_delete(trace: Trace, owner: object, name: str) -> None:
    """``object.__delattr__``."""
    raw = class_attribute(trace, type(owner), name)
    if calls_descriptor(trace, raw, owner, name, ("fdel", "__delete__")):
        return
    record = trace.outside.record_of(owner)
    if type(raw) is types.MemberDescriptorType and record is not None:
        load_slot(trace, record, name, raw)
    check_writable(trace, owner, name)
    if record is not None and record.attributes is not None:
        present = name in record.attributes
        trace.guards.add(record.source, "has_attribute" if present else "no_attribute", name)
    try:
        object.__delattr__(owner, name)
    except Exception as error:
        raise Raised(error) from None
