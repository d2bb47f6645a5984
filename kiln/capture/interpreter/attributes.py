"""Reading attributes as CPython does, by the kind of the owner: tensors, modules, classes, functions, ``super``.

User-defined ``__getattribute__``, ``__getattr__``, properties and descriptors are interpreted; what is native (slots,
builtin methods) is read natively. What was found on a class is guarded.
"""

from __future__ import annotations

import enum
import functools
import types
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import Parameter

from ..._native import MISSING
from ..._native import is_instance as isinstance
from ...platform.cpython import METHOD_CACHE
from ...platform.python_objects import HEAP_TYPE, pending_annotate, words
from ..guards.source import Attribute, Item, Source, is_direct, lookup
from ..shadows.appended_lists import list_method
from ..shadows.symbolic_numbers import concrete
from ..shadows.wrap import IDENTITY_TYPES, class_attribute, force, wrap
from ..state.exceptions import call_for_program
from ..state.operations import operation, operations
from ..state.trace import Trace
from ..state.values import CONSTANT_TYPES, DELETED, EVALUATED, Lazy, Raised, Trampoline
from .descriptors import (
    NATIVE_DESCRIPTORS,
    bind_class_attribute,
    class_function,
    is_data_descriptor,
    name_class_value,
    property_part,
    unbound_class_attribute,
    watch_method,
)
from .instance_attributes import load_from_instance


def load_method(trace: Trace, owner: object, name: str) -> object:
    """``owner.name`` for a call that follows immediately."""
    appending = list_method(trace, owner, name)
    return load_attribute(trace, owner, name) if appending is None else appending


def load_attribute(trace: Trace, owner: object, name: str) -> Any:
    """``owner.name``; may be lazy. Raises what the program would see, wrapped in :class:`Raised`."""
    owner = force(trace, owner)
    try:
        return load_by_kind(trace, owner, name)
    except Raised as raised:
        name_attribute(raised.error, owner, name)
        raise


def name_attribute(error: BaseException, owner: object, name: str) -> None:
    """Say which attribute of what is missing. A function: a frame in the traceback of an error must not hold it."""
    if isinstance(error, AttributeError) and error.name is None and error.obj is None:
        error.name, error.obj = name, owner


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
def load_or_default(trace: Trace, owner: object, name: str, default: object) -> Any:
    """The attribute, or a default where the program would see an ``AttributeError``."""
    try:
        return load_attribute(trace, owner, name)
    except Raised as raised:
        if isinstance(raised.error, AttributeError):
            return default
        raise


def load_from_tensor(trace: Trace, tensor: torch.Tensor, name: str) -> object:
    info = trace.tensor_info(tensor)
    if trace.overrides.has_subclasses and (own := operations.load_own(trace, info, name)) is not None:
        return own[0]
    if name not in info.attributes and name not in (getattr(info.real, "__dict__", None) or ()):
        raw = class_attribute(trace, info.kind, name)
        custom = operations.attribute_override(trace, tensor, raw)
        if custom is not None:
            return custom[0]
        if type(raw) in NATIVE_DESCRIPTORS:
            return raw.__get__(tensor)
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
    """What a module's ``__getattr__``, or a property of its class, returns. It may change, so it is guarded."""
    if type(value) not in CONSTANT_TYPES and getattr(module, name) is not value:
        raise trace.fail(f"{module.__name__}.{name}: the module makes it anew on each look")
    return wrap(trace, value, Attribute(trace.outside.pinned(module), name))


def load_from_class(trace: Trace, cls: type, name: str) -> object:
    if isinstance(cls, enum.EnumMeta) and name in cls.__members__ and lookup(cls, "__get__") is None:
        value: enum.Enum = cls.__members__[name]
        raw = class_attribute(trace, cls, name)
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
    if name == "__annotations__":
        return Lazy(read_annotations(trace, cls), Attribute(trace.outside.pinned(cls), name))
    try:
        value = getattr(cls, name)
    except AttributeError as error:
        raise Raised(error) from None
    if name in ("__subclasses__",):
        raise trace.fail(f"{name} of a class")
    if name in ("__name__", "__qualname__"):
        trace.guards.classes.watch_name(cls)
    return value


def load_from_function(trace: Trace, function: types.FunctionType, name: str) -> object:
    source = trace.outside.source_of(function)
    if name in ("__code__", "__globals__", "__builtins__"):
        if name == "__globals__":
            raise trace.fail("reading the globals of a function")
        return getattr(function, name)
    if name == "__module__" and source is None:
        return load_module_of_new_function(trace, function)
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
        if source is None or record is not None:
            return value
        return trace.outside.reach(Lazy(value, Item(Attribute(source, "__dict__"), name)))
    if source is not None and record is None:
        trace.guards.add(Attribute(source, "__dict__"), "lacks_key", name)
    raise Raised(AttributeError(f"'function' object has no attribute '{name}'"))


def load_module_of_new_function(trace: Trace, function: types.FunctionType) -> object:
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


