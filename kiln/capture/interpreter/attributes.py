"""Attribute access as CPython does it, over shadows: descriptors, instance dictionaries, slots, ``__getattr__``.

User-defined ``__getattribute__``, ``__getattr__``, properties and descriptors are interpreted; what is native (slots,
builtin methods) is read natively. What was found on a class is watched by the guards.
"""

from __future__ import annotations

import enum
import functools
import sys
import types
import weakref
from collections.abc import Callable

import torch
from torch.nn import Module, Parameter

from ..._native import MISSING
from ..._native import is_instance as isinstance
from ...platform.cpython import lru_cache_class
from ...platform.python_objects import HEAP_TYPE, words
from ...program import call_markers
from ..guards.source import Attribute, Identity, InstanceAttribute, Item, Source, is_direct, lookup
from ..shadows import marked_calls
from ..shadows.appended_lists import list_method
from ..shadows.wrap import (
    IDENTITY_TYPES,
    class_attribute,
    class_attribute_source,
    force,
    getattr_static_dict,
    load_slot,
    wrap,
)
from ..state.exceptions import context_of, from_native, needs_real, traceback_of
from ..state.operations import operation, operations
from ..state.trace import Trace
from ..state.values import CONSTANT_TYPES, DELETED, Lazy, Raised, SpecialMethod, Trampoline, unwrap
from . import native_calls

NATIVE_DESCRIPTORS = (
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
    types.BuiltinFunctionType,
)


def load_method(trace: Trace, owner: object, name: str) -> object:
    """``owner.name`` that is about to be called, and only that."""
    appending = list_method(trace, owner, name)
    return load_attribute(trace, owner, name) if appending is None else appending


def load_attribute(trace: Trace, owner: object, name: str) -> object:
    """``owner.name``; may be lazy. Raises what the program would see, wrapped in :class:`Raised`."""
    owner = force(trace, owner)
    try:
        return load_by_kind(trace, owner, name)
    except Raised as raised:
        error = raised.error
        if isinstance(error, AttributeError) and error.name is None and error.obj is None:
            error.name, error.obj = name, owner
        raise


def load_by_kind(trace: Trace, owner: object, name: str) -> object:
    if isinstance(owner, torch.Tensor):
        return load_from_tensor(trace, owner, name)
    if isinstance(owner, types.ModuleType):
        if type(owner) is not types.ModuleType and not is_direct(type(owner)):
            raise trace.fail("an attribute of a module whose class has a __getattribute__")
        return load_from_module(trace, owner, name)
    if isinstance(owner, type):
        return load_from_class(trace, owner, name)
    loader = LOADERS.get(type(owner))
    if loader is not None:
        return loader(trace, owner, name)
    return load_from_instance(trace, owner, name)


@operation
def load_or(trace: Trace, owner: object, name: str, default: object) -> object:
    """The attribute, or a default where the program would see an ``AttributeError``."""
    try:
        return load_attribute(trace, owner, name)
    except Raised as raised:
        if isinstance(raised.error, AttributeError):
            return default
        raise


# -- instances ------------------------------------------------------------------------------------------------------


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
    """What a class has as ``__getattribute__``, ``__getattr__`` and so on, if it is not the default."""
    raw = class_attribute(trace, cls, name, MISSING)
    if isinstance(raw, types.FunctionType):
        name_class_value(trace, cls, name, raw)
        return raw
    if native_calls.is_special(raw):
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
    if is_data_descriptor(raw) and hasattr(type(raw), "__get__"):  # one that can only be set is looked for later
        return bind_class_attribute(trace, owner, cls, name, raw)
    namespace = getattr_static_dict(owner)
    if namespace is not None:
        if name in namespace:
            if isinstance(owner, enum.Enum):  # its own shadow, but what it holds may change
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
    """Of an object that nobody may look into, only what its class has in Python: a method to call."""
    cls = type(owner)
    raw = class_attribute(trace, cls, name)
    if isinstance(raw, types.MethodDescriptorType) and native_calls.rule_for(raw) is not None:
        return raw.__get__(owner, cls)
    namespace = getattr_static_dict(owner)
    if not isinstance(raw, (types.FunctionType, lru_cache_class)) or namespace is None or name in namespace:
        reason = trace.fail(f"attribute {name!r} of a {cls.__module__}.{cls.__qualname__} object")
        raise needs_real(trace, reason) if cls.__module__.startswith("torch.") else reason
    trace.guards.add(trace.outside.pinned(owner), "no_attribute", name)
    name_class_value(trace, cls, name, raw)
    return types.MethodType(raw, owner)


