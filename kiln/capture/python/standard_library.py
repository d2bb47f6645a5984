"""Python code of the standard library that is not interpreted: pure functions, run as they are on constants.

Also ``singledispatch``, whose cache Kiln cannot read: it is called natively, with a guard.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import re
import sys
import traceback
import types
import typing
import warnings
import weakref
from collections.abc import Callable
from typing import Any, cast

import torch
from torch.fx import GraphModule

from ..._native import is_instance as isinstance
from ...platform.cpython import members_by_value
from ...platform.python_objects import has_annotations
from ...platform.torch_operators import OpOverload
from ..guards.descriptions import module_of
from ..guards.source import Attribute, Item, Source, lookup
from ..interpreter.attributes import read_annotations
from ..interpreter.call_rules import rule
from ..interpreter.calls import call
from ..interpreter.program_types import type_of
from ..shadows.native_arguments import guard_all_keys
from ..shadows.wrap import class_attribute, force, is_constant, watch_class, wrap
from ..state.enum_tables import watch_members
from ..state.exceptions import call_for_program, from_native
from ..state.operations import Args, Kwargs, operation
from ..state.trace import Trace
from ..state.values import Raised

PURE_FUNCTIONS: frozenset[object] = frozenset(
    {re.match, re.fullmatch, re.search, re.sub, re.subn, re.split, re.findall, re.escape, re.compile}
    | {typing.get_origin, typing.get_args}
    | {getattr(inspect, name) for name in dir(inspect) if name.startswith("is") and callable(getattr(inspect, name))}
)
PURE_CLASSES = (inspect.Signature, inspect.Parameter)  # immutable: their methods and properties are pure, too
PLAIN_RESULTS = (*PURE_CLASSES, re.Pattern, re.Match, types.MappingProxyType, enum.Enum, type, types.GenericAlias)

DISPATCH_CODE = functools.singledispatch(lambda value: value).dispatch.__code__
FINDERS: list[Callable[[types.FunctionType], Callable[..., Any] | None]] = []
"""Functions that find the handler of a Python function, if it has one; other files add theirs."""


@operation
def handler_for(function: types.FunctionType) -> Callable[..., Any] | None:
    """How to call a library function without interpreting it; the handler gives a 1-tuple, or None to interpret."""
    if function in PURE_FUNCTIONS or function.__module__ == "inspect":
        return run_pure
    for find in FINDERS:
        found = find(function)
        if found is not None:
            return found
    if function.__code__.co_name == "call_wrapped" and function.__code__ in graph_module_calls():
        return call_graph_module
    return call_dispatch if function.__code__ is DISPATCH_CODE else None


@functools.cache
def graph_module_calls() -> set[object]:
    """The code of ``__call__`` of graph modules, which only adds a message to errors."""
    return {code for code in GraphModule.recompile.__code__.co_consts if isinstance(code, types.CodeType)}


def call_graph_module(trace: Trace, function: types.FunctionType, args: Args, kwargs: Kwargs) -> tuple[object] | None:
    owner = force(trace, args[0])
    wrapped = class_attribute(trace, type(owner), "_wrapped_call")
    if wrapped is None or wrapped.cls_call is not None:
        return None
    classes = type(owner).__mro__[type(owner).__mro__.index(wrapped.cls) + 1 :]
    method = next(vars(cls)["__call__"] for cls in classes if "__call__" in vars(cls))
    trace.outside.pinned(method)
    return (call(trace, method, (owner, *args[1:]), kwargs),)


def run_pure(trace: Trace, function: types.FunctionType, args: Args, kwargs: Kwargs) -> tuple[object] | None:
    values = [force(trace, arg) for arg in (*args, *kwargs.values())]
    method = function not in PURE_FUNCTIONS
    if method and not (values and isinstance(values[0], PURE_CLASSES)):
        return None
    if function.__name__.startswith("is") and not method and isinstance(values[0], torch.Tensor):
        return (False,)
    if not all(is_immutable(value) for value in values):
        return None
    return (run_uninterpreted(trace, function, args, kwargs),)


def is_immutable(value: object) -> bool:
    """Whether a value is a real object that cannot change."""
    kinds = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, type, *PURE_CLASSES, re.Pattern)
    return is_constant(value) or isinstance(value, kinds)


@operation
def is_enum_lookup(trace: Trace, cls: type, args: Args, kwargs: Kwargs) -> bool:
    """Whether a call of an enum class only looks up a member, without code of the program for missing ones."""
    if not isinstance(cls, enum.EnumMeta) or kwargs or not all(is_constant(force(trace, arg)) for arg in args):
        return False
    watch_members(trace, cls)
    missing = lookup(cls, "_missing_")
    return getattr(missing, "__module__", "enum") == "enum" or force(trace, args[0]) in members_by_value(
        cast(type[enum.Enum], cls)
    )


@operation
def run_uninterpreted(trace: Trace, function: Any, args: Args, kwargs: Kwargs) -> object:
    """Call a function on real values. Its result counts as an object from outside."""
    args = tuple([force(trace, arg) for arg in args])
    kwargs = {key: force(trace, value) for key, value in kwargs.items()}
    if getattr(function, "__module__", "") == "re" and any(has_debug_flag(arg) for arg in (*args, *kwargs.values())):
        raise trace.fail("a pattern compiled with re.DEBUG, which prints")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            result = function(*args, **kwargs)
    except Warning as warning:
        raise trace.fail(f"a call that warns: {warning}") from None
    except Exception as error:
        raise Raised(from_native(trace, error)) from None
    if is_constant(result):
        return result
    if isinstance(result, (list, tuple, dict)):  # made by this call
        return result
    source = trace.outside.pinned(result)
    return result if isinstance(result, PLAIN_RESULTS) else wrap(trace, result, source)


def has_debug_flag(flags: object) -> bool:
    return isinstance(flags, int) and bool(flags & re.DEBUG)


def call_dispatch(trace: Trace, function: types.FunctionType, args: Args, kwargs: Kwargs) -> tuple[object] | None:
    """``singledispatch`` chooses an implementation: guarded, since another may be registered later."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    if type(getattr(cells.get("dispatch_cache"), "cell_contents", None)) is not weakref.WeakKeyDictionary:
        return None  # the program could observe the call
    cls = force(trace, args[0])
    source = trace.outside.source_of(function)
    if source is not None:
        trace.guards.add(source, "identity", function)
    try:
        chosen = function(cls)
    except Exception as error:  # what it is made of has been changed
        raise trace.fail("a singledispatch function that cannot dispatch", error=error) from None
    trace.guards.extras.append((f"the same implementation for {cls.__qualname__}", lambda: function(cls) is chosen))
    trace.outside.pinned(chosen)
    return (chosen,)


