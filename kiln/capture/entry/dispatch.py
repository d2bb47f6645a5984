"""The dispatcher: calls, misses, compiling a frame, recompiles and their limit, and routing uninlined callees here.

``kiln.compile(f)`` is a native ``Dispatcher`` whose slow path is :func:`miss`. What is compiled belongs to a
:class:`FrameCache`, one per code object and set of options; a dispatcher binds its entries to its function object.
"""

from __future__ import annotations

import builtins
import functools
import itertools
import sys
import types
import warnings
import weakref
from collections.abc import Callable

import torch
import torch.fx

from ... import _native, exc
from ..._native import is_instance as isinstance
from ...bytecode import Bytecode, route_calls
from ...bytecode.plan import OWN_PREFIX
from ...bytecode.split import CannotSplit, split
from ...config import config
from ...forking import new_lock
from ...platform.cpython import get_frame
from ...platform.python_objects import cell_is_empty
from ...program.backend_registry import call_backend
from ...program.inference_mode import leaving_on_errors
from ...program.quiet import quiet, without_collections, without_frequent_collections
from ...program.shapes.fake_tensors import stored_shapes_in_use, without_torch_compiler
from ...report import bytecode_hooks, events
from ..guards import cached_calls
from ..guards.descriptions import module_of_globals
from ..guards.hints import Hints
from ..guards.source import ClosureCell, Local
from ..guards.tensor_class import operator_is_replaced
from ..interpreter import caller_breaks
from ..interpreter.calls import DoesNotFit, matched_arguments
from ..interpreter.frame import COROUTINE_FLAGS, GENERATOR_FLAG, NULL, Broken, Finished, RootFrame
from ..interpreter.generators import settle_generators
from ..python.lifetimes import asks_about_lifetimes
from ..shadows.consumed_inputs import StolenInput, emptying, tell_examples
from ..shadows.module_hooks import PASSING_ON
from ..shadows.tensor_effects import conflict_with_try
from ..state.annotations import Arrival, stance
from ..state.trace import Options, Trace
from ..state.values import BreakPoint, GraphBreak, Lazy, Restart
from ..torch.overrides import (
    Outside,
    enter_outer_modes,
    is_intercepted,
    overrides_aside,
    take_out_conversions,
    without_overrides,
)
from ..torch.torch_state import inference_modes_left, questions_are_replaced
from ..writeback.rebuild import CannotRebuild
from ..writeback.rewind import Switches, can_rewind
from . import all_rules  # noqa: F401
from .entry import Continuation, Entry, RunText, example_inputs, finish_graph, has_work, make_check, make_graph_module
from .routing import COUNTS_FRAMES, LOOKS_AT_FRAMES, Router, release_routes

COMPILE_LOCK = new_lock()


class FrameCache:
    """All entries for one code object under one set of options."""

    def __init__(self, code: types.CodeType, options: Options):
        self.code = weakref.ref(code)
        self.options = options
        self.entries: list[Entry] = []
        self.hints = Hints()
        self.skeletons: dict[tuple, Continuation] = {}
        self.nested: dict[int, FrameCache] = {}  # of functions that frames of this code make and call, by their code
        self.gave_up = False
        self.continues = False  # another frame, after a graph break
        self.routed: types.CodeType | None = None  # what a frame that is left alone runs: its calls may be compiled


MOST_ENTRIES = 64
"""How many entries functions of one code share, the latest ones. A factory may make classes without end, each with its
own entry; dispatchers keep those that they use themselves."""

_CACHES: weakref.WeakValueDictionary[tuple, FrameCache] = weakref.WeakValueDictionary()


def cache_for(function: types.FunctionType, options: Options) -> FrameCache:
    """The cache of a function's code; of its globals too, since continuations are functions with globals."""
    code = function.__code__
    key = (id(code), id(function.__globals__), id(options))
    cache = _CACHES.get(key)
    if cache is None or cache.code() is not code:
        cache = _CACHES[key] = FrameCache(code, options)
    return cache


