"""``torch.compile`` and the functions of ``torch._dynamo``, on Kiln."""

from __future__ import annotations

import collections
import copy
import functools
import types
import weakref
from collections.abc import Callable
from dataclasses import field
from typing import Any

import torch

from .. import _native, api, api_rules, exc
from ..capture.interpreter.call_rules import rule
from ..capture.state.annotations import is_asked_by_torch
from ..config import config
from ..explain import explain as kiln_explain
from ..modules import OptimizedModule
from ..platform.light_dataclass import dataclass
from ..platform.python_objects import words
from ..platform.torch_compiler import ORIGINAL
from ..platform.torch_operators import core_aten_decompositions
from ..platform.torch_pytree import tree_leaves, tree_structure, tree_unflatten
from ..program import modes
from ..program.backend_registry import list_backends, lookup_backend, register_backend
from . import aot, internals
from .guard_failures import GuardFail, translated
from .settings import dynamo_config, inductor_config

DEFAULT_BACKEND = "inductor"  # what torch calls its own code generator, in place of which stands Kiln's


def find_backend(backend: Any) -> Any:
    """The backend behind a name that programs use."""
    if backend is None or backend == DEFAULT_BACKEND:
        return config.backend
    if not isinstance(backend, str) or backend in list_backends():
        return backend
    return ahead_of_time_backend(backend) if backend in AHEAD_OF_TIME else backend


# Backends that differentiate ahead of time and run op by op, beside `aot_eager`, which is Kiln's own.
AHEAD_OF_TIME: dict[str, Callable[[], dict[str, Any]]] = {
    "aot_eager_default_partitioner": lambda: {"partition_fn": aot.ROWS["default_partition"]},
    "aot_eager_decomp_partition": lambda: {"decompositions": core_aten_decompositions()},
}


@functools.cache
def ahead_of_time_backend(name: str) -> Callable[..., Any]:
    """One object for each name: functions compiled with it share what is compiled."""
    made = aot.aot_autograd(fw_compiler=aot.nop, **AHEAD_OF_TIME[name]())
    made.__name__ = name
    return made


def lookup(backend: Any) -> Any:
    """``torch._dynamo.lookup_backend``."""
    return lookup_backend(find_backend(backend))


def compile_graph(gm: Any, example_inputs: Any, options: Any = None) -> Any:
    """``torch._inductor.compile``: Kiln's default backend, for graphs that give anything (captured: tuples)."""
    check_options(options)
    (output,) = gm.graph.find_nodes(op="output")
    if type(output.args[0]) is tuple:
        return lookup(DEFAULT_BACKEND)(gm, example_inputs)
    structure = tree_structure(output.args[0])
    flat = torch.fx.GraphModule(gm, copy.deepcopy(gm.graph))
    (output,) = flat.graph.find_nodes(op="output")
    output.args = (tuple(tree_leaves(output.args[0])),)
    flat.recompile()
    compiled = lookup(DEFAULT_BACKEND)(flat, example_inputs)
    return lambda *inputs: tree_unflatten(compiled(*inputs), structure)


def compile_fx(model_: Any, example_inputs_: Any, *arguments: Any, **options: Any) -> Any:
    """``torch._inductor.compile_fx.compile_fx``: the same, as a backend."""
    return compile_graph(model_, example_inputs_)


# What torch's modes mean to Kiln's backend.
MODES: dict[str, dict[str, Any]] = {**modes.MODES, "lite": {}}
CUDA_GRAPHS = "triton.cudagraphs"


def options_of(options: dict[str, Any] | None, mode: str | None) -> dict[str, Any]:
    """What modes and options for torch's default backend ask of Kiln's; the rest has no effect."""
    if find_backend(None) != "kiln":
        return {}
    if mode is not None:
        return MODES[mode]
    return {"cuda_graphs": True} if (options or {}).get(CUDA_GRAPHS) else {}


def check_options(options: dict[str, Any] | None, mode: str | None = None) -> None:
    """Names of modes and options that torch does not know are mistakes."""
    if mode is not None and mode not in MODES:
        raise RuntimeError(f"Unrecognized mode={mode}, should be one of: {', '.join(MODES)}")
    for name in options or ():
        try:
            functools.reduce(getattr, name.replace("-", "_").split("."), inductor_config)
        except AttributeError:
            hint = exc.did_you_mean(name, dir(inductor_config))
            raise RuntimeError(f"Unexpected optimization option {name}: {hint}") from None


