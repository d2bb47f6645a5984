"""Binding the arguments of a call to the parameters of a Python function."""

from __future__ import annotations

import types
from typing import Any

from ..guards.source import Attribute, Item, signature
from ..shadows.wrap import force, wrap
from ..state.exceptions import from_native
from ..state.operations import Args, Kwargs, operation
from ..state.trace import Trace
from ..state.values import Raised


class SignatureMismatch(Exception):
    """The arguments of a call are not those that the function takes."""


@operation
def bind_arguments(trace: Trace, function: Any, args: Args, kwargs: Kwargs) -> dict[str, Any]:
    """The local variables on entry. Raises CPython's ``TypeError`` where arguments and parameters do not match."""
    try:
        return match_arguments(trace, function, args, kwargs)
    except SignatureMismatch:
        raise signature_error(trace, function, args, kwargs) from None


def match_arguments(trace: Trace | None, function: Any, args: Args, kwargs: Kwargs) -> dict[str, Any]:
    code = function.__code__
    names = code.co_varnames
    positional, keyword_only = code.co_argcount, code.co_kwonlyargcount
    bound: dict[str, Any] = dict(zip(names[:positional], args))  # noqa: B905 (surplus goes to *args)
    extra = args[positional:]
    rest = dict(kwargs)
    for name in names[code.co_posonlyargcount : positional + keyword_only]:
        if name in rest:
            if name in bound:
                raise SignatureMismatch
            bound[name] = rest.pop(name)
    fill_defaults(trace, function, bound)
    index = positional + keyword_only
    if code.co_flags & 0x04:
        bound[names[index]] = tuple(extra if trace is None else [force(trace, value) for value in extra])
        index += 1
    elif extra:
        raise SignatureMismatch
    if code.co_flags & 0x08:
        bound[names[index]] = rest
    elif rest:
        raise SignatureMismatch
    return bound


def fill_defaults(trace: Trace | None, function: types.FunctionType, bound: dict[str, Any]) -> None:
    code = function.__code__
    positional = code.co_varnames[: code.co_argcount]
    keyword_only = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    defaults = function.__defaults__ or ()
    source = trace.outside.source_of(function) if trace is not None else None
    for position, name in enumerate(positional):
        if name in bound:
            continue
        index = position - len(positional)  # from the end: a later call may have more defaults
        if index < -len(defaults):
            raise SignatureMismatch
        value = defaults[index]
        if trace is not None and source is not None:
            value = wrap(trace, value, Item(Attribute(source, "__defaults__"), index))
        bound[name] = value
    keyword_defaults = function.__kwdefaults__ or {}
    for name in keyword_only:
        if name in bound:
            continue
        if name not in keyword_defaults:
            raise SignatureMismatch
        value = keyword_defaults[name]
        if trace is not None and source is not None:
            value = wrap(trace, value, Item(Attribute(source, "__kwdefaults__"), name))
        bound[name] = value


def signature_error(trace: Trace, function: Any, args: Args, kwargs: Kwargs) -> BaseException:
    """CPython's own error: calls an empty function that has the same parameters."""
    assume_parameters(trace, function)
    namespace: dict[str, types.FunctionType] = {}
    exec(f"def stand_in({signature(function.__code__)}): pass", namespace)
    stand_in = namespace["stand_in"]
    stand_in.__qualname__ = function.__qualname__
    stand_in.__defaults__, stand_in.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    try:
        stand_in(*(None for _ in args), **dict.fromkeys(kwargs))
    except TypeError as error:
        return Raised(from_native(trace, error))
    return trace.fail(f"a call to {function.__qualname__} with arguments that do not fit its signature")


def assume_parameters(trace: Trace, function: types.FunctionType) -> None:
    """Guard what the message of a mismatch depends on: the name, and which parameters have defaults."""
    source = trace.outside.source_of(function)
    if source is None:
        return
    trace.guards.add(Attribute(source, "__qualname__"), "constant", function.__qualname__)
    for name in ("__defaults__", "__kwdefaults__"):
        defaults = getattr(function, name)
        place = Attribute(source, name)
        if defaults is None:
            trace.guards.add(place, "constant", None)
        else:
            trace.guards.add(place, "type", type(defaults))
            trace.guards.add(place, "native_length", len(defaults))
    for name in function.__kwdefaults__ or ():
        trace.guards.add(Attribute(source, "__kwdefaults__"), "has_key", name)