_DISPATCHERS: weakref.WeakSet = weakref.WeakSet()


def make_dispatcher(function: types.FunctionType, options: Options) -> _native.Dispatcher:
    """A callable that compiles the function as it is called."""
    dispatcher = _native.Dispatcher(function, miss)
    dispatcher.__dict__["_kiln_cache"] = cache_for(function, options)
    dispatcher.__dict__["_kiln_bound"] = {}
    dispatcher.__dict__["_kiln_reasons"] = []
    dispatcher.changed = redefined
    _DISPATCHERS.add(dispatcher)
    return dispatcher


def make_compiled(function: types.FunctionType, options: Options) -> _native.Dispatcher:
    """The dispatcher that the user gets. While there is one, what was compiled on its behalf is in use."""
    options = shared(options)
    dispatcher = make_dispatcher(function, options)
    release_routes(options, dispatcher)
    return dispatcher


_OPTIONS: weakref.WeakValueDictionary[tuple, Options] = weakref.WeakValueDictionary()


def shared(options: Options) -> Options:
    """Those in use that ask for the same: what is compiled under them is shared, as far as code is."""
    own = id(options) if options.options or options.on_recompile else 0
    key = (id(options.backend), options.fullgraph, options.dynamic, options.compiled_autograd, own)
    return _OPTIONS.setdefault(key, options)


def redefined(dispatcher: _native.Dispatcher) -> None:
    """The function got another ``__code__`` or other defaults."""
    cache = dispatcher.__dict__["_kiln_cache"]
    dispatcher.__dict__["_kiln_cache"] = cache_for(dispatcher.function, cache.options)
    dispatcher.__dict__["_kiln_bound"] = {}
    dispatcher.__dict__["_kiln_reasons"] = []


def bind_anew() -> None:
    """Have all compiled functions make their checks again."""
    for dispatcher in list(_DISPATCHERS):
        dispatcher.__dict__["_kiln_bound"] = {}
        dispatcher.entries[:] = [pair for pair in dispatcher.entries if pair[0] is None]


sys.meta_path.insert(0, Arrival(bind_anew))  # type: ignore[arg-type]


BUILTINS = vars(builtins)
BUILTIN_NAMES = frozenset(BUILTINS) - {"_"}  # which the interactive interpreter sets


def miss(dispatcher: _native.Dispatcher, args: tuple, kwargs: dict) -> object:
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
                run = known_entry(dispatcher, dispatcher.__dict__["_kiln_cache"], function, args, kwargs) or function
            elif asked_for == "fail_on_recompile":
                with config.patch(error_on_recompile=True):
                    run = find_or_compile(dispatcher, function, args, kwargs)
            else:
                run = find_or_compile(dispatcher, function, args, kwargs)
        return run(*args, **kwargs)


def find_or_compile(dispatcher, function, args: tuple, kwargs: dict, again: bool = False) -> Callable:
    cache: FrameCache = dispatcher.__dict__["_kiln_cache"]
    dispatcher.sync()
    run = known_entry(dispatcher, cache, function, args, kwargs)
    if run is not None:
        return run
    if _native.is_disabled() or is_intercepted() or is_torch_replaced() or not args_fit(function, args, kwargs):
        return function  # eager as asked for, or for CPython's own TypeError
    if cache.gave_up:
        return leave_alone(dispatcher, function)
    reason = explain_miss(cache, function, args, kwargs)
    if reason is not None:
        if config.error_on_recompile:
            raise exc.RecompileError(function.__qualname__, reason, exc.Location.of_code(function.__code__))
        dispatcher.__dict__["_kiln_reasons"].append(reason)
    # Modules of one class share entries: what counts is how many this one has used, whoever had them compiled.
    if len(dispatcher.__dict__["_kiln_bound"]) >= config.recompile_limit:
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
        return leave_alone(dispatcher, function)
    cache.entries.append(entry)
    del cache.entries[:-MOST_ENTRIES]
    pair = dispatcher.__dict__["_kiln_bound"][entry] = entry.bind(function)
    if not cache.continues:
        bytecode_hooks.show(function.__code__, pair[1])  # type: ignore[arg-type]
    dispatcher.entries.append(pair)
    answer = asked(pair[0], args, kwargs)
    if answer is not False:
        return ready(pair[1], answer)
    if not again:  # while it was compiled, another thread or a finalizer may have changed what it looked at
        cache.entries.remove(entry)
        dispatcher.entries.remove(pair)
        del dispatcher.__dict__["_kiln_bound"][entry]
        return find_or_compile(dispatcher, function, args, kwargs, again=True)
    if config.raise_internal_errors:
        reason = explain_miss(cache, function, args, kwargs)
        problem = AssertionError(f"the guards do not hold for the very call they were made from ({reason})")
        raise exc.InternalError(f"compiling {function.__qualname__}", problem)
    return function


