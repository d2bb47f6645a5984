"""Reading attributes of instances: ``object.__getattribute__``, ``__getattr__``, members of modules."""

from __future__ import annotations

import enum
import types
import weakref

from torch.nn import Module

from ..._native import MISSING
from ..._native import is_instance as isinstance
from ...platform.cpython import lru_cache_class
from ..guards.source import Attribute, InstanceAttribute, getattr_static_dict, is_direct, lookup
from ..shadows.native_arguments import is_special
from ..shadows.wrap import class_attribute, force
from ..state.exceptions import context_of, needs_real, traceback_of
from ..state.operations import operation, operations
from ..state.trace import Trace
from ..state.values import Lazy, Raised, SpecialMethod
from .call_rules import rule_for
from .descriptors import bind_class_attribute, is_data_descriptor, name_class_value


def load_from_instance(trace: Trace, owner: object, name: str) -> object:
    cls = type(owner)
    try:
        if lookup(cls, "__getattribute__") is not object.__getattribute__:
            getattribute = attribute_hook(trace, cls, "__getattribute__")
            if getattribute is not None:
                return operations.call(trace, getattribute, (owner, name), {})
        return generic_load(trace, owner, name)
    except Raised as raised:
        if not isinstance(raised.error, AttributeError):
            raise
        fallback = attribute_hook(trace, cls, "__getattr__")
        if fallback is None:
            raise
        if fallback is Module.__getattr__:
            return load_module_member(trace, owner, name)
        return operations.call(trace, fallback, (owner, name), {})


def attribute_hook(trace: Trace, cls: type, name: str) -> object:
    """The ``__getattribute__``, ``__getattr__`` … of a class, if it is not the default."""
    raw = class_attribute(trace, cls, name, MISSING)
    if isinstance(raw, types.FunctionType):
        name_class_value(trace, cls, name, raw)
        return raw
    if is_special(raw):
        return SpecialMethod(name)
    native = isinstance(raw, (types.WrapperDescriptorType, types.MethodDescriptorType))
    return raw if native and raw.__name__ != name else None  # a method of another name, put in its place


def load_module_member(trace: Trace, module: object, name: str) -> object:
    """``nn.Module.__getattr__`` without interpreting it: parameters, then buffers, then submodules."""
    namespace = module.__dict__
    for table in ("_parameters", "_buffers", "_modules"):
        members = force(trace, namespace.get(table))
        if members is None:
            continue
        record = trace.outside.record_of(members)
        if name in members:
            return trace.outside.reach(members[name])
        if record is not None and not record.loaded and name not in record.items:
            trace.guards.add(record.source, "lacks_key", name)
    raise Raised(AttributeError(f"'{type(module).__name__}' object has no attribute '{name}'"))


def generic_load(trace: Trace, owner: object, name: str) -> object:
    """``object.__getattribute__``."""
    cls = type(owner)
    if id(owner) in trace.autograd.nodes:
        return operations.load_from_node(trace, owner, name)
    if name == "__class__" and cls not in weakref.ProxyTypes and lookup(cls, name) is object.__dict__[name]:
        return cls
    if id(owner) in trace.outside.foreign:
        return load_foreign_method(trace, owner, name)
    if name == "__dict__" and isinstance(lookup(cls, name), NATIVE_NAMESPACES):
        return load_namespace(trace, owner)
    if name == "__traceback__" and isinstance(owner, BaseException):
        return traceback_of(trace, owner)
    if name == "__context__" and isinstance(owner, BaseException):
        return context_of(trace, owner)
    raw = class_attribute(trace, cls, name, MISSING)
    if is_data_descriptor(raw) and hasattr(type(raw), "__get__"):  # a descriptor without __get__ comes later
        return bind_class_attribute(trace, owner, cls, name, raw)
    namespace = getattr_static_dict(owner)
    if namespace is not None:
        if name in namespace:
            if isinstance(owner, enum.Enum):  # it is its own shadow, but its attributes may change
                return Lazy(namespace[name], InstanceAttribute(trace.outside.pinned(owner), name, is_direct(cls)))
            return trace.outside.reach(namespace[name])
        record = trace.outside.record_of(owner)
        if record is not None and record.attributes is not None and name not in record.attributes:
            trace.guards.add(record.source, "no_attribute", name)
    if raw is not MISSING:
        return bind_class_attribute(trace, owner, cls, name, raw)
    raise Raised(AttributeError(f"'{cls.__name__}' object has no attribute '{name}'"))


NATIVE_NAMESPACES = (types.GetSetDescriptorType, types.MemberDescriptorType, types.NoneType)


def load_foreign_method(trace: Trace, owner: object, name: str) -> object:
    """A method of a foreign object: only methods that its class has in Python, or that have rules."""
    cls = type(owner)
    raw = class_attribute(trace, cls, name)
    if isinstance(raw, types.MethodDescriptorType) and rule_for(raw) is not None:
        return raw.__get__(owner, cls)
    namespace = getattr_static_dict(owner)
    if not isinstance(raw, (types.FunctionType, lru_cache_class)) or namespace is None or name in namespace:
        reason = trace.fail(f"attribute {name!r} of a {cls.__module__}.{cls.__qualname__} object")
        raise needs_real(trace, reason) if cls.__module__.startswith("torch.") else reason
    trace.guards.add(trace.outside.pinned(owner), "no_attribute", name)
    name_class_value(trace, cls, name, raw)
    return types.MethodType(raw, owner)


@operation
def load_namespace(trace: Trace, owner: object) -> object:
    namespace = getattr_static_dict(owner)
    if namespace is None:
        raise Raised(AttributeError(f"'{type(owner).__name__}' object has no attribute '__dict__'"))
    if isinstance(owner, enum.Enum):
        raise trace.fail("the dictionary of a member of an enumeration", "read its attributes by name")
    record = trace.outside.record_of(owner)
    if record is not None and record.attributes is not None:
        trace.guards.add(Attribute(record.source, "__dict__"), "keys", tuple(record.attributes))
    trace.outside.namespaces[id(namespace)] = (owner, "__dict__")
    trace.outside.keep.append(namespace)
    return namespace