@rule(inspect.signature)
def rule_signature(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    function = force(trace, args[0])
    if len(args) > 1 or kwargs or not isinstance(function, (types.FunctionType, types.MethodType, type)):
        raise trace.fail("inspect.signature of this value")
    plain = function.__func__ if isinstance(function, types.MethodType) else function
    source = trace.outside.source_of(plain)
    if source is not None and isinstance(plain, types.FunctionType):
        for name in ("__code__", "__defaults__", "__kwdefaults__"):
            trace.guards.add(Attribute(source, name), "identity", getattr(plain, name))
        if plain.__kwdefaults__:
            assume_contents(trace, plain.__kwdefaults__, Attribute(source, "__kwdefaults__"))
        assume_contents(trace, read_annotations(trace, plain), Attribute(source, "__annotations__"))
        namespace = Attribute(source, "__dict__")
        for name in ("__wrapped__", "__signature__", "__text_signature__"):
            if name in plain.__dict__:
                trace.guards.add(Item(namespace, name), "identity", plain.__dict__[name])
            else:
                trace.guards.add(namespace, "lacks_key", name)
    return run_uninterpreted(trace, inspect.signature, (function,), {})


def assume_contents(trace: Trace, mapping: dict[Any, Any], source: Source) -> list[object]:
    """Guard the keys and values of a dictionary that is only read."""
    shadow = wrap(trace, mapping, source)
    record = trace.outside.record_of(shadow)
    if record is None or type(shadow) is not dict:
        raise trace.fail("annotations or defaults that are no plain dictionary")
    if not record.loaded:
        guard_all_keys(trace, record)
    return [force(trace, value) for value in dict.values(shadow)]


@rule(typing.get_type_hints)
def rule_type_hints(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    """Annotations, and the values of the names in those that are strings."""
    owner = force(trace, args[0])
    if len(args) > 1 or kwargs or not isinstance(owner, (types.FunctionType, type)):
        raise trace.fail("typing.get_type_hints of this value")
    owners = [base for base in owner.__mro__ if has_annotations(base)] if isinstance(owner, type) else [owner]
    if isinstance(owner, type):
        watch_class(trace, owner)
    for each in owners:
        source = Attribute(trace.outside.pinned(each), "__annotations__")
        held = assume_contents(trace, read_annotations(trace, each), source)
        module = sys.modules.get(module_of(each))
        namespace = each.__globals__ if isinstance(each, types.FunctionType) else vars(module) if module else {}
        for text in held:
            for name in names_in(text) if type(text) is str else ():
                if name in namespace:
                    wrap(trace, namespace[name], Item(trace.outside.globals_source(namespace), name))
    return run_uninterpreted(trace, typing.get_type_hints, (owner,), {})


def names_in(annotation: str) -> tuple[str, ...]:
    """The names that an annotation given as text looks up."""
    try:
        return compile(annotation, "<annotation>", "eval").co_names
    except SyntaxError:
        return ()


@rule(typing.cast)
def rule_cast(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    return args[1]


def operator_text(function: Callable[[Any], str]) -> None:
    """Register a rule for the text of an operator, which never changes."""

    @rule(function)
    def text(trace: Trace, args: Args, kwargs: Kwargs) -> object:
        operator = force(trace, args[0])
        trace.guards.add(trace.outside.pinned(operator), "identity", operator)
        return function(operator)


for _function in (OpOverload.__str__, OpOverload.__repr__):
    operator_text(_function)


@rule(traceback.clear_frames)
def rule_clear_frames(trace: Trace, args: Args, kwargs: Kwargs) -> None:
    """Clear the frames of a traceback (``assertRaises``): interpreted frames hold nothing."""


@rule(dataclasses.is_dataclass)
def rule_is_dataclass(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    value = force(trace, args[0])
    cls = value if isinstance(value, type) else type_of(trace, value)
    class_attribute(trace, cls, "__dataclass_fields__")
    return dataclasses.is_dataclass(cls)


@rule(dataclasses.fields)
def rule_fields(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    value = force(trace, args[0])
    cls = value if isinstance(value, type) else type_of(trace, value)
    class_attribute(trace, cls, "__dataclass_fields__")
    made = call_for_program(trace, dataclasses.fields, cls)
    for item in made:
        trace.outside.pinned(item)
    return made