def is_torch_replaced() -> bool:
    """Whether the program has put something of its own where capture itself, and fake tensors, rely on torch."""
    return operator_is_replaced() or questions_are_replaced()


def raising(function: types.FunctionType, problem: exc.Unsupported) -> Callable:
    """Under ``fullgraph`` a program that raises is run in eager: its own error, at its own line, is the best report."""

    def run(*args, **kwargs):
        function(*args, **kwargs)
        raise problem

    return run


def known_entry(dispatcher, cache: FrameCache, function, args: tuple, kwargs: dict) -> Callable | None:
    """An entry that another thread or another function object of the same code has had compiled meanwhile."""
    bound: dict = dispatcher.__dict__["_kiln_bound"]
    for entry in cache.entries:
        pair = bound.get(entry)
        fresh = pair is None
        if pair is None:
            pair = entry.bind(function)
        answer = asked(pair[0], args, kwargs)
        if answer is not False:
            if fresh:
                bound[entry] = pair
                dispatcher.entries.append(pair)
            return ready(pair[1], answer)
    return None


def leave_alone(dispatcher, function) -> Callable:
    """Run this function in eager from now on, without asking again."""
    code = dispatcher.__dict__["_kiln_cache"].routed
    if code is not None:
        original, function = (
            function,
            types.FunctionType(
                code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
            ),
        )
        function.__kwdefaults__, function.__qualname__ = original.__kwdefaults__, original.__qualname__
    if all(check is not None for check, _ in dispatcher.entries):
        dispatcher.entries.append((None, function))
    return function


def asked(check: Callable, args: tuple, kwargs: dict) -> object:
    """What a check says: no, yes, or the inputs that it has read for the run function."""
    try:
        return check(*args, **kwargs)
    except Exception:
        return False


def ready(run: Callable, answer: object) -> Callable:
    """A run function with what its check has read."""
    return run if answer is True else functools.partial(run, answer)


def args_fit(function: types.FunctionType, args: tuple, kwargs: dict) -> bool:
    try:
        real_arguments(function, args, kwargs)
    except DoesNotFit:
        return False
    return True


def real_arguments(function: types.FunctionType, args: tuple, kwargs: dict) -> dict[str, object]:
    return matched_arguments(None, function, args, kwargs)


# -- misses ---------------------------------------------------------------------------------------------------------


def explain_miss(cache: FrameCache, function, args: tuple, kwargs: dict) -> str | None:
    """Why no entry fits (None if there is none yet); learns which sizes and numbers vary."""
    from .misses import reason_for_miss

    reason = None
    for entry in cache.entries:
        reason = reason_for_miss(entry, function, args, kwargs, cache.hints)
    return reason


