"""Functions under ``functools.lru_cache``, while tracing: the real cache is used, as in eager.

A hit runs no code of the program. A miss runs the function, unless effects of the program are still pending.
``cached_calls.py`` has the calls that checks make.
"""

from __future__ import annotations

import contextlib
import gc
import types
from collections.abc import Hashable, Iterator
from typing import Any

import torch

from ..._native import is_instance as isinstance
from ...platform.cpython import lru_cache_class
from ..guards.cached_calls import SESSION, CachedCall, Outcome
from ..guards.source import Attribute, Identity, Pinned, lookup
from ..interpreter.calls import CALLABLES, call
from ..shadows.symbolic_numbers import is_symbolic
from ..shadows.wrap import force, is_constant, wrap
from ..state.exceptions import from_native
from ..state.operations import Args, Kwargs
from ..state.trace import Trace
from ..state.values import Raised
from ..writeback.outside_state import OutsideState, is_closed, pending_writes


def call_lru_cache(trace: Trace, wrapper: object, args: Args, kwargs: Kwargs) -> object:
    """The cached result, guarded. With dynamic numbers, which always miss the cache, the function is interpreted."""
    args = tuple([force(trace, arg) for arg in args])
    kwargs = {key: force(trace, value) for key, value in kwargs.items()}
    values = (*args, *kwargs.values())
    if any(is_symbolic(value) for value in values):
        return interpret(trace, wrapper, args, kwargs)
    if not all(is_real_object(trace, value) for value in values):
        raise trace.fail(
            "a call to a function under functools.lru_cache with objects or tensors",
            "call it outside, or cache its result yourself",
        )
    call = CachedCall(wrapper, args, kwargs, *cache_and_key(trace, wrapper, args, kwargs))
    call.outcome = find_outcome(trace, call)
    trace.guards.cached.calls.append(call)
    if call.outcome.error is not None:
        raise Raised(from_native(trace, call.outcome.error))
    result = call.outcome.result
    return result if is_constant(result) else wrap(trace, result, Pinned(Identity(result)))


def find_outcome(trace: Trace, call: CachedCall) -> Outcome:
    """The outcome of a call that was made before capture started over, or is made now."""
    made = SESSION.made.setdefault(call.place, [])
    used = sum(other.place == call.place for other in trace.guards.cached.calls)
    if used >= len(made):
        if call.key not in call.known:
            check_no_pending_effects(trace, call.wrapper)
        trace.progress.entered += 1
        made.append(call.make())
    return made[used]


def check_no_pending_effects(trace: Trace, wrapper: object) -> None:
    """Break the graph if the function, which runs now, could read objects with pending effects, or change objects that
    the program has read."""
    if trace.progress.key_method_depth:
        raise trace.fail("a call that fills a cache, in a __hash__ or __eq__ that a dictionary or set is going to call")
    function = getattr(wrapper, "__wrapped__", None)
    if is_closed(function):
        return
    if any(
        id(value) in trace.outside.by_real or id(value) in trace.outside.appended
        for value in named_values(function, set())
    ):
        raise trace.fail("a call that fills a cache, whose function knows objects that the program has used", HINT)
    if pending_writes(trace):
        raise trace.fail("a call that fills a cache, after changes to objects that its function might look at", HINT)


HINT = "call it once outside the compiled function"


def named_values(function: object, seen: set[int]) -> Iterator[object]:
    """The values of the globals and free variables of a function, and of the functions among them."""
    if not isinstance(function, types.FunctionType) or id(function) in seen:
        return
    seen.add(id(function))
    known = [function.__globals__.get(name) for name in function.__code__.co_names]
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):
            known.append(cell.cell_contents)
    for value in known:
        yield value
        yield from named_values(value, seen)


def interpret(trace: Trace, wrapper: Any, args: Args, kwargs: Kwargs) -> object:
    """Interpret the function without its cache, which must not be observable."""
    before = OutsideState(trace, args)
    function = wrap(trace, wrapper.__wrapped__, Attribute(trace.outside.pinned(wrapper), "__wrapped__"))
    result = force(trace, call(trace, function, args, kwargs))
    parts = result if isinstance(result, tuple) else (result,)
    simple = all(isinstance(part, torch.Tensor) or is_symbolic(part) or is_constant(part) for part in parts)
    if not simple or before.is_changed(trace):
        raise trace.fail("a call to a function under functools.lru_cache, which has effects, with numbers that vary")
    return result


def is_real_object(trace: Trace, value: object) -> bool:
    """Whether a value is a real object, not a shadow, and has a native hash."""
    if isinstance(value, (types.FunctionType, type, types.ModuleType)):
        return trace.outside.source_of(value) is not None
    if id(value) in trace.outside.foreign:
        return not any(isinstance(lookup(type(value), name), types.FunctionType) for name in ("__hash__", "__eq__"))
    return is_constant(value)


def cache_and_key(trace: Trace, wrapper: object, args: Args, kwargs: Kwargs) -> tuple[dict[Any, Any], Hashable]:
    """The dictionary of a cache, and the key of a call in it, as ``functools`` makes it."""
    referents = gc.get_referents(wrapper)
    parameters = getattr(wrapper, "cache_parameters", None)
    if len(referents) < 6 or type(referents[-6]) is not dict or type(referents[-4]) is not object or not parameters:
        raise trace.fail("a call to a function under a cache that Kiln cannot look into")
    settings = parameters()
    if settings["maxsize"] == 0:
        raise trace.fail("a call to a function under functools.lru_cache(maxsize=0), which runs each time")
    key: Any = args
    if kwargs:
        key = (*args, referents[-4], *(part for pair in kwargs.items() for part in pair))
    if settings["typed"]:
        key = (*key, *map(type, args), *map(type, kwargs.values()))
    elif not kwargs and len(args) == 1 and type(args[0]) in (int, str):
        key = args[0]
    return referents[-6], key


CALLABLES[lru_cache_class] = call_lru_cache
