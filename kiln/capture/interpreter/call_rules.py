"""The table of rules: what a call of a builtin or function means, where running it natively is not enough."""

from __future__ import annotations

import functools
import inspect
import math
import sys
import types
from collections.abc import Callable
from typing import Any

from ..._native import is_instance as isinstance
from ...platform.python_objects import HEAP_TYPE
from ..guards.source import lookup
from ..shadows.builtin_tables import NATIVE_METHODS, describe
from ..state.exceptions import from_native
from ..state.operations import Args, Kwargs
from ..state.trace import Trace
from ..state.values import GraphBreak, Raised

Rule = Callable[[Trace, Args, Kwargs], Any]
RULES: dict[object, Rule] = {}


def rule(*functions: object) -> Callable[[Rule], Rule]:
    """Register a handler ``(trace, args, kwargs)`` for functions that must not simply run."""

    def register(handler: Rule) -> Rule:
        for function in functions:
            RULES[function] = handler
        return handler

    return register


def leave_to_python(function: object, name: str, why: str = "") -> None:
    """Register a rule that breaks the graph before calls of a function."""

    @rule(function)
    def leave(trace: Trace, args: Args, kwargs: Kwargs) -> None:
        raise trace.fail(f"a call to {name}" + (f": {why}" if why else ""), "call it outside the compiled function")


def rule_for(function: object) -> Rule | None:
    kind = type(function)
    if kind.__flags__ & HEAP_TYPE and isinstance(lookup(kind, "__hash__"), types.FunctionType):
        return None  # a callable of the program: its __hash__ must not run here
    try:
        return RULES.get(function)
    except TypeError:  # unhashable callable object
        return None


def call_rule(trace: Trace, handler: Rule, function: Any, args: Args, kwargs: Kwargs) -> Any:
    """Call a rule. Where the number of arguments is wrong, raise CPython's own error."""
    least, most, keywords = positional_limits(function)
    if not least <= len(args) <= most or (kwargs and not keywords):
        raise wrong_arguments(trace, function, args, kwargs)
    try:
        return handler(trace, args, kwargs)
    except (IndexError, ValueError) as error:
        if frames_below(error) > 1:  # not in the rule itself
            raise
        if type(function) is types.FunctionType:
            return call_rule_by_position(trace, handler, function, args, kwargs)
        try:
            function(*args, **kwargs)
        except TypeError as wrong:
            raise Raised(from_native(trace, wrong)) from None
        raise


def frames_below(error: BaseException) -> int:
    """How many calls below the frame that catches it an exception was raised."""
    count, entry = -1, error.__traceback__
    while entry is not None:
        count, entry = count + 1, entry.tb_next
    return count


def call_rule_by_position(
    trace: Trace, handler: Callable[..., Any], function: Any, args: Args, kwargs: Kwargs
) -> object:
    """Call a rule that takes arguments by position, where the program passed some by name."""
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        raise wrong_arguments(trace, function, args, kwargs) from None
    return handler(trace, bound.args, bound.kwargs)


@functools.cache
def positional_limits(function: object) -> tuple[float, float, bool]:
    """The least and the largest number of positional arguments, and whether there are others."""
    if function in UNSIGNED:
        return (*UNSIGNED[function], function is object.__init__)
    if type(function) is types.FunctionType:
        code = function.__code__
        return 0, math.inf if code.co_flags & inspect.CO_VARARGS else code.co_argcount, True
    if not isinstance(function, SIGNED_TYPES):
        return 0, math.inf, True
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        return 0, math.inf, True
    if any(parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL) for parameter in parameters):
        return 0, math.inf, True
    single = [parameter for parameter in parameters if parameter.kind is parameter.POSITIONAL_ONLY]
    required = sum(parameter.default is parameter.empty for parameter in single)
    return required, len(single) if len(single) == len(parameters) else math.inf, False


SIGNED_TYPES = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
UNSIGNED: dict[object, tuple[float, float]] = {
    getattr: (2, 3), next: (1, 2), iter: (1, 2), vars: (0, 1), dir: (0, 1), bool: (0, 1), super: (0, 2),
    sys.exit: (0, 1), sys.exc_info: (0, 0), sys.exception: (0, 0), object.__init__: (1, math.inf),
}  # fmt: skip
"""Builtins without a signature: the least and the largest number of positional arguments."""


def wrong_arguments(trace: Trace, function: Any, args: Args, kwargs: Kwargs) -> Raised | GraphBreak:
    """The error for too many or too few arguments. CPython counts them before it reads them."""
    if not isinstance(function, NATIVE_METHODS):
        try:
            function(*[None] * len(args), **dict.fromkeys(kwargs))
        except TypeError as error:
            return Raised(from_native(trace, error))
    return trace.fail(f"{describe(function)} with arguments that it does not take")