NATIVE_OWNERS: dict[type, Callable[[Trace, object, str], object]] = {}
"""Native classes whose instances have bare shadows: their native attributes are read by these, from the real object."""
NATIVE_STORES: dict[type, Callable[[Trace, object, str, object], None]] = {}
"""How these attributes are assigned to."""


def is_foreign(cls: type) -> bool:

    return not any(base in native_calls.SAFE_OWNERS for base in cls.__mro__ if base is not object)


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


def is_data_descriptor(raw: object) -> bool:
    kind = type(raw)
    return hasattr(kind, "__set__") or hasattr(kind, "__delete__")


def bind_class_attribute(
    trace: Trace, owner: object, cls: type, name: str, raw: object, own_class: type | None = None
) -> object:
    """Run the descriptor protocol for an attribute of an instance that was found on a class.

    ``own_class`` is the class of the instance, where ``cls`` (to reach the attribute by) is another: ``super`` looks
    past the class, and binds to it nevertheless.
    """

    kind = type(raw)
    if kind is types.FunctionType:
        name_class_value(trace, cls, name, raw)
        return types.MethodType(raw, owner)
    if kind is staticmethod or kind is classmethod:
        function = wrap(trace, raw.__func__, Attribute(class_attribute_source(trace, cls, name), "__func__"))
        return function if kind is staticmethod else bind_to_class(trace, function, own_class or cls)
    if isinstance(raw, property) and type(raw).__get__ is property.__get__:
        if call_markers.is_fact(raw):
            return marked_calls.load_fact(trace, owner, name, raw)
        return operations.call(trace, property_part(trace, cls, name, raw, "fget"), (owner,), {})
    if kind is types.MemberDescriptorType:
        return load_member(trace, owner, name, raw)
    if kind is types.BuiltinFunctionType:  # no descriptor: ``__new__``, or a builtin that the class was given
        return Lazy(raw, class_attribute_source(trace, cls, name))
    if kind in (types.GetSetDescriptorType,) or isinstance(raw, NATIVE_DESCRIPTORS):
        return native_get(trace, raw, owner, own_class or cls)
    if kind is functools.cached_property and getattr_static_dict(owner) is not None:
        return load_cached_property(trace, owner, cls, name, raw)
    getter = class_function(trace, kind, "__get__") or lookup(kind, "__get__")
    if isinstance(getter, types.FunctionType):
        descriptor = wrap(trace, raw, class_attribute_source(trace, cls, name))
        return operations.call(trace, getter, (descriptor, owner, own_class or cls), {})
    if isinstance(getter, (staticmethod, classmethod)):
        raise trace.fail(f"a descriptor whose __get__ is a {type(getter).__name__}")
    if kind is functools.partialmethod or getter is not None:
        return native_get(trace, raw, owner, own_class or cls)
    return Lazy(raw, class_attribute_source(trace, cls, name))


def load_cached_property(trace: Trace, owner: object, cls: type, name: str, raw: functools.cached_property) -> object:
    """Computed once and kept in the instance dictionary (where it is found before the descriptor next time)."""

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


def bind_to_class(trace: Trace, function: object, cls: type) -> object:
    """What a ``classmethod`` around something gives: a method, or (before 3.13) what a descriptor in it gives."""
    function = force(trace, function)
    if not callable(function) and not hasattr(type(function), "__get__"):
        return classmethod(function).__get__(None, cls)  # type: ignore[arg-type]
    if type(function) is types.FunctionType or sys.version_info >= (3, 13):
        return types.MethodType(function, cls)  # type: ignore[arg-type]
    getter = class_function(trace, type(function), "__get__") or lookup(type(function), "__get__")
    if isinstance(getter, types.FunctionType):
        return operations.call(trace, getter, (function, cls, cls), {})
    if isinstance(function, classmethod):
        source = trace.outside.source_of(function)
        inner = function.__func__ if source is None else wrap(trace, function.__func__, Attribute(source, "__func__"))
        return bind_to_class(trace, inner, cls)
    if isinstance(function, property) and type(function).__get__ is property.__get__:
        return operations.call(trace, function.fget, (cls,), {})
    return types.MethodType(function, cls) if getter is None else native_get(trace, function, cls, cls)  # type: ignore[arg-type]


