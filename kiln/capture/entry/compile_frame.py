"""Compiling one frame: capture it, compile its graph, and make an entry of both."""

from __future__ import annotations

import itertools
import types
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from ... import _native, exc
from ..._native import is_instance as isinstance
from ...bytecode import Bytecode, route_calls
from ...bytecode.split import CannotSplit, split
from ...bytecode.split_plan import OWN_PREFIX
from ...config import config
from ...platform.cpython import get_frame
from ...platform.python_objects import cell_is_empty
from ...platform.torch_fake import without_torch_compiler
from ...program.backend_registry import call_backend
from ...program.graph import count_operations
from ...program.inference_mode import leaving_on_errors
from ...program.quiet import quiet, without_collections
from ...program.shapes.fake_tensors import stored_shapes_in_use
from ...report import events
from ...report.stages import stage
from ..guards import cached_calls
from ..guards.descriptions import module_of_globals
from ..guards.hints import Hints
from ..guards.source import ClosureCell, Local
from ..interpreter.argument_binding import SignatureMismatch, match_arguments
from ..interpreter.frame import COROUTINE_FLAGS, GENERATOR_FLAG, NULL, Broken, Finished, Frame, RootFrame
from ..interpreter.generators import check_open_generators
from ..python.lifetimes import asks_about_lifetimes
from ..shadows.consumed_inputs import ListInput, emptying, set_examples
from ..shadows.module_hooks import MODULE_CALLS
from ..shadows.tensor_effects import conflict_with_try
from ..state.operations import Args, Kwargs
from ..state.trace import Trace
from ..state.values import BreakPoint, GraphBreak, Lazy, Restart
from ..torch.override_modes import OuterModes, enter_outer_modes, overrides_suspended
from ..torch.subclass_conversions import remove_conversions, without_overrides
from ..torch.torch_state import leaving_inference_modes
from ..writeback.rebuild import CannotRebuild
from ..writeback.rewind import Switches, can_rewind
from . import (
    all_rules,  # noqa: F401
    caller_breaks,
)
from .check_text import make_check
from .dispatchers import FrameCache, make_dispatcher, state_of
from .entry import Entry
from .graph_module import example_inputs, finish_graph, has_work, make_graph_module
from .routing import COUNTS_FRAMES, LOOKS_AT_FRAMES, Router
from .run_text import Continuation, RunText


def args_fit(function: types.FunctionType, args: Args, kwargs: Kwargs) -> bool:
    try:
        real_arguments(function, args, kwargs)
    except SignatureMismatch:
        return False
    return True


def real_arguments(function: types.FunctionType, args: Args, kwargs: Kwargs) -> dict[str, object]:
    return match_arguments(None, function, args, kwargs)


def user_stack_level() -> int:
    """How many frames above the caller of this function the first one is that is not Kiln's, as warnings count."""
    frame, level = get_frame(1), 1
    while frame.f_back is not None and module_of_globals(frame.f_globals).startswith("kiln."):
        frame, level = frame.f_back, level + 1
    return level


def compile_frame(cache: FrameCache, function: types.FunctionType, args: Args, kwargs: Kwargs) -> Entry | None:
    """Capture, compile and wrap one frame; None if it is to be left alone."""
    if function.__code__.co_flags & (COROUTINE_FLAGS | GENERATOR_FLAG):
        skip(cache, function, "a generator or coroutine function: it runs in eager")
        return None
    if function.__code__ in MODULE_CALLS:
        route_callees(cache, function)
        return None
    if any(name.startswith("_k_") for name in function.__code__.co_varnames[: parameter_count(function.__code__)]):
        skip(cache, function, "a parameter whose name begins with _k_, as names in generated code do")
        return None
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
            overrides_suspended() as outside,
        ):
            return capture(cache, function, args, kwargs, state, outside)
    except exc.BackendError as error:
        if not config.suppress_errors or cache.options.fullgraph:
            raise
        warnings.warn(f"{error}\nThe function runs in plain Python.", RuntimeWarning, stacklevel=user_stack_level())
        return None
    except (exc.KilnError, KeyboardInterrupt):
        raise
    except GraphBreak as reason:
        if cache.options.fullgraph:
            raise unsupported(reason) from reason.error
        skip(cache, function, reason.reason)
        return None
    except RecursionError:  # called with the stack nearly used up
        skip(cache, function, "calls nested too deep")
        return None
    except Exception as error:
        internal_error(cache, function, error)
        return None
    finally:
        _native.set_disabled(disabled)
        state.restore()


def parameter_count(code: types.CodeType) -> int:
    return code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)


def skip(cache: FrameCache, function: types.FunctionType, reason: str) -> None:
    """Leave a frame to Python."""
    events.skip(function, reason)
    if not function.__code__.co_flags & COROUTINE_FLAGS:
        route_callees(cache, function)


