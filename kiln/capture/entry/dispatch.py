"""The slow path of a call: find an entry, compile one, or run in eager; recompiles and their limit."""

from __future__ import annotations

import builtins
import functools
import types
import warnings
from collections.abc import Callable
from typing import Any

from ... import _native, exc
from ...config import config
from ...platform.torch_compiler import stance
from ...program.quiet import without_frequent_collections
from ...report import bytecode_hooks, events
from ..guards import cached_calls
from ..guards.tensor_class import operator_is_replaced
from ..state.operations import Args, Kwargs, operation
from ..state.trace import Options
from ..state.values import forget_frames
from ..torch.override_modes import is_intercepted
from ..torch.torch_state import state_queries_are_replaced
from . import all_rules, caller_breaks  # noqa: F401
from .compile_frame import args_fit, compile_frame, user_stack_level
from .dispatchers import COMPILE_LOCK, MOST_ENTRIES, FrameCache, make_dispatcher, shared, state_of
from .entry import Entry
from .routing import release_routes

BUILTINS = vars(builtins)
BUILTIN_NAMES = frozenset(BUILTINS) - {"_"}  # which the interactive interpreter sets


def make_compiled(function: types.FunctionType, options: Options) -> _native.Dispatcher:
    """The dispatcher that the user gets. While there is one, what was compiled on its behalf is in use."""
    options = shared(options)
    dispatcher = make_dispatcher(function, options)
    release_routes(options, dispatcher)
    return dispatcher


@operation
def miss(dispatcher: _native.Dispatcher, args: Args, kwargs: Kwargs) -> object:
    """No entry fits: compile one, or run eager."""
    function = dispatcher.function
    if not BUILTINS.keys() >= BUILTIN_NAMES:  # the program has taken away what Kiln is written with
        return function(*args, **kwargs)
    asked_for = stance()
    if asked_for == "force_eager":
        return function(*args, **kwargs)
    with caller_breaks.during(), cached_calls.session():
        with COMPILE_LOCK, without_frequent_collections():
            if asked_for == "eager_on_recompile":
                run = known_entry(dispatcher, function, args, kwargs) or function
            elif asked_for == "fail_on_recompile":
                with config.patch(error_on_recompile=True):
                    run = find_or_compile(dispatcher, function, args, kwargs)
            else:
                run = find_or_compile(dispatcher, function, args, kwargs)
        return run(*args, **kwargs)


def find_or_compile(
    dispatcher: _native.Dispatcher, function: types.FunctionType, args: Args, kwargs: Kwargs, again: bool = False
) -> Callable[..., Any]:
    state = state_of(dispatcher)
    dispatcher.sync()
    cache = state.cache
    run = known_entry(dispatcher, function, args, kwargs)
    if run is not None:
        return run
    if _native.is_disabled() or is_intercepted() or is_torch_replaced() or not args_fit(function, args, kwargs):
        return function  # eager as asked for, or for CPython's own TypeError
    if cache.gave_up:
        return run_in_eager(dispatcher, function)
    reason = explain_miss(cache, function, args, kwargs)
    if reason is not None:
        if config.error_on_recompile:
            raise exc.RecompileError(function.__qualname__, reason, exc.Location.of_code(function.__code__))
        state.reasons.append(reason)
    # Modules of one class share entries: what counts is how many this one has used, whoever had them compiled.
    if len(state.bound) >= config.recompile_limit:
        return give_up(cache, dispatcher, function)
    if reason is not None:
        events.recompile(function, reason)
        if cache.options.on_recompile is not None:
            cache.options.on_recompile(function, reason)
    try:
        entry = compile_frame(cache, function, args, kwargs)
    except exc.Unsupported as problem:
        if problem.__cause__ is None:
            raise
        return raising(function, problem)
    if entry is None:
        cache.gave_up = True
        return run_in_eager(dispatcher, function)
    cache.entries.append(entry)
    del cache.entries[:-MOST_ENTRIES]
    pair = state.bound[entry] = entry.bind(function)
    if not cache.continues:
        bytecode_hooks.show(function.__code__, pair[1])
    dispatcher.entries.append(pair)
    answer = ask_check(pair[0], args, kwargs)
    if answer is not False:
        run = with_answer(pair[1], answer)
        return raising_as_captured(run, entry, function) if config.raise_internal_errors else run
    if not again:  # while it was compiled, another thread or a finalizer may have changed what it looked at
        cache.entries.remove(entry)
        dispatcher.entries.remove(pair)
        del state.bound[entry]
        return find_or_compile(dispatcher, function, args, kwargs, again=True)
    if config.raise_internal_errors:
        reason = explain_miss(cache, function, args, kwargs)
        failure = AssertionError(f"the guards do not hold for the very call they were made from ({reason})")
        raise exc.InternalError(f"compiling {function.__qualname__}", failure)
    return function