def native_get(trace: Trace, raw: object, owner: object, cls: type) -> object:
    loader = NATIVE_OWNERS.get(raw.__objclass__) if type(raw) is types.GetSetDescriptorType else None
    if loader is not None:
        return loader(trace, owner, raw.__name__)
    if is_foreign(cls) and not cls.__flags__ & HEAP_TYPE and type(raw) is types.GetSetDescriptorType:
        raise trace.fail(f"attribute {getattr(raw, '__name__', '?')!r} of a {cls.__module__}.{cls.__qualname__} object")
    try:
        return unwrap(raw.__get__(owner, cls))  # type: ignore[attr-defined]
    except Exception as error:
        raise Raised(error) from None


def property_part(trace: Trace, cls: type, name: str, raw: property, part: str) -> object:
    function = getattr(raw, part)
    if function is None:
        verb = {"fget": "getter", "fset": "setter", "fdel": "deleter"}[part]
        raise Raised(AttributeError(f"property {name!r} of {cls.__qualname__!r} object has no {verb}"))
    return wrap(trace, function, Attribute(class_attribute_source(trace, cls, name), part))


def load_member(trace: Trace, owner: object, name: str, descriptor: object) -> object:
    record = trace.outside.record_of(owner)
    if record is not None:
        load_slot(trace, record, name, descriptor)
    try:
        value = unwrap(descriptor.__get__(owner))  # type: ignore[attr-defined]
    except AttributeError as error:
        raise Raised(error) from None
    source = trace.outside.source_of(owner) if record is None and isinstance(value, types.FunctionType) else None
    if (
        source is not None and trace.outside.source_of(value) is None
    ):  # the getter of a property from outside is from there
        trace.outside.name_source(value, Attribute(source, name))
    return value


def watch_method(trace: Trace, cls: type, name: str, function: types.FunctionType) -> None:
    """A method of a class from outside is about to be called: it is watched, and its cells and defaults are outside."""
    class_attribute(trace, cls, name)
    name_class_value(trace, cls, name, function)


@operation
def name_class_value(trace: Trace, cls: type, name: str, value: object) -> None:
    """A function found on a watched class needs no guard of its own, only a way to be reached."""
    if id(value) not in trace.outside.sources:
        trace.outside.name_source(value, class_attribute_source(trace, cls, name))


def class_function(trace: Trace, cls: type, name: str) -> types.FunctionType | None:
    """A special method in Python, if a class has one, named: its closure and defaults are from outside."""
    raw = class_attribute(trace, cls, name)
    if not isinstance(raw, types.FunctionType):
        return None
    name_class_value(trace, cls, name, raw)
    return raw


# -- tensors, modules, classes, functions ---------------------------------------------------------------------------


def load_from_tensor(trace: Trace, tensor: torch.Tensor, name: str) -> object:
    info = trace.tensor_info(tensor)
    if trace.overrides.has_subclasses and (own := operations.load_own(trace, info, name)) is not None:
        return own[0]
    if name not in info.attributes and name not in (getattr(info.real, "__dict__", None) or ()):
        raw = class_attribute(trace, info.kind, name)
        custom = operations.attribute_override(trace, tensor, raw)
        if custom is not None:
            return custom[0]
        if isinstance(raw, NATIVE_DESCRIPTORS):
            return raw.__get__(tensor)  # type: ignore[attr-defined]
        if type(raw) is types.FunctionType and info.kind in (torch.Tensor, Parameter):
            name_class_value(trace, info.kind, name, raw)
            return types.MethodType(raw, tensor)
    return operations.tensor_attribute(trace, tensor, name)


