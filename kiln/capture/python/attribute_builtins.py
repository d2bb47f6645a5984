"""Rules for builtins that read types and attributes.

Natively they would see shadows (a ``FakeTensor``, a ``SymInt``, a copy). The rules return what the program would see.
"""

from __future__ import annotations

import builtins
import functools
import types
from collections.abc import Callable
from typing import Any

import torch

from ..._native import MISSING
from ..._native import is_instance as isinstance
from ..guards.source import Attribute, getattr_static_dict, lookup
from ..interpreter import native_calls
from ..interpreter.attribute_stores import delete_attribute, generic_delete, generic_store, store_attribute
from ..interpreter.attributes import load_attribute, load_or_default
from ..interpreter.call_rules import RULES, rule
from ..interpreter.construction import construct, new_object
from ..interpreter.instance_attributes import generic_load, load_namespace
from ..interpreter.program_types import native_name, type_of
from ..interpreter.protocols import force_all, force_classes, is_instance
from ..shadows.symbolic_numbers import concrete
from ..shadows.wrap import class_attribute, force, wrap
from ..state.exceptions import call_for_program
from ..state.operations import Args, Kwargs, operations
from ..state.trace import Trace
from ..state.values import Raised
from .frame_builtins import rule_locals


@rule(type)
def rule_type(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    if len(args) != 1 or kwargs:
        raise trace.fail("making a class inside the compiled function", "define the class at module level")
    return type_of(trace, args[0])


@rule(builtins.isinstance)
def rule_isinstance(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    value, classes = force_all(trace, args)
    return is_instance(trace, value, classes)


@rule(issubclass)
def rule_issubclass(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    cls, classes = force_all(trace, args)
    classes = force_classes(trace, classes)
    result = call_for_program(trace, issubclass, cls, classes)
    for other in classes if isinstance(classes, tuple) else (classes,):
        if isinstance(other, type):
            trace.guards.classes.relate(cls, other, issubclass(cls, other))
    return result


@rule(type.__instancecheck__)
def rule_instance_check(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    """The native check, without the ``__instancecheck__`` of a metaclass."""
    cls, value = force_all(trace, args)
    return type.__subclasscheck__(cls, type_of(trace, value))


@rule(callable)
def rule_callable(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    value = force(trace, args[0])
    class_attribute(trace, type(value), "__call__")
    return callable(value)


@rule(getattr)
def rule_getattr(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    owner, name = args[0], attribute_name(trace, args[1])
    if len(args) == 3:
        return load_or_default(trace, owner, name, args[2])
    return load_attribute(trace, owner, name)


@rule(hasattr)
def rule_hasattr(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    missing = object()
    return load_or_default(trace, args[0], attribute_name(trace, args[1]), missing) is not missing


def attribute_name(trace: Trace, name: object) -> str:
    name = concrete(trace, name)
    if not isinstance(name, str):
        raise Raised(TypeError(f"attribute name must be string, not '{native_name(trace, name)}'"))
    return name


@rule(vars)
def rule_vars(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    if not args:
        return rule_locals(trace, args, kwargs)
    found = load_or_default(trace, args[0], "__dict__", MISSING)
    if found is MISSING:
        raise Raised(TypeError("vars() argument must have __dict__ attribute"))
    return found


@rule(object.__getattribute__)
def rule_object_getattribute(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    owner = force(trace, args[0])
    if isinstance(owner, (torch.Tensor, types.ModuleType, type, types.FunctionType)):
        return load_attribute(trace, owner, force(trace, args[1]))
    return generic_load(trace, owner, force(trace, args[1]))


@rule(object.__setattr__)
def rule_object_setattr(trace: Trace, args: Args, kwargs: Kwargs) -> None:
    owner = force(trace, args[0])
    if isinstance(owner, (torch.Tensor, types.ModuleType, type)):
        store_attribute(trace, owner, force(trace, args[1]), args[2])
    else:
        generic_store(trace, owner, force(trace, args[1]), args[2])


@rule(object.__delattr__)
def rule_object_delattr(trace: Trace, args: Args, kwargs: Kwargs) -> None:
    generic_delete(trace, force(trace, args[0]), force(trace, args[1]))


@rule(object)
def rule_object(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    if args or kwargs:
        raise Raised(TypeError("object() takes no arguments"))
    return object()


@rule(object.__new__)
def rule_object_new(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    cls = force(trace, args[0])
    if not isinstance(cls, type):
        raise Raised(TypeError(f"object.__new__(X): X is not a type object ({native_name(trace, cls)})"))
    if len(args) > 1 or kwargs:
        if lookup(cls, "__new__") is not object.__new__:
            raise Raised(TypeError("object.__new__() takes exactly one argument (the type to instantiate)"))
        if lookup(cls, "__init__") is object.__init__:
            raise Raised(TypeError(f"{cls.__name__}() takes no arguments"))
    return new_object(trace, cls)


@rule(object.__init__)
def rule_object_init(trace: Trace, args: Args, kwargs: Kwargs) -> None:
    if len(args) > 1 or kwargs:
        cls = type_of(trace, args[0])
        if lookup(cls, "__init__") is not object.__init__:
            raise Raised(TypeError("object.__init__() takes exactly one argument (the instance to initialize)"))
        if lookup(cls, "__new__") is object.__new__:
            message = f"{cls.__name__}.__init__() takes exactly one argument (the instance to initialize)"
            raise Raised(TypeError(message))


@rule(types.FunctionType.__get__)
def rule_function_get(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    function, owner = force(trace, args[0]), force(trace, args[1])
    return function if owner is None else types.MethodType(function, owner)


@rule(functools.partial)
def rule_partial(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    if not args:
        raise Raised(TypeError("type 'partial' takes at least one argument"))
    return call_for_program(trace, functools.partial, force(trace, args[0]), *args[1:], **kwargs)


@rule(dir)
def rule_dir(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    """Names of an instance (guarded) and of its class (checked on each call)."""
    if not args:
        return sorted(rule_locals(trace, args, kwargs))
    value = force(trace, args[0])
    cls = value if isinstance(value, type) else type(value)
    if isinstance(value, (torch.Tensor, types.ModuleType)) or lookup(type(value), "__dir__") not in (
        object.__dir__,
        type.__dir__,
    ):
        raise trace.fail(f"dir() of a {type_of(trace, value).__qualname__}")
    if cls is not value and getattr_static_dict(value) is not None:
        load_namespace(trace, value)
    names = dir(cls)
    trace.guards.extras.append((f"dir({cls.__qualname__}) unchanged", lambda: dir(cls) == names))
    return dir(value)


for _kind in (types.FunctionType, types.MethodType, types.BuiltinFunctionType, functools.partial):
    _call: object = _kind.__dict__["__call__"]
    RULES[_call] = lambda trace, args, kwargs: operations.call(trace, force(trace, args[0]), args[1:], kwargs)


def rule_property(part: str, method: Any) -> Callable[[Trace, Args, Kwargs], object]:
    """A method of properties called by name, which calls one of the property's functions."""

    def run(trace: Trace, args: Args, kwargs: Kwargs) -> object:
        values = tuple([force(trace, arg) for arg in args])
        owner = values[0] if values else None
        function = getattr(owner, part) if isinstance(owner, property) else None
        if function is None or kwargs or len(values) < 2 or (part == "fget" and values[1] is None):
            return native_calls.call_without_rule(trace, method, values, kwargs)
        source = trace.outside.source_of(owner)
        if source is not None:
            function = wrap(trace, function, Attribute(source, part))
        return operations.call(trace, function, values[1:2] if part == "fget" else values[1:], {})

    return run


RULES.update(
    {
        type.__subclasscheck__: lambda trace, args, kwargs: type.__subclasscheck__(*force_all(trace, args)),
        setattr: lambda trace, args, kwargs: store_attribute(trace, args[0], attribute_name(trace, args[1]), args[2]),
        delattr: lambda trace, args, kwargs: delete_attribute(trace, args[0], attribute_name(trace, args[1])),
        type.__call__: lambda trace, args, kwargs: construct(trace, force(trace, args[0]), args[1:], kwargs),
        property.__get__: rule_property("fget", property.__get__),
        property.__set__: rule_property("fset", property.__set__),
        property.__delete__: rule_property("fdel", property.__delete__),
        object.__init_subclass__: lambda trace, args, kwargs: None,
    }
)
