"""Where native calls go that were not inlined: to the callee compiled as a frame of its own, if that is worth it.

Skeletons of broken frames, and frames that run in eager as a whole, ask here before each call, with the very callee.
"""

from __future__ import annotations

import sys
import types
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.hooks import BackwardHook

from ... import _native
from ...platform.cpython import get_frame
from ...platform.python_objects import words
from ...program.call_markers import marker_of
from ..guards.descriptions import module_of
from ..guards.source import lookup
from ..interpreter.calls import SKIPPED_MODULES, TRANSPARENT_WRAPPERS
from ..interpreter.frame import COROUTINE_FLAGS, GENERATOR_FLAG
from ..shadows.module_hooks import GRAPH_MODULE_CALLS
from ..state.annotations import is_excluded
from ..state.trace import Options
from .dispatchers import FrameCache, make_dispatcher, state_of

ROUTES = "__kiln_routes__"  # in the dictionary of a function: its routes live as long as it does, and no longer
# Functions that torch's modules define stay as they are: `Options.torch_routes` has their routes. They live on anyway.
COMPILED_MODULES = (
    "torch.nn.modules",
    "torch.optim",
    "kiln.engine.calls.checks",
    "kiln.engine.calls.hook_calls",
    "kiln.engine.calls.node_calls",
    "kiln.program.accumulation",
)
"""Modules of torch's and Kiln's own that compute, or call what is the user's."""


def _hooks_in(code: types.CodeType) -> Iterator[types.CodeType]:
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield from (part,) if part.co_name == "hook" else _hooks_in(part)


CALLBACKS: set[types.CodeType] = {
    torch.autograd.function.BackwardCFunction.apply.__code__,
    torch.autograd.function.once_differentiable(lambda ctx: None).__code__,
    *(hook for method in vars(BackwardHook).values() if callable(method) for hook in _hooks_in(method.__code__)),
}
"""Functions of torch's that call what is the user's while a backward pass runs."""

COUNTS_FRAMES = words("settrace setprofile tb_next tb_frame tb_lineno setrecursionlimit")
"""What only a function that traces frames or counts them asks for: all of it is Python's, and what it calls."""
LOOKS_AT_FRAMES = COUNTS_FRAMES | words("_getframe currentframe getouterframes extract_stack format_stack print_stack")


class Router:
    """What a frame passes its callees through.

    It is a constant of code, which the garbage collector does not look into: it must not close a cycle.
    """

    def __init__(self, cache: FrameCache):
        self.cache = weakref.ref(cache)

    def __call__(self, callee: object) -> object:
        cache = self.cache()
        return callee if cache is None else route(callee, cache)


def route(callee: Any, cache: FrameCache) -> Any:
    """What to call in place of a callee, in a frame that has this cache."""
    if type(callee) is types.MethodType:
        routed = route(callee.__func__, cache)
        return callee if routed is callee.__func__ else types.MethodType(routed, callee.__self__)
    if type(callee) is types.FunctionType:
        options = cache.options
        known = callee.__dict__.get(ROUTES, {}).get(id(options))
        if known is None:
            known = options.torch_routes.get(callee)
        if known is None or known.function is not callee or state_of(known).users is not options.users:
            known = make_route(callee, cache) if worth_compiling(callee) else None
        return callee if known is None or is_stack_deep() else known
    method = lookup(type(callee), "__call__")
    if type(method) is types.FunctionType:  # modules and other callable objects
        routed = route(method, cache)
        return callee if routed is method else types.MethodType(routed, callee)
    return callee


def is_stack_deep() -> bool:
    """Whether so many calls are open that recursion should go on in eager, which takes fewer frames a call."""
    try:
        get_frame(sys.getrecursionlimit() // 3)
    except ValueError:
        return False
    return True


def make_route(callee: types.FunctionType, cache: FrameCache) -> _native.Dispatcher:
    """A dispatcher for the callee, remembered; in a new table, for the present one may be a copy of another's."""
    options = cache.options
    made = make_dispatcher(callee, options)
    state_of(made).users = options.users
    if is_nested(callee.__code__, cache.code()):  # the next call makes another function of this code
        cache.nested[id(callee.__code__)] = state_of(made).cache
    if is_defined_by_torch(callee):
        options.torch_routes[callee] = made
        return made
    known = callee.__dict__.get(ROUTES, {})
    own = {key: dispatcher for key, dispatcher in known.items() if dispatcher.function is callee}
    callee.__dict__[ROUTES] = {**own, id(options): made}
    options.routed.add(callee)
    return made


def is_defined_by_torch(function: types.FunctionType) -> bool:
    """Whether a function was made when a module of torch was loaded, not by a call that will make another."""
    return module_of(function).split(".", 1)[0] == "torch" and "<locals>" not in function.__qualname__


def release_routes(options: Options, user: object) -> None:
    """Have the routes that are made on behalf of what the user compiled go with it, if it is the last."""
    options.users.add(user)
    finalizer = weakref.finalize(user, _release, id(options), options.users, options.routed, options.torch_routes)
    finalizer.atexit = False


def _release(
    key: int, users: weakref.WeakSet[Any], functions: weakref.WeakSet[Any], torch_routes: dict[Any, Any]
) -> None:
    if list(users):  # its length may still count the one that is going
        return
    torch_routes.clear()
    for function in list(functions):
        known = function.__dict__.get(ROUTES, {}).get(key)
        if known is not None and state_of(known).users is users:
            del function.__dict__[ROUTES][key]


def is_nested(code: types.CodeType, outer: types.CodeType | None) -> bool:
    """Whether a function is made by a frame of some code, or of what it was split from."""
    if outer is None or code.co_filename != outer.co_filename:
        return False
    return code.co_qualname.startswith(f"{outer.co_qualname}.<locals>.")


def worth_compiling(function: types.FunctionType) -> bool:
    module = module_of(function)
    if is_excluded(function) or function.__code__ in TRANSPARENT_WRAPPERS or not marker_of(function).is_interpreted:
        return False
    if function.__code__ in CALLBACKS or function.__code__ in GRAPH_MODULE_CALLS:
        return True
    if module.split(".", 1)[0] in ("torch", "kiln") and not module.startswith(COMPILED_MODULES):
        return False
    if module == "copy" or function.__name__ == "__deepcopy__":
        return False  # what is copied already is known by its id, and Kiln's stand-ins have others
    if not LOOKS_AT_FRAMES.isdisjoint(function.__code__.co_names):
        return False  # it counts frames: between it and its caller there must be none of Kiln's
    flags = function.__code__.co_flags
    if flags & COROUTINE_FLAGS or (flags & GENERATOR_FLAG and module.split(".", 1)[0] in sys.stdlib_module_names):
        return False
    return not any(module == name or module.startswith(name + ".") for name in SKIPPED_MODULES)