def raising_as_captured(run: Callable[..., Any], entry: Entry, function: types.FunctionType) -> Callable[..., Any]:
    """The run function of a new entry. What capture has seen the program raise, Python has to raise when it runs: an
    error that only capture has stays unseen here, but changes what the program does where it is caught."""
    raises = entry.break_reason.raises if entry.break_reason is not None else None
    if raises is None:
        return run

    def checked(*args: Any, **kwargs: Any) -> None:
        run(*args, **kwargs)
        failure = AssertionError(f"the program raises no {raises}, which it did in capture ({entry.break_reason})")
        raise exc.InternalError(f"compiling {function.__qualname__}", failure)

    return checked


def is_torch_replaced() -> bool:
    """Whether the program has put something of its own where capture itself, and fake tensors, rely on torch."""
    return operator_is_replaced() or state_queries_are_replaced()


def raising(function: types.FunctionType, problem: exc.Unsupported) -> Callable[..., Any]:
    """Under ``fullgraph`` a program that raises is run in eager: its own error, at its own line, is the best report."""

    def run(*args: Any, **kwargs: Any) -> None:
        nonlocal problem
        try:
            function(*args, **kwargs)
            raise problem
        except BaseException as error:
            cause = problem.__cause__
            if cause is not None and cause is not error and problem is not error:
                forget_frames(cause)
            raise
        finally:
            del problem  # which has this frame in its traceback

    problem.__traceback__ = None  # the frames of the compiler
    return run


def known_entry(
    dispatcher: _native.Dispatcher, function: types.FunctionType, args: Args, kwargs: Kwargs
) -> Callable[..., Any] | None:
    """An entry that another thread or another function object of the same code has had compiled meanwhile."""
    state = state_of(dispatcher)
    for entry in state.cache.entries:
        pair = state.bound.get(entry)
        fresh = pair is None
        if pair is None:
            pair = entry.bind(function)
        answer = ask_check(pair[0], args, kwargs)
        if answer is not False:
            if fresh:
                state.bound[entry] = pair
                dispatcher.entries.append(pair)
            return with_answer(pair[1], answer)
    return None


def run_in_eager(dispatcher: _native.Dispatcher, function: types.FunctionType) -> Callable[..., Any]:
    """Run this function in eager from now on, without asking again."""
    code = state_of(dispatcher).cache.routed
    if code is not None:
        original = function
        function = types.FunctionType(
            code, original.__globals__, original.__name__, original.__defaults__, original.__closure__
        )
        function.__kwdefaults__, function.__qualname__ = original.__kwdefaults__, original.__qualname__
    if all(check is not None for check, _ in dispatcher.entries):
        dispatcher.entries.append((None, function))
    return function


def ask_check(check: Callable[..., Any], args: Args, kwargs: Kwargs) -> object:
    """What a check says: no, yes, or the inputs that it has read for the run function."""
    try:
        return check(*args, **kwargs)
    except Exception:
        return False


def with_answer(run: Callable[..., Any], answer: object) -> Callable[..., Any]:
    """A run function with what its check has read."""
    return run if answer is True else functools.partial(run, answer)


# -- misses ---------------------------------------------------------------------------------------------------------


def explain_miss(cache: FrameCache, function: types.FunctionType, args: Args, kwargs: Kwargs) -> str | None:
    """Why no entry fits (None if there is none yet); learns which sizes and numbers vary."""
    if not cache.entries:
        return None
    from .misses import reason_for_miss  # most processes have their first miss long after their first compile

    reason = None
    for entry in cache.entries:
        reason = reason_for_miss(entry, function, args, kwargs, cache.hints)
    return reason


def give_up(cache: FrameCache, dispatcher: _native.Dispatcher, function: types.FunctionType) -> Callable[..., Any]:
    """The function needed compiling too often: eager from now on, and one warning with the reasons."""
    code = function.__code__
    reasons = state_of(dispatcher).reasons
    details = (code.co_qualname, config.recompile_limit, list(dict.fromkeys(reasons)), exc.Location.of_code(code))
    if cache.options.fullgraph:
        del reasons[-1:]
        raise exc.RecompileLimitExceeded(*details)
    run_in_eager(dispatcher, function)
    warnings.warn(exc.RecompileWarning.about(*details), stacklevel=user_stack_level())
    return function
