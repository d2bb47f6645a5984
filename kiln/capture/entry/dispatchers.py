"""Dispatchers: what stands for a compiled function, and the cache of entries that it uses.

``kiln.compile(f)`` is a native ``Dispatcher`` whose slow path is ``dispatch.miss``. What is compiled belongs to a
:class:`FrameCache`, one per code object and set of options; a dispatcher binds its entries to its function object.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable
from dataclasses import field
from typing import Any

from ... import _native
from ...platform.light_dataclass import dataclass
from ...platform.locks import new_lock
from ...platform.torch_compiler import StanceImportWatch
from ..guards.hints import Hints
from ..state.operations import operations
from ..state.trace import Options
from .entry import Entry
from .run_text import Continuation

COMPILE_LOCK = new_lock()


class FrameCache:
    """All entries for one code object under one set of options."""

    def __init__(self, code: types.CodeType, options: Options):
        self.code = weakref.ref(code)
        self.options = options
        self.entries: list[Entry] = []
        self.hints = Hints()
        self.skeletons: dict[tuple[Any, ...], Continuation] = {}
        self.nested: dict[int, FrameCache] = {}  # of functions that frames of this code make and call, by their code
        self.gave_up = False
        self.continues = False  # another frame, after a graph break
        self.routed: types.CodeType | None = None  # what a frame that is left alone runs: its calls may be compiled


MOST_ENTRIES = 64
"""How many entries functions of one code share, the latest ones. A factory may make classes without end, each with its
own entry; dispatchers keep those that they use themselves."""


_CACHES: weakref.WeakValueDictionary[tuple[Any, ...], FrameCache] = weakref.WeakValueDictionary()


def cache_for(function: types.FunctionType, options: Options) -> FrameCache:
    """The cache of a function's code; of its globals too, since continuations are functions with globals."""
    code = function.__code__
    key = (id(code), id(function.__globals__), id(options))
    cache = _CACHES.get(key)
    if cache is None or cache.code() is not code:
        cache = _CACHES[key] = FrameCache(code, options)
    return cache


@dataclass(eq=False, slots=True)
class DispatcherState:
    """What a dispatcher needs on a miss."""

    cache: FrameCache
    bound: dict[Entry, tuple[Callable[..., object], Callable[..., object]]] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)  # of recompiles
    users: weakref.WeakSet[object] | None = None  # on whose behalf a route was made (routing.py)


STATE = "_kiln_state"  # in the dictionary of a dispatcher
_DISPATCHERS: weakref.WeakSet[_native.Dispatcher] = weakref.WeakSet()


def make_dispatcher(function: types.FunctionType, options: Options) -> _native.Dispatcher:
    """A callable that compiles the function as it is called."""
    dispatcher = _native.Dispatcher(function, operations.miss)
    dispatcher.__dict__[STATE] = DispatcherState(cache_for(function, options))
    dispatcher.changed = redefined
    _STANCES.expect()
    _DISPATCHERS.add(dispatcher)
    return dispatcher


def state_of(dispatcher: _native.Dispatcher) -> DispatcherState:
    state: DispatcherState = dispatcher.__dict__[STATE]
    return state


_OPTIONS: weakref.WeakValueDictionary[tuple[Any, ...], Options] = weakref.WeakValueDictionary()


def shared(options: Options) -> Options:
    """Those in use that ask for the same: what is compiled under them is shared, as far as code is."""
    own = id(options) if options.options or options.on_recompile else 0
    key = (id(options.backend), options.fullgraph, options.dynamic, options.compiled_autograd, own)
    return _OPTIONS.setdefault(key, options)


def redefined(dispatcher: _native.Dispatcher) -> None:
    """The function got another ``__code__`` or other defaults."""
    state = state_of(dispatcher)
    state.cache = cache_for(dispatcher.function, state.cache.options)
    state.bound = {}
    state.reasons = []


def rebind_all() -> None:
    """Have all compiled functions make their checks again."""
    for dispatcher in list(_DISPATCHERS):
        state_of(dispatcher).bound = {}
        dispatcher.entries[:] = [pair for pair in dispatcher.entries if pair[0] is None]


_STANCES = StanceImportWatch(rebind_all)


def update_stance_watch() -> None:
    """After `kiln.compat` has exchanged torch's modules: watch for that of stances, or not, if anything is compiled."""
    if _DISPATCHERS:
        _STANCES.expect()


def reset() -> None:
    """Forget everything compiled."""
    with COMPILE_LOCK:
        _CACHES.clear()
        for dispatcher in list(_DISPATCHERS):
            dispatcher.entries = []
            redefined(dispatcher)