def load_from_module(trace: Trace, module: types.ModuleType, name: str) -> object:
    namespace = module.__dict__
    written = trace.outside.globals.get(id(namespace))
    if written is not None and name in written[1]:
        value = written[1][name]
        if value is DELETED:
            raise Raised(AttributeError(f"module {module.__name__!r} has no attribute {name!r}"))
        return value
    if name == "__dict__":
        raise trace.fail("reading the __dict__ of a Python module")
    if name in namespace and not (
        type(module) is not types.ModuleType and is_data_descriptor(lookup(type(module), name))
    ):
        return trace.outside.reach(Lazy(namespace[name], Item(trace.outside.globals_source(namespace), name)))
    try:
        value = getattr(module, name)  # a lazily imported name, or the error that eager raises
    except AttributeError as error:
        trace.guards.add(trace.outside.globals_source(namespace), "lacks_key", name)
        raise Raised(error) from None
    if name in namespace or isinstance(value, (types.FunctionType, *IDENTITY_TYPES)):
        return wrap(trace, value, trace.outside.pinned(value))
    return load_computed(trace, module, name, value)


def load_computed(trace: Trace, module: types.ModuleType, name: str, value: object) -> object:
    """What a module's ``__getattr__``, or a property of its class, gives: a setting, which may change."""
    if type(value) not in CONSTANT_TYPES and getattr(module, name) is not value:
        raise trace.fail(f"{module.__name__}.{name}: the module makes it anew on each look")
    return wrap(trace, value, Attribute(trace.outside.pinned(module), name))


def check_plain_module(trace: Trace, module: types.ModuleType, name: str, doing: str) -> None:
    """Writing to a module is writing to its dictionary - unless its class has another idea."""
    kind = type(module)
    own = lookup(kind, "__setattr__") is not lookup(types.ModuleType, "__setattr__")
    if own or is_data_descriptor(lookup(kind, name)):
        raise trace.fail(f"{doing} {name!r} of a module that has code of its own for it")


def load_from_class(trace: Trace, cls: type, name: str) -> object:

    if isinstance(cls, enum.EnumMeta) and name in cls.__members__ and lookup(cls, "__get__") is None:
        value, raw = cls.__members__[name], class_attribute(trace, cls, name)
        if raw is value or isinstance(raw, types.DynamicClassAttribute):
            trace.outside.pinned(value)
            return value
    getattribute = lookup(type(cls), "__getattribute__")
    if isinstance(getattribute, types.FunctionType):
        watch_method(trace, type(cls), "__getattribute__", getattribute)
        return operations.call(trace, getattribute, (cls, name), {})
    meta = class_attribute(trace, type(cls), name)
    raw = class_attribute(trace, cls, name, MISSING)
    if raw is MISSING or (meta is not None and is_data_descriptor(meta)):
        return load_through_metaclass(trace, cls, name, meta)
    return unbound_class_attribute(trace, cls, name, raw, cls)


def unbound_class_attribute(trace: Trace, cls: type, name: str, raw: object, own_class: type) -> object:
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
    if getter is None:
        return Lazy(raw, class_attribute_source(trace, cls, name))
    if isinstance(getter, (staticmethod, classmethod)):
        raise trace.fail(f"a descriptor whose __get__ is a {type(getter).__name__}")
    try:
        value = getattr(cls, name) if cls is own_class else getter(raw, None, own_class)  # type: ignore[operator]
    except Exception as error:
        raise Raised(from_native(trace, error)) from None
    if not isinstance(value, NATIVE_DESCRIPTORS):
        trace.outside.pinned(value)
    return value


def load_through_metaclass(trace: Trace, cls: type, name: str, meta: object) -> object:

    if name == "__dict__":
        raise trace.fail("reading the __dict__ of a class")
    if isinstance(meta, types.FunctionType):
        name_class_value(trace, type(cls), name, meta)
        return types.MethodType(meta, cls)
    if meta is None:
        fallback = class_function(trace, type(cls), "__getattr__")
        if fallback is not None:
            return operations.call(trace, fallback, (cls, name), {})
    elif isinstance(meta, property):
        return operations.call(trace, property_part(trace, type(cls), name, meta, "fget"), (cls,), {})
    try:
        value = getattr(cls, name)
    except AttributeError as error:
        raise Raised(error) from None
    if name in ("__subclasses__",):
        raise trace.fail(f"{name} of a class")
    if name in ("__name__", "__qualname__"):
        trace.guards.classes.watch_name(cls)
    if name == "__annotations__":
        return Lazy(value, Attribute(trace.outside.pinned(cls), name))
    return value


