"""Native code on shadows, watched: it must not run Python code of the program past the interpreter.

What capture runs natively is chosen from tables, and special methods in Python are led back into the interpreter by
proxies and trampolines. Should native code reach such a method all the same, it would run on shadows, with effects on
real objects. So a call is watched: a function that native code enters and that is not part of the machinery does not
run, and the graph breaks. On CPython 3.11 the watch is a profile function; from 3.12 on, where setting one takes too
long, a function that evaluates frames (`native/platform/frames.h`).
"""

from __future__ import annotations

import functools
import sys
import types
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ... import _native
from ..._native import is_instance as isinstance
from ..guards.descriptions import module_of_globals
from .operations import Args, Kwargs
from .values import CONSTANT_TYPES

if TYPE_CHECKING:
    from .trace import Trace

PROFILES = sys.version_info < (3, 12)

# Modules whose Python code native code may enter: what leads back into the interpreter, and values of its own.
MACHINERY = frozenset({"kiln", "torch", "sympy", "mpmath", "enum", "weakref", "importlib"})
PROGRAMS = ("torch.nn.modules", "torch.optim", "torch.utils.data", "torch.distributions")  # not of torch's machinery


def call_watched(trace: Trace, function: Callable[..., Any], args: Args, kwargs: Kwargs) -> object:
    """Call native code; break the graph if it enters Python code of the program."""
    if not kwargs and is_harmless(function, args):
        return function(*args, **kwargs)
    if not PROFILES:
        return _native.call_watched(functools.partial(entered, trace, function), function, args, kwargs)
    if sys.getprofile() is not None:
        return function(*args, **kwargs)
    return _native.call_watched(watch, function, args, kwargs)


def is_harmless(function: object, args: Args) -> bool:
    """Whether a call plainly meets no Python code: on constants, or only the list or iterator itself is looked at."""
    if CONSTANT_TYPES.issuperset(map(type, args)):
        return True
    owner = type(args[0]) if args else None
    if function is next:
        return owner in SEQUENCE_ITERATORS
    return (owner is list or owner is tuple) and function in SHALLOW


SEQUENCE_ITERATORS: tuple[type, ...] = (type(iter([])), type(iter(())), type(iter(range(0))), type(iter("")))
SHALLOW: frozenset[object] = frozenset(
    {len, iter, list.append, list.__len__, tuple.__len__, list.__iter__, tuple.__iter__}
)


def watch(frame: types.FrameType) -> None:
    """On CPython 3.11: a function was entered, perhaps by a watched call."""
    caller = frame.f_back
    if caller is not None and caller.f_code is CALL:
        code, known = frame.f_code, frame.f_locals
        given = tuple([known.get(name) for name in code.co_varnames[: code.co_argcount]])
        entered(caller.f_locals["trace"], caller.f_locals["function"], code, frame.f_globals, given)


CALL = call_watched.__code__


def entered(trace: Trace, function: object, code: types.CodeType, names: dict[str, Any], given: Args) -> None:
    """Native code is about to run a function with this code, these globals and positional arguments."""
    if may_run(code, names, given):
        return
    if trace.progress.key_methods_run and code.co_name in ("__hash__", "__eq__"):
        return
    name = getattr(function, "__qualname__", repr(function))
    raise trace.fail(f"{name} calls {code.co_qualname}, which is Python code")


def may_run(code: types.CodeType, names: dict[str, Any], given: Args) -> bool:
    """Whether a function that native code enters is of the machinery, or comes from outside the call."""
    module = module_of_globals(names)
    if module.partition(".")[0] in MACHINERY and not module.startswith(PROGRAMS):
        return True
    if code.co_name == "__del__":
        return True
    if given and isinstance(given[0], (weakref.ReferenceType, type)):
        return True  # a callback of a weak reference; a method of a metaclass, which is asked about a real class
    signal = len(given) == 2 and isinstance(given[1], types.FrameType)
    return signal or (len(given) == 2 and type(given[0]) is str and given[0] in ("start", "stop"))  # of the collector


def stop_watching() -> bool:
    """Native code has come back into the interpreter. Whether it is to be watched again (only on CPython 3.11: what a
    watched call enters itself is all that is looked at later)."""
    profile: object = sys.getprofile()
    watched = profile is watch
    if watched:
        sys.setprofile(None)
    return watched


def resume_watching() -> None:
    if PROFILES:
        _native.watch_entered(watch)