def route_callees(cache: FrameCache, function: types.FunctionType) -> None:
    """Leave a frame to Python, and compile what it calls."""
    cache.routed = route_calls(function.__code__, Router(cache))


def internal_error(cache: FrameCache, function: types.FunctionType, error: Exception) -> None:
    """A bug in Kiln must not stop the user's program: eager is right."""
    where = exc.Location.of_code(function.__code__)
    problem = exc.InternalError(f"compiling {function.__qualname__}", error, stack=[where])
    if config.raise_internal_errors or cache.options.fullgraph:
        raise problem from error
    warnings.warn(f"{problem}\nThe function runs in plain Python.", RuntimeWarning, stacklevel=user_stack_level())


def capture(
    cache: FrameCache,
    function: types.FunctionType,
    args: Args,
    kwargs: Kwargs,
    state: Switches,
    outside: OuterModes,
) -> Entry:
    """Trace until nothing more is learnt: each restart moves a break earlier."""
    forced = caller_breaks.break_of(function.__code__)
    for _ in range(100):
        state.restore()
        trace = Trace(function, cache.options, cache.hints)
        enter_outer_modes(trace, outside)
        frame = trace.root = RootFrame(trace, function, root_locals(function, args, kwargs))
        try:
            with stage("capture") as record, quiet(), without_collections(), leaving_inference_modes(trace):
                outcome = frame.run_root(forced)
                if record is not None:
                    record.sizes["nodes"] = count_operations(trace.graph)
            if trace.progress.start_over:
                continue
            if (
                isinstance(outcome, Broken)
                and cache.options.fullgraph
                and outcome.reason.reason != "config.break_every"
            ):
                raise unsupported(outcome.reason) from outcome.reason.error
            check_open_generators(trace, outcome)
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


def root_locals(function: types.FunctionType, args: Args, kwargs: Kwargs) -> dict[str, object]:
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
    remove_conversions(trace, outputs)
    inputs = finish_graph(trace, outputs, text.lists)
    graph_module = graph = None
    if has_work(trace.graph):
        graph_module, graph = compile_graph(cache, trace, inputs, state)
    with stage("guards") as record:
        check = make_check(trace, state.state, inputs)
        check_function = check.write()
        if record is not None:
            record.sizes["guards"] = len(trace.guards.describe())
    rewindable = can_rewind(trace) and not text.lists  # what it would begin with is gone
    if trace.effects.in_try and trace.effects.reasons and not rewindable:
        raise conflict_with_try(trace, trace.effects.reasons[0], whole=True)
    eager = events.eager_fallback(trace.effects.in_with) if rewindable else None
    with stage("entry") as record:
        run_function = text.write(graph, inputs, eager, check)
        if record is not None:
            record.sizes["lines"] = run_function.text.count("\n")
    entry = Entry(
        check_function,
        run_function,
        trace.guards,
        state.state,
        check.tensor_check,
        graph_module,
        events.Break.of(outcome.reason) if isinstance(outcome, Broken) else None,
        [guard.source for guard in trace.guards.tensors],
    )
    forget_reals(trace)
    events.entry(
        trace, entry, already_reported=isinstance(outcome, Broken) and caller_breaks.is_reported(outcome.reason)
    )
    return entry


def forget_reals(trace: Trace) -> None:
    """The entry lives long; the arguments of the call that made it must not."""
    for guard in trace.guards.tensors:
        guard.forget()


def compile_graph(
    cache: FrameCache, trace: Trace, inputs: list[Any], state: Switches
) -> tuple[torch.fx.GraphModule, Callable[..., Any]]:
    if config.raise_internal_errors:
        trace.graph.lint()  # else a bad graph would only show as a slow one: it raises, and eager takes over
    module = make_graph_module(trace)
    events.graph(trace, module)
    state.restore()
    where = exc.Location.of_code(trace.function.__code__)
    with stage("backend", cache.options.backend_name) as record:
        compiled = call_backend(cache.options, module, example_inputs(inputs), where)
        if record is not None:
            record.sizes["nodes"] = count_operations(module.graph)
    lists = tuple([place for place, item in enumerate(inputs) if isinstance(item, ListInput)])
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

    def wrap_segment(function: types.FunctionType, segment: object) -> Callable[..., Any]:
        set_examples(function, examples)
        dispatcher = make_dispatcher(function, options)
        made = state_of(dispatcher).cache
        made.hints, made.continues = Hints(cache.hints), True
        return dispatcher

    skeleton = parts.build(frame.globals, wrap_segment, Router(cache))
    continuation = cache.skeletons[key] = Continuation(skeleton, parts.parameters, parts.stack)
    return continuation


def check_frame(trace: Trace, frame: Frame, reason: GraphBreak) -> None:
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