def load_from_function(trace: Trace, function: types.FunctionType, name: str) -> object:
    source = trace.outside.source_of(function)
    if name in ("__code__", "__globals__", "__builtins__"):
        if name == "__globals__":
            raise trace.fail("reading the globals of a function")
        return getattr(function, name)
    if name == "__module__" and source is None:
        return load_module_of_made(trace, function)
    if name in ("__name__", "__qualname__", "__module__", "__doc__"):
        value = getattr(function, name)
        if source is not None:
            trace.guards.add(Attribute(source, name), "constant", value)
        return value
    if name in ("__annotations__", "__type_params__") or (hasattr(types.FunctionType, name) and name != "__dict__"):
        return load_function_part(trace, function, name, source)
    if name == "__dict__":
        return function_namespace(trace, function, source)
    record = trace.outside.by_real.get(id(function.__dict__)) if source is not None else None
    namespace = function.__dict__ if record is None else record.shadow
    if name in namespace:
        value = namespace[name]
        inside = source is None or record is not None
        return value if inside else trace.outside.reach(Lazy(value, Item(Attribute(source, "__dict__"), name)))
    if source is not None and record is None:
        trace.guards.add(Attribute(source, "__dict__"), "lacks_key", name)
    raise Raised(AttributeError(f"'function' object has no attribute '{name}'"))


def load_module_of_made(trace: Trace, function: types.FunctionType) -> object:
    """``__module__`` of a function made inside: what the global ``__name__`` was, unless the program assigned to it."""
    namespace, module = function.__globals__, function.__module__
    if module is namespace.get("__name__"):
        if "__name__" in namespace:
            return trace.outside.reach(Lazy(module, Item(trace.outside.globals_source(namespace), "__name__")))
        trace.guards.add(trace.outside.globals_source(namespace), "lacks_key", "__name__")
    return module


def function_namespace(trace: Trace, function: types.FunctionType, source: Source | None) -> object:
    """The dictionary of a function made inside; of one from outside a copy, like any dictionary."""
    return function.__dict__ if source is None else wrap(trace, function.__dict__, Attribute(source, "__dict__"))


def load_function_part(trace: Trace, function: types.FunctionType, name: str, source: object) -> object:
    value = getattr(function, name)
    if isinstance(value, (types.MethodWrapperType, types.BuiltinFunctionType)) or source is None:
        return value
    return Lazy(value, Attribute(source, name))  # type: ignore[arg-type]


def load_from_method(trace: Trace, method: types.MethodType, name: str) -> object:
    if name == "__self__":
        return method.__self__
    if name == "__func__":
        return method.__func__
    if name in ("__call__", "__get__", "__eq__", "__hash__", "__repr__"):
        return getattr(method, name)
    return load_attribute(trace, method.__func__, name)


def load_from_super(trace: Trace, proxy: super, name: str) -> object:
    """Attributes after a class in the method resolution order, bound to the instance."""
    owner = object.__getattribute__(proxy, "__self__")
    start = object.__getattribute__(proxy, "__thisclass__")
    own_class = object.__getattribute__(proxy, "__self_class__")
    order = () if own_class is None or name == "__class__" else own_class.__mro__
    if own_class is not None and own_class.__flags__ & HEAP_TYPE:
        trace.guards.classes.meet(own_class)  # the order of its bases, too
    for cls in order[order.index(start) + 1 :] if order else ():
        if cls.__flags__ & HEAP_TYPE:  # one that has no such attribute could get it
            class_attribute(trace, cls, name)
        if name not in cls.__dict__:
            continue
        raw = cls.__dict__[name]
        if owner is own_class:
            return unbound_class_attribute(trace, cls, name, raw, own_class)
        return bind_class_attribute(trace, owner, cls, name, raw, own_class)
    try:
        return object.__getattribute__(proxy, name)  # of the super object itself
    except AttributeError as error:
        raise Raised(from_native(trace, error)) from None


def load_from_trampoline(trace: Trace, trampoline: Trampoline, name: str) -> object:
    return load_attribute(trace, trampoline.function, name)


def load_from_native(trace: Trace, function: object, name: str) -> object:
    """Builtin functions and the descriptors of native classes: what they are called never changes."""
    if name in ("__name__", "__qualname__", "__doc__", "__module__", "__text_signature__", "__objclass__", "__self__"):
        try:
            return getattr(function, name)
        except AttributeError as error:
            raise Raised(error) from None
    return load_from_instance(trace, function, name)