def give_up(cache: FrameCache, dispatcher, function) -> Callable:
    """The function needed compiling too often: eager from now on, and one warning with the reasons."""
    code = function.__code__
    reasons = dispatcher.__dict__["_kiln_reasons"]
    details = (code.co_qualname, config.recompile_limit, list(dict.fromkeys(reasons)), exc.Location.of_code(code))
    if cache.options.fullgraph:
        del reasons[-1:]
        raise exc.RecompileLimitExceeded(*details)
    leave_alone(dispatcher, function)
    warnings.warn(exc.RecompileWarning.about(*details), stacklevel=level_of_the_user())
    return function


def level_of_the_user() -> int:
    """How many frames above the caller of this function the first one is that is not Kiln's, as warnings count."""
    frame, level = get_frame(1), 1
    while frame.f_back is not None and module_of_globals(frame.f_globals).startswith("kiln."):
        frame, level = frame.f_back, level + 1
    return level


# -- compiling ------------------------------------------------------------------------------------------------------


def compile_frame(cache: FrameCache, function: types.FunctionType, args: tuple, kwargs: dict) -> Entry | None:
    """Capture, compile and wrap one frame; None if it is to be left alone."""
    if function.__code__.co_flags & (COROUTINE_FLAGS | GENERATOR_FLAG):
        return skip(cache, function, "a generator or coroutine function: it runs in eager")
    if function.__code__ in PASSING_ON:
        return pass_on(cache, function)
    if any(name.startswith("_k_") for name in function.__code__.co_varnames[: parameter_count(function.__code__)]):
        return skip(cache, function, "a parameter whose name begins with _k_, as names in generated code do")
    if not COUNTS_FRAMES.isdisjoint(function.__code__.co_names):
        events.skip(function, "it traces or counts frames")  # and what it calls must have no frames of Kiln's between
        return None
    state = Switches()
    disabled = _native.set_disabled(True)
    try:
        with (
            events.compiling(function),
            cached_calls.session(),
            without_torch_compiler(),
            stored_shapes_in_use(function.__code__),
            overrides_aside() as outside,
        ):
            return attempts(cache, function, args, kwargs, state, outside)
    except exc.BackendError as error:
        if not config.suppress_errors or cache.options.fullgraph:
            raise
        warnings.warn(f"{error}\nThe function runs in plain Python.", RuntimeWarning, stacklevel=level_of_the_user())
        return None
    except (exc.KilnError, KeyboardInterrupt):
        raise
    except GraphBreak as reason:
        if cache.options.fullgraph:
            raise unsupported(reason) from reason.error
        return skip(cache, function, reason.reason)
    except RecursionError:  # called with the stack nearly used up
        return skip(cache, function, "calls nested too deep")
    except Exception as error:
        return internal_error(cache, function, error)
    finally:
        _native.set_disabled(disabled)
        state.restore()


def parameter_count(code: types.CodeType) -> int:
    return code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)


def skip(cache: FrameCache, function: types.FunctionType, reason: str) -> None:
    events.skip(function, reason)
    if not function.__code__.co_flags & COROUTINE_FLAGS:
        pass_on(cache, function)


def pass_on(cache: FrameCache, function: types.FunctionType) -> None:
    """Leave a frame to Python, and compile what it calls."""
    cache.routed = route_calls(function.__code__, Router(cache))


def internal_error(cache: FrameCache, function: types.FunctionType, error: Exception) -> None:
    """A bug in Kiln must not stop the user's program: eager is right."""
    where = exc.Location.of_code(function.__code__)
    problem = exc.InternalError(f"compiling {function.__qualname__}", error, stack=[where])
    if config.raise_internal_errors or cache.options.fullgraph:
        raise problem from error
    warnings.warn(f"{problem}\nThe function runs in plain Python.", RuntimeWarning, stacklevel=level_of_the_user())


