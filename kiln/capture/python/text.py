"""Text of values: ``str``, ``repr``, ``format``, f-strings, ``%`` and ``str.format``.

Text is made natively, on stand-ins: an object whose ``__str__``, ``__repr__`` or ``__format__`` is Python code is
replaced by one whose methods lead back into the interpreter, also inside containers. Tensors, and objects with an
address in their text, break the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ... import operator_functions as operator
from ..._native import is_instance as isinstance
from ..guards.source import Attribute, lookup
from ..interpreter import native_calls
from ..interpreter.call_rules import rule
from ..interpreter.calls import call
from ..interpreter.program_types import native_name, type_of
from ..interpreter.protocols import special_method
from ..shadows.native_arguments import Survey, load_keys
from ..shadows.symbolic_numbers import concrete
from ..shadows.wrap import force, wrap
from ..state.operations import Args, Kwargs, operation
from ..state.trace import Trace
from ..state.values import Raised

METHODS: dict[Callable[..., str], str] = {str: "__str__", repr: "__repr__", ascii: "__repr__", format: "__format__"}


class StandIn:
    """Stands for an object of the program whose text is made by Python code."""

    def __init__(self, trace: Trace, value: object) -> None:
        self._trace = trace
        self._value = value

    def __str__(self) -> str:
        return self._make(str)

    def __repr__(self) -> str:
        return self._make(repr)

    def __format__(self, spec: str) -> str:
        return self._make(format, spec)

    def _make(self, function: object, *rest: str) -> str:
        text: str = self._trace.invoke(function, (self._value, *rest), {})
        return text

    def _look_inside(self, *args: object) -> object:
        raise self._trace.fail("formatting that looks into an object", "take the attribute or number out before")

    __getattr__ = __getitem__ = __int__ = __float__ = __index__ = _look_inside


def stand_in(trace: Trace, value: Any, builtin: str = "str") -> Any:
    """An object with the same text as a value, for native code; ``builtin`` names the builtin."""
    value = concrete(trace, force(trace, value))
    kind = type(value)
    if native_calls.is_value(value):  # it may contain symbolic numbers
        return Survey(trace, keep_symbols=False, shallow=False).visit(value)
    if special_method(trace, value, "__repr__") is not None or isinstance(value, BaseException):
        return StandIn(trace, value)
    if kind is list or kind is tuple:
        return kind([stand_in(trace, item) for item in value])
    if kind is dict:
        load_keys(trace, value)
        return {stand_in(trace, key): stand_in(trace, item) for key, item in dict.items(value)}
    if not native_calls.is_value(value, deep=True):
        raise trace.fail(f"the text of a {type_of(trace, value).__qualname__} (builtin: {builtin})")
    return Survey(trace, keep_symbols=False, shallow=False).visit(value)


def text_rule(function: Callable[..., Any]) -> None:
    @rule(function)
    def rule_text(trace: Trace, args: Args, kwargs: Kwargs) -> object:
        if not args or kwargs or (function is str and len(args) > 1):
            return native_calls.call_without_rule(trace, function, args, kwargs)
        value, rest = concrete(trace, force(trace, args[0])), tuple([concrete(trace, arg) for arg in args[1:]])
        if function is ascii:
            return format_natively(trace, ascii, (stand_in(trace, value),), {})
        method = python_method(trace, value, METHODS[function])
        if method is not None:
            return checked_text(trace, call(trace, method, (value, *rest), {}), METHODS[function])
        if function is format and lookup(type(value), "__format__") is object.__format__ and rest in ((), ("",)):
            return call(trace, str, (value,), {})
        if isinstance(value, BaseException):
            if rest not in ((), ("",)):
                what = f"unsupported format string passed to {type(value).__name__}.__format__"
                raise Raised(TypeError(what))
            return exception_text(trace, value, function)
        return format_natively(trace, function, (stand_in(trace, value, function.__name__), *rest), {})


def python_method(trace: Trace, value: object, name: str) -> object:
    """The method that makes the text, if it is Python code; the default ``__str__`` calls ``__repr__``."""
    method = special_method(trace, value, name)
    if method is None and name == "__str__" and lookup(type(value), "__str__") is object.__str__:
        return special_method(trace, value, "__repr__")
    return method


def checked_text(trace: Trace, text: object, name: str) -> object:
    text = force(trace, text)
    if isinstance(text, str):
        return text
    returned = native_name(trace, text)
    if name == "__format__":
        raise Raised(TypeError(f"__format__ must return a str, not {returned}"))
    raise Raised(TypeError(f"{name} returned non-string (type {returned})"))


TEXTS_OF_ARGUMENTS = (BaseException.__str__, BaseException.__repr__, KeyError.__str__)


def exception_text(trace: Trace, error: BaseException, function: Callable[..., Any]) -> object:
    """The text of an exception is that of its arguments."""
    native = lookup(type(error), METHODS[function])
    given: object = error.args
    if id(error) in trace.outside.foreign:
        if native not in TEXTS_OF_ARGUMENTS:
            raise trace.fail(f"the text of a {type(error).__qualname__} from outside")
        given = wrap(trace, given, Attribute(trace.outside.pinned(error), "args"))
    args = stand_in(trace, given)
    if args is error.args or all(a is b for a, b in zip(args, error.args, strict=True)):
        return format_natively(trace, function, (error,), {})
    if native is BaseException.__repr__:
        text = format_natively(trace, repr, (args,), {})
        trace.guards.classes.watch_name(type(error))
        return type(error).__name__ + (text[:-2] + ")" if len(error.args) == 1 else text)
    if native is BaseException.__str__:
        return format_natively(trace, str, (args[0] if len(error.args) == 1 else args,), {})
    raise trace.fail(f"the text of a {type(error).__qualname__}")


def format_natively(trace: Trace, function: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:
    """Make text natively, and guard the names of classes in it."""
    text = native_calls.run_natively(trace, function, args, kwargs)
    if type(text) is str:
        trace.guards.classes.watch_names_in(text)
    return text


for _function in METHODS:
    text_rule(_function)


@rule(str.format)
def rule_format(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    values = [stand_in(trace, arg) for arg in args]
    keywords = {name: stand_in(trace, value) for name, value in kwargs.items()}
    return format_natively(trace, str.format, tuple(values), keywords)


@rule(str.format_map)
def rule_format_map(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    mapping = force(trace, args[1])
    if type(mapping) is not dict:
        raise trace.fail(f"str.format_map with a {type_of(trace, mapping).__qualname__}")
    return format_natively(trace, str.format_map, (force(trace, args[0]), stand_in(trace, mapping)), {})


@operation
def percent(trace: Trace, template: object, values: object) -> object:
    """``template % values``; native code takes the elements of tuples, also of subclasses."""
    values = force(trace, values)
    if isinstance(values, tuple) and isinstance(template, str):
        given: object = tuple([stand_in(trace, item) for item in tuple.__iter__(values)])
    else:
        given = stand_in(trace, values)
    return format_natively(trace, operator.mod, (template, given), {})


@rule(str.__mod__)
def rule_mod(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    return percent(trace, *(force(trace, arg) for arg in args))
