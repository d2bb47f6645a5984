"""Functions under ``functools.lru_cache``: asked natively, now and before every run.

The cache is state that Kiln cannot see, but asking it is what eager does: a hit gives the same object as before, a miss
runs the function where eager would run it. So a call with arguments that capture knows is made for real, and a guard
makes it again; it holds as long as the very same object comes back. What is done once (a warning, a table) stays once.
"""

from __future__ import annotations

import types

from .. import _native
from .._native import is_instance as isinstance
from .quiet import aloud
from .raising import from_native
from .source import Attribute, Identity, Pinned
from .symbols import is_symbolic
from .trace import Trace
from .values import Raised
from .wrap import force, is_constant, wrap


def call_lru_cache(trace: Trace, wrapper: object, args: tuple, kwargs: dict) -> object:
    """The cached result, guarded; numbers that vary would miss the cache each time, so the function is interpreted."""
    from .calls import call

    args = tuple([force(trace, arg) for arg in args])
    kwargs = {key: force(trace, value) for key, value in kwargs.items()}
    values = (*args, *kwargs.values())
    if any(is_symbolic(value) for value in values):
        function = wrap(trace, wrapper.__wrapped__, Attribute(trace.pinned(wrapper), "__wrapped__"))  # type: ignore[attr-defined]
        return call(trace, function, args, kwargs)
    if not all(is_same_outside(trace, value) for value in values):
        raise trace.fail(
            "a call to a function under functools.lru_cache with objects or tensors",
            "call it outside, or cache its result yourself",
        )
    result = ask(trace, wrapper, args, kwargs)
    name = getattr(wrapper, "__qualname__", "a cached function")
    trace.guards.extras.append((f"the same cached result of {name}", lambda: wrapper(*args, **kwargs) is result))  # type: ignore[operator]
    return result if is_constant(result) else wrap(trace, result, Pinned(Identity(result)))


def is_same_outside(trace: Trace, value: object) -> bool:
    """Whether a value is itself in the real program, not a shadow."""
    if isinstance(value, types.FunctionType | type | types.ModuleType):
        return trace.source_of(value) is not None
    return is_constant(value) or id(value) in trace.foreign


def ask(trace: Trace, wrapper: object, args: tuple, kwargs: dict) -> object:
    disabled = _native.set_disabled(True)
    try:
        with aloud():
            return wrapper(*args, **kwargs)  # type: ignore[operator]
    except Exception as error:
        raise Raised(from_native(trace, error)) from None
    finally:
        _native.set_disabled(disabled)