def load_function_part(trace: Trace, function: types.FunctionType, name: str, source: Any) -> object:
    if name == "__annotations__" and source is None and getattr(function, "__annotate__", None) is not None:
        return evaluated_annotations(trace, function)
    value = read_annotations(trace, function) if name == "__annotations__" else getattr(function, name)
    if isinstance(value, (types.MethodWrapperType, types.BuiltinFunctionType)) or source is None:
        return value
    return Lazy(value, Attribute(source, name))


def read_annotations(trace: Trace, owner: object) -> Any:
    """``owner.__annotations__`` of something from outside.

    From 3.14 on the first read evaluates them. That runs natively, so it must see what the program has changed.
    """
    annotate = pending_annotate(owner)
    if annotate is not None:
        code = getattr(annotate, "__code__", None)
        if code is None or not OF_CLASS_BODIES.issuperset(code.co_freevars):
            raise trace.fail("annotations that are not evaluated yet, and depend on variables of functions")
        if not set(code.co_names).isdisjoint(trace.outside.written_globals(annotate.__globals__)):
            raise trace.fail("annotations that are not evaluated yet, and depend on globals that have changed")
    return call_for_program(trace, getattr, owner, "__annotations__")


OF_CLASS_BODIES = frozenset(("__classdict__", "__conditional_annotations__"))


def evaluated_annotations(trace: Trace, function: types.FunctionType) -> object:
    """The annotations of a function made inside, evaluated when the program first reads them."""
    annotate = function.__annotate__  # type: ignore[attr-defined]  # from 3.14 on
    known = EVALUATED.get(function)
    if known is None or known[0] is not annotate:
        known = EVALUATED[function] = (annotate, operations.call(trace, annotate, (1,), {}))
    return known[1]


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
        trace.guards.classes.watch_class(own_class)  # the order of its bases, too
    for cls in order[order.index(start) + 1 :] if order else ():
        if cls.__flags__ & HEAP_TYPE:  # a class without the attribute could get it
            class_attribute(trace, cls, name)
        if name not in cls.__dict__:
            continue
        raw = cls.__dict__[name]
        if owner is own_class:
            return unbound_class_attribute(trace, cls, name, raw, own_class)
        return bind_class_attribute(trace, owner, cls, name, raw, own_class)
    return call_for_program(trace, object.__getattribute__, proxy, name)  # of the super object itself


def load_from_native(trace: Trace, function: object, name: str) -> object:
    """Attributes of builtin functions and native descriptors. Their names never change, so these need no guard."""
    if name in ("__name__", "__qualname__", "__doc__", "__module__", "__text_signature__", "__objclass__", "__self__"):
        try:
            return getattr(function, name)
        except AttributeError as error:
            raise Raised(error) from None
    return load_from_instance(trace, function, name)


def load_from_partial(trace: Trace, partial: Any, name: str) -> object:
    if name == "keywords":
        trace.outside.namespaces[id(partial.keywords)] = (partial, "keywords")
        return partial.keywords
    if name == "args":  # not forced so far
        args = tuple([force(trace, arg) for arg in partial.args])
        if any(now is not before for now, before in zip(args, partial.args, strict=True)):
            function, _, keywords, attributes = partial.__reduce__()[2]
            partial.__setstate__((function, args, keywords, attributes))
        return partial.args
    return load_from_instance(trace, partial, name)


def load_from_dispatching_method(trace: Trace, descriptor: object, name: str) -> object:
    """It may have no cache: then it makes a method on each access, as before 3.13."""
    return None if name == METHOD_CACHE else load_from_instance(trace, descriptor, name)


def load_from_symbol(trace: Trace, number: object, name: str) -> object:
    """Attributes of a symbolic number are those of the plain number; torch's class has others."""
    return load_attribute(trace, concrete(trace, number), name)


def load_from_alias(trace: Trace, alias: types.GenericAlias, name: str) -> object:
    """``list[int]`` has the attributes of ``list``, except for a few of its own."""
    if name in ALIAS_ATTRIBUTES:
        return load_from_native(trace, alias, name)
    return load_attribute(trace, alias.__origin__, name)


ALIAS_ATTRIBUTES = words(
    "__class__ __origin__ __args__ __parameters__ __unpacked__ __typing_unpacked_tuple_args__ __mro_entries__ "
    "__reduce_ex__ __reduce__ __copy__ __deepcopy__"
)

LOADERS: dict[type, Callable[[Trace, Any, str], Any]] = {
    types.GenericAlias: load_from_alias,
    **{kind: load_from_symbol for kind in (torch.SymInt, torch.SymFloat, torch.SymBool)},
    functools.partial: load_from_partial,
    functools.singledispatchmethod: load_from_dispatching_method,
    **{kind: load_from_native for kind in NATIVE_DESCRIPTORS},
    types.MethodWrapperType: load_from_native,
    types.GetSetDescriptorType: load_from_native,
    types.FunctionType: load_from_function,
    types.MethodType: load_from_method,
    super: load_from_super,
    Trampoline: lambda trace, trampoline, name: load_attribute(trace, trampoline.function, name),
}