def backends(exclude_tags: Any = ()) -> list[str]:
    """``torch._dynamo.list_backends``; Kiln's backends have no tags."""
    return list_backends()


def register(compiler_fn: Any = None, name: str | None = None, tags: Any = ()) -> Any:
    """``torch._dynamo.register_backend``."""
    return register_backend(compiler_fn, name)


# -- compiling ------------------------------------------------------------------------------------------------------


def compile(
    model: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: Any = None,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    disable: bool = False,
    **accepted: Any,
) -> Any:
    """``torch.compile``: Kiln's compiler with torch's arguments.

    Of the ``mode`` and ``options``, which steer torch's default backend, Kiln's takes what concerns CUDA graphs.
    Another backend gets all of them.
    """
    check_accepted("torch.compile", accepted)
    if internals.in_higher_order_operator():
        return internals.higher_order_operator(model)
    if mode is not None and options is not None:
        raise RuntimeError("Either mode or options can be specified, but both can't be specified at the same time.")
    more: dict[str, Any] = {}
    if backend in (None, DEFAULT_BACKEND):
        check_options(options, mode)
        more |= options_of(options, mode)
    if callable(backend):
        more |= {"mode": mode} if mode not in (None, "default") else {}
        more |= {"options": options} if options else {}
    chosen = Optimize(backend, nopython=fullgraph, dynamic=dynamic, disable=disable, options=more)
    return chosen if model is None else chosen(model)


# Arguments that torch's functions take, in one release or another, and that have no effect on Kiln.
ACCEPTED = words("name recompile_limit isolate_recompiles shapes_spec guard_filter_fn rebuild_ctx export package hooks")


def check_accepted(function: str, arguments: dict[str, Any]) -> None:
    for name, value in arguments.items():
        if name == "guard_export_fn" and value is not None:
            raise exc.NotAvailable(name, "Kiln's guards are not torch's", "look at kiln.explain(f)(…).guards")
        if name not in ACCEPTED | {"guard_export_fn"}:
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")


def optimize(
    backend: Any = None,
    *,
    nopython: bool = False,
    guard_fail_fn: Callable[[GuardFail], object] | None = None,
    disable: bool = False,
    dynamic: bool | None = None,
    **accepted: Any,
) -> Optimize:
    """``torch._dynamo.optimize``: a decorator for functions and modules, and a ``with`` block (see `Optimize`)."""
    check_accepted("torch._dynamo.optimize", accepted)
    return Optimize(
        backend, nopython=nopython, dynamic=dynamic, disable=disable, guard_fail_fn=guard_fail_fn, options={}
    )


def optimize_assert(backend: Any = None, **arguments: Any) -> Optimize:
    """``torch._dynamo.optimize_assert``: one graph, or an error."""
    return optimize(backend, **{**arguments, "nopython": True})


MOST_KEPT = 64
_kept: collections.deque[Any] = collections.deque(maxlen=MOST_KEPT)


def keep(compiled: Any) -> None:
    """Have what is compiled outlive what it was compiled for, as torch's does with the code, until ``reset``.

    It holds no modules and no tensors. Programs compile a model anew for each call, and count on finding what they had.
    """
    from ..capture.entry.dispatchers import state_of

    called = compiled.__dict__["_kiln_call"] if isinstance(compiled, OptimizedModule) else compiled
    called = called.__wrapped__ if api.has_backward_scope(called) else called
    if isinstance(called, _native.Dispatcher) and (cache := state_of(called).cache) not in _kept:
        _kept.append(cache)