def attempts(cache: FrameCache, function, args: tuple, kwargs: dict, state, outside: Outside) -> Entry | None:
    """Trace until nothing more is learnt: each restart moves a break earlier."""
    forced = caller_breaks.break_of(function.__code__)
    for _ in range(100):
        state.restore()
        trace = Trace(function, cache.options, cache.hints)
        enter_outer_modes(trace, outside)
        frame = trace.root = RootFrame(trace, function, root_locals(function, args, kwargs))
        try:
            with quiet(), without_collections(), inference_modes_left(trace):
                outcome = frame.run_root(forced)
            if trace.progress.start_over:
                continue
            if (
                isinstance(outcome, Broken)
                and cache.options.fullgraph
                and outcome.reason.reason != "config.break_every"
            ):
                raise unsupported(outcome.reason) from outcome.reason.error
            settle_generators(trace, outcome)
            return assemble_entry(cache, trace, outcome, state)
        except Restart as restart:
            forced = forced if trace.progress.start_over else restart.args[0]
        except GraphBreak:
            if not trace.progress.start_over:
                raise
        except CannotRebuild as problem:
            forced = creation_point(trace, problem)
        finally:
            trace.discard()
    raise GraphBreak("capture did not settle")


def creation_point(trace: Trace, problem: CannotRebuild) -> BreakPoint:
    """Where to break instead: the root instruction that made what cannot be made again."""
    place = trace.unbuildable.place_made(problem.value) or trace.root.produced.get(id(problem.value))
    if place is None:
        raise trace.fail(f"{problem.reason}, and Kiln cannot carry it over a graph break")
    reason = trace.fail(f"{problem.reason}; it is made by Python instead")
    return BreakPoint(*place, reason)


def root_locals(function: types.FunctionType, args: tuple, kwargs: dict) -> dict[str, object]:
    bound = real_arguments(function, args, kwargs)
    return {name: Lazy(value, Local(name)) for name, value in bound.items()}


def unsupported(reason: GraphBreak) -> BaseException:
    """The error for a break where there is to be one graph."""
    if reason.instead is not None:
        return reason.instead
    stack = [exc.Location(*place) for place in reason.stack]
    return exc.Unsupported(reason.reason, hint=reason.hint or exc.DEFAULT_HINT, stack=stack)


def assemble_entry(cache: FrameCache, trace: Trace, outcome: Finished | Broken, state: Switches) -> Entry:
    """Turn an outcome into an entry: rebuild text, graph, check."""
    continuation = None
    if isinstance(outcome, Broken):
        continuation = continue_after(cache, trace, outcome)
    text = RunText(trace, outcome, continuation)
    if trace.effects.in_try:
        text.keep_lists()  # should the graph raise, eager begins anew
    outputs = list(text.rebuilder.outputs)
    take_out_conversions(trace, outputs)  # type: ignore[arg-type]
    inputs = finish_graph(trace, outputs, text.lists)  # type: ignore[arg-type]
    graph_module = graph = None
    if has_work(trace.graph):
        graph_module, graph = compile_graph(cache, trace, inputs, state)
    check = make_check(trace, state.state, inputs)
    check_text = check.write()
    rewindable = can_rewind(trace) and not text.lists  # what it would begin with is gone
    if trace.effects.in_try and trace.effects.reasons and not rewindable:
        raise conflict_with_try(trace, trace.effects.reasons[0], whole=True)
    eager = events.takes_over(trace.effects.in_with) if rewindable else None
    run_text = text.write(graph, inputs, eager, check)
    entry = Entry(
        check_text,
        run_text,
        check.namespace,
        text.rebuilder.namespace,
        list(trace.guards),
        graph_module,
        trace.guards,
        tensor_check=check.tensor_check,
        tensor_sources=[guard.source for guard in trace.guards.tensors],
        break_reason=events.Break.of(outcome.reason) if isinstance(outcome, Broken) else None,
        state=state.state,
    )
    forget_reals(trace)
    events.entry(trace, entry, retold=isinstance(outcome, Broken) and caller_breaks.is_retold(outcome.reason))
    return entry


def forget_reals(trace: Trace) -> None:
    """The entry lives long; the arguments of the call that made it must not."""
    for guard in trace.guards.tensors:
        guard.forget()