def load_from_partial(trace: Trace, partial: functools.partial, name: str) -> object:
    if name == "keywords":
        trace.outside.namespaces[id(partial.keywords)] = (partial, "keywords")
        return partial.keywords
    if name == "args":  # nobody has looked at them so far
        args = tuple([force(trace, arg) for arg in partial.args])
        if any(now is not before for now, before in zip(args, partial.args, strict=True)):
            function, _, keywords, attributes = partial.__reduce__()[2]  # type: ignore[misc]
            partial.__setstate__((function, args, keywords, attributes))  # type: ignore[attr-defined]
        return partial.args
    return load_from_instance(trace, partial, name)


def load_from_symbol(trace: Trace, number: object, name: str) -> object:
    """Attributes of a number that may vary are those of the number it is: torch's class has others."""
    from ..shadows.symbolic_numbers import concrete

    return load_attribute(trace, concrete(trace, number), name)


def load_from_alias(trace: Trace, alias: types.GenericAlias, name: str) -> object:
    """``list[int]`` has the attributes of ``list``, but for a few of its own."""
    if name in ALIAS_ATTRIBUTES:
        return load_from_native(trace, alias, name)
    return load_attribute(trace, alias.__origin__, name)


ALIAS_ATTRIBUTES = words(
    "__class__ __origin__ __args__ __parameters__ __unpacked__ __typing_unpacked_tuple_args__ __mro_entries__ "
    "__reduce_ex__ __reduce__ __copy__ __deepcopy__"
)


LOADERS = {
    types.GenericAlias: load_from_alias,
    **{kind: load_from_symbol for kind in (torch.SymInt, torch.SymFloat, torch.SymBool)},
    functools.partial: load_from_partial,
    **{kind: load_from_native for kind in NATIVE_DESCRIPTORS},
    types.MethodWrapperType: load_from_native,
    types.GetSetDescriptorType: load_from_native,
    types.FunctionType: load_from_function,
    types.MethodType: load_from_method,
    super: load_from_super,
    Trampoline: load_from_trampoline,
}


# -- writing --------------------------------------------------------------------------------------------------------


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
    if isinstance(raw, property):
        operations.call(trace, property_part(trace, cls, name, raw, "fset"), (owner, value), {})
        return
    setter = class_function(trace, type(raw), "__set__") if raw is not None else None
    if setter is None and isinstance(lookup(type(raw), "__set__"), (staticmethod, classmethod)):
        raise trace.fail("a descriptor whose __set__ is no plain method")
    if setter is not None:
        operations.call(trace, setter, (wrap(trace, raw, class_attribute_source(trace, cls, name)), owner, value), {})
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
        value = force(trace, value)  # native code looks at what it is given (a function's __annotations__, __module__)
    try:
        object.__setattr__(owner, name, value)
    except Exception as error:
        raise Raised(error) from None


def check_writable(trace: Trace, owner: object, name: str) -> None:
    """Objects that are themselves (not copies) must not be written to while tracing."""
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

    cls = type(owner)
    raw = class_attribute(trace, cls, name)
    if isinstance(raw, property):
        operations.call(trace, property_part(trace, cls, name, raw, "fdel"), (owner,), {})
        return
    deleter = class_function(trace, type(raw), "__delete__") if raw is not None else None
    if deleter is None and isinstance(lookup(type(raw), "__delete__"), (staticmethod, classmethod)):
        raise trace.fail("a descriptor whose __delete__ is no plain method")
    if deleter is not None:
        operations.call(trace, deleter, (wrap(trace, raw, class_attribute_source(trace, cls, name)), owner), {})
        return
    if type(raw) is types.MemberDescriptorType:
        load_member(trace, owner, name, raw)
    check_writable(trace, owner, name)
    record = trace.outside.record_of(owner)
    if record is not None and record.attributes is not None:
        present = name in record.attributes
        trace.guards.add(record.source, "has_attribute" if present else "no_attribute", name)
    try:
        object.__delattr__(owner, name)
    except Exception as error:
        raise Raised(error) from None


__all__ = ["Identity", "delete_attribute", "generic_load", "load_attribute", "load_or", "store_attribute"]