class Optimize:
    """What ``torch._dynamo.optimize(…)`` gives.

    As a ``with`` block, which torch deprecates and refuses unless ``raise_on_ctx_manager_usage`` is off, it compiles
    the modules that are called in it. Functions called in it run as they are: Kiln hooks no frames.
    """

    def __init__(
        self,
        backend: Any,
        *,
        nopython: bool,
        dynamic: bool | None,
        options: dict[str, Any],
        disable: bool = False,
        guard_fail_fn: Callable[[GuardFail], object] | None = None,
    ):
        self.disable = disable
        self.arguments = {
            "backend": find_backend(backend),
            "fullgraph": nopython,
            "dynamic": dynamic,
            "options": options,
            "on_recompile": None if guard_fail_fn is None else on_recompile(guard_fail_fn),
        }

    def __call__(self, target: Any) -> Any:
        if self.disable:
            return target
        dynamic = self.arguments["dynamic"]
        if dynamic is None and not dynamo_config.assume_static_by_default:
            dynamic = True
        compiled = api.compile(target, **{**self.arguments, "dynamic": dynamic})
        keep(compiled)
        if isinstance(compiled, _native.Dispatcher) or api.has_backward_scope(compiled):
            compiled.__dict__.setdefault(ORIGINAL, target)  # how libraries find the original
        return compiled

    def __enter__(self) -> None:
        if dynamo_config.raise_on_ctx_manager_usage:
            raise RuntimeError(
                "torch._dynamo.optimize(…) is used with a context manager. Use it as a decorator, or "
                "torch.compile(model); with torch._dynamo.config.raise_on_ctx_manager_usage = False, Kiln compiles "
                "the modules called in the block."
            )
        internals.GenerationTracker.generation += 1
        self.calls = ModuleCalls(self)

    def __exit__(self, *error: object) -> None:
        self.calls.remove()


class ModuleCalls:
    """While there: every outermost call of a module is a compiled one."""

    def __init__(self, compiler: Callable[[Any], Any]):
        self.before = before = torch.nn.Module.__call__
        self.compiled: weakref.WeakKeyDictionary[torch.nn.Module, Any] = weakref.WeakKeyDictionary()

        def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            set_module_call(before)
            try:
                if module not in self.compiled:
                    self.compiled[module] = compiler(module)
                return self.compiled[module](*args, **kwargs)
            finally:
                set_module_call(call)

        set_module_call(call)

    def remove(self) -> None:
        set_module_call(self.before)


def set_module_call(call: Callable[..., Any]) -> None:
    setattr(torch.nn.Module, "__call__", call)  # noqa: B010


def on_recompile(guard_fail_fn: Callable[[GuardFail], object]) -> Callable[[types.FunctionType, str], object]:
    return lambda function, reason: guard_fail_fn(GuardFail(translated(reason), function.__code__))


# -- keeping out, and in --------------------------------------------------------------------------------------------

KEPT_OUT = "__dynamo_disable"  # where torch remembers what it has disabled for the functions of its own
_kept_out: list[weakref.ref[Any]] = []


def disable(fn: Any = None, recursive: bool = True, *, reason: str | None = None, wrapping: bool = True) -> Any:
    """``torch._dynamo.disable``, also without arguments and as a context manager.

    ``recursive=False`` would let Kiln compile what the function calls; it is left to plain Python as well.
    """
    if fn is None:
        return api.disable()
    if not wrapping:  # torch's own functions: it remembers what it gets, and must not do so for longer than we stay
        _kept_out.append(weakref.ref(fn))
    return api.disable(fn)


def forget_kept_out() -> None:
    """Let torch ask its own compiler again about the functions it keeps out of it."""
    for reference in _kept_out:
        function = reference()
        if function is not None and hasattr(function, KEPT_OUT):
            delattr(function, KEPT_OUT)
    _kept_out.clear()


def run(fn: Any = None) -> Any:
    """``torch._dynamo.run``: nothing new is compiled; on Kiln, the original function runs."""
    return api.disable() if fn is None else disable(fn)


def assume_constant_result(fn: Any) -> Any:
    """``torch._dynamo.assume_constant_result``. Kiln looks inside and guards what the result depends on."""
    return fn


def maybe_mark_dynamic(tensor: torch.Tensor, index: Any) -> None:
    """``torch._dynamo.maybe_mark_dynamic``: Kiln's marks are wishes already."""
    api.mark_dynamic(tensor, index)


def mark_dynamic(tensor: torch.Tensor, index: Any, **bounds: Any) -> None:
    """``torch._dynamo.mark_dynamic``; bounds have no effect."""
    api.mark_dynamic(tensor, index)


def mark_static_address(tensor: torch.Tensor, guard: bool = False) -> None:
    """``torch._dynamo.mark_static_address``: Kiln's graphs take parameters as inputs, whatever their address."""


def pass_through(fn: Any = None, *args: Any, **kwargs: Any) -> Any:
    """A decorator that changes nothing."""
    return (lambda function: function) if fn is None else fn