def compile_graph(cache: FrameCache, trace: Trace, inputs: list, state) -> tuple[torch.fx.GraphModule, Callable]:
    if config.raise_internal_errors:
        trace.graph.lint()  # else a bad graph would only show as a slow one: it raises, and eager takes over
    module = make_graph_module(trace)
    events.graph(trace, module)
    state.restore()
    where = exc.Location.of_code(trace.function.__code__)
    compiled = call_backend(cache.options, module, example_inputs(inputs), where)
    lists = tuple([place for place, item in enumerate(inputs) if isinstance(item, StolenInput)])
    if lists:
        compiled = emptying(compiled, lists)
    if trace.switches.inference_used:
        compiled = leaving_on_errors(compiled)
    if trace.overrides.has_overriding or trace.overrides.outer_modes:
        compiled = without_overrides(compiled, dict(trace.overrides.conversions))
    return module, compiled


def continue_after(cache: FrameCache, trace: Trace, outcome: Broken) -> Continuation:
    """The skeleton that runs the broken instruction natively and goes on in compiled segments."""
    frame = outcome.frame
    check_frame(trace, frame, outcome.reason)
    nulls = tuple(value is NULL for value in frame.stack)
    key = (outcome.index, nulls)
    known = cache.skeletons.get(key)
    if known is not None:
        return known
    try:
        parts = split(frame.code, outcome.index, nulls)
    except CannotSplit as error:
        raise trace.fail(f"{outcome.reason.reason} ({error})") from None
    options, examples = cache.options, trace.inputs.examples

    def wrap_segment(function, segment):
        tell_examples(function, examples)
        dispatcher = make_dispatcher(function, options)
        dispatcher.__dict__["_kiln_cache"].hints = Hints(cache.hints)
        dispatcher.__dict__["_kiln_cache"].continues = True
        return dispatcher

    skeleton = parts.build(frame.globals, wrap_segment, Router(cache))
    continuation = cache.skeletons[key] = Continuation(skeleton, parts.parameters, parts.stack)
    return continuation


def check_frame(trace: Trace, frame: RootFrame, reason: GraphBreak) -> None:
    """Continuations are other frames: where the program could tell, the function runs in eager as a whole."""
    if sees_locals(frame.bytecode):
        raise trace.fail(f"{reason.reason} (in a function that looks at its own local variables or frame)")
    if asks_about_lifetimes(trace.function, frame.code):
        raise trace.fail(f"{reason.reason} (in a function that asks whether objects are alive)")
    for index, name in enumerate(frame.code.co_freevars):
        if name.startswith(OWN_PREFIX):
            continue
        if cell_is_empty(frame.cells[name]):
            raise trace.fail(f"{reason.reason} (while the free variable {name!r} is not bound)")
        if trace.outside.record_of(frame.cells[name]) is not None:
            trace.guards.add(ClosureCell(index, name), "full_cell")


LOOKS_AT_LOCALS = frozenset({"locals", "eval", "exec"})


def sees_locals(bytecode: Bytecode) -> bool:
    """Whether code calls ``locals()``, ``eval``, ``exec``, ``vars()`` or ``dir()``, or asks for its own frame."""
    for instruction, following in itertools.pairwise(bytecode.instructions):
        if instruction.op.startswith("LOAD_") and instruction.argval in LOOKS_AT_FRAMES:
            return True
        if instruction.op not in ("LOAD_GLOBAL", "LOAD_NAME"):
            continue
        bare_call = following.op in ("PRECALL", "CALL") and following.arg == 0
        if instruction.argval in LOOKS_AT_LOCALS or (instruction.argval in ("vars", "dir") and bare_call):
            return True
    return False


def reset() -> None:
    """Forget everything compiled."""
    with COMPILE_LOCK:
        _CACHES.clear()
        for dispatcher in list(_DISPATCHERS):
            dispatcher.entries = []
            redefined(dispatcher)