def graph_break(msg: str = "") -> None:
    """``torch._dynamo.graph_break``."""


@rule(graph_break)
def rule_graph_break(trace: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Ends the graph, except where torch's own code asks its compiler to: in the optimizers, for reasons of its own."""
    if is_asked_by_torch(trace):
        return
    api_rules.rule_graph_break(trace, args, {"message": kwargs["msg"]} if "msg" in kwargs else {})


def leaf_function(fn: Any) -> Any:
    """``torch._dynamo.decorators.leaf_function``: in graphs as it is; Kiln runs it on fakes, and needs none of it."""
    api.allow_in_graph(fn)
    fn.register_fake = pass_through
    return fn


class set_stance:
    """``torch.compiler.set_stance``: ``force_eager`` turns compiled code off, the others leave it on.

    A call sets it; used as a ``with`` block or a decorator, it holds for that long.
    """

    STANCES = (
        "default",
        "force_eager",
        "eager_on_recompile",
        "fail_on_recompile",
        "eager_then_compile",
        "aot_eager_then_compile",
    )

    def __init__(self, stance: str = "default", **accepted: Any):
        if stance not in self.STANCES:
            raise RuntimeError(f"invalid torch.compile stance {stance!r}: {exc.did_you_mean(stance, self.STANCES)}")
        if stance not in ("default", "force_eager", "fail_on_recompile"):
            raise exc.NotAvailable(f"stance {stance!r}", "it has no counterpart", "use 'default' or 'force_eager'")
        self.stance = stance
        self.before = self._set()

    def _set(self) -> tuple[bool, bool]:
        from ..config import config

        before = (_native.set_disabled(self.stance == "force_eager"), config.error_on_recompile)
        config.error_on_recompile = self.stance == "fail_on_recompile"
        return before

    def _restore(self) -> None:
        from ..config import config

        _native.set_disabled(self.before[0])
        config.error_on_recompile = self.before[1]

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        self._restore()

    def __call__(self, function: Any) -> Any:
        self._restore()

        @functools.wraps(function)
        def stanced(*args: Any, **kwargs: Any) -> Any:
            with type(self)(self.stance):
                return function(*args, **kwargs)

        return stanced


# -- looking inside -------------------------------------------------------------------------------------------------


@dataclass
class ExplainOutput:
    """What ``torch._dynamo.explain(f)(…)`` gives: Kiln's explanation, under torch's names."""

    graphs: list[torch.fx.GraphModule]
    graph_count: int
    graph_break_count: int
    break_reasons: list[Any]
    op_count: int
    ops_per_graph: list[list[Any]] = field(default_factory=list)
    out_guards: list[Any] = field(default_factory=list)
    explanation: Any = None

    def __str__(self) -> str:
        return str(self.explanation)


def explain(f: Any, *extra_args: Any, **extra_kwargs: Any) -> Any:
    """``torch._dynamo.explain``."""

    def inner(*args: Any, **kwargs: Any) -> ExplainOutput:
        found = kiln_explain(f)(*args, **kwargs)
        operations = [
            [node.target for node in graph.graph.nodes if node.op.startswith("call_")] for graph in found.graphs
        ]
        return ExplainOutput(
            graphs=found.graphs,
            graph_count=found.graph_count,
            graph_break_count=found.break_count,
            break_reasons=found.breaks,
            op_count=found.op_count,
            ops_per_graph=operations,
            out_guards=[guard for _, guards in found.guards for guard in guards],
            explanation=found,
        )

    return inner(*extra_args, **extra_kwargs) if extra_args or extra_kwargs else inner


def export(f: Any, *extra_args: Any, **accepted: Any) -> Any:
    """``torch._dynamo.export``."""
    from .exporting import export as export_call

    return export_call(f, *extra_args, **accepted)


def innermost_fn(fn: Any) -> Any:
    """``torch._dynamo.eval_frame.innermost_fn``: the function that was compiled."""
    fn = fn.__wrapped__ if api.has_backward_scope(fn) else fn
    while isinstance(fn, (_native.Dispatcher, OptimizedModule)):
        fn = fn.function if isinstance(fn, _native.Dispatcher) else fn._orig_mod
    return fn


def reset() -> None:
    """``torch._dynamo.reset``."""
    _kept.clear()
    api.reset()
