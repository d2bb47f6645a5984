"""The public functions: compile, disable, graph_break, explain, export, and what goes with them."""

from __future__ import annotations

import dataclasses
import functools
import gc
import inspect
import types
import warnings
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar, overload

import torch

from . import _native, exc
from .config import config
from .platform.support import startup
from .platform.support.switches import CAPTURE, reason_off, switch_off
from .program.backend_registry import backend_name, check_options, lookup_backend
from .program.modes import options_of
from .program.user_marks import mark_dimensions, mark_disabled, python_only
from .report.events import Subscription, count, raised_text

if TYPE_CHECKING:
    from .capture.state.trace import Options

_NOTHING: Any = object()  # "no argument": None is one, and a mistake

# What is compiled has the type it had before.
Target = TypeVar("Target", bound="Callable[..., Any] | classmethod[Any, Any, Any]")


@overload
def compile(
    function: Target,
    *,
    backend: str | Callable[..., Any] | None = None,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    on_recompile: Callable[[types.FunctionType, str], object] | None = None,
) -> Target: ...


@overload
def compile(
    *,
    backend: str | Callable[..., Any] | None = None,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    on_recompile: Callable[[types.FunctionType, str], object] | None = None,
) -> Callable[[Target], Target]: ...


@python_only
def compile(
    function: Any = _NOTHING,
    *,
    backend: str | Callable[..., Any] | None = None,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    on_recompile: Callable[[types.FunctionType, str], object] | None = None,
) -> Any:
    """Compile a function, method, module or other callable; also as a decorator, with or without arguments.

    ``backend`` is a name or a callable; without one it is ``kiln.config.backend``: machine code.
    ``fullgraph=True`` raises where the graph would break; ``dynamic`` makes sizes symbolic from the start (True), never
    (False), or once they were seen to change (None). ``options`` are keyword arguments for the backend; ``mode`` is a
    name for some of them: "default", "reduce-overhead" (CUDA graphs), "max-autotune", "max-autotune-no-cudagraphs".
    ``on_recompile(function, reason)`` is called before anything is compiled again on behalf of this one; the module's
    function of that name hears of all.
    """
    load_capture()
    backend = config.backend if backend is None else backend
    chosen, name, flag = lookup_backend(backend), backend_name(backend), config.compiled_autograd
    asked = options_of(mode, options)
    check_options(chosen, name, asked)
    if reason := reason_off(CAPTURE):
        return run_in_eager(function, fullgraph, reason)
    from .capture.state.trace import Options

    made = Options(chosen, name, fullgraph, dynamic, asked, on_recompile, flag)
    if function is _NOTHING:
        return functools.partial(_compile, options=made)
    return _compile(function, made)


@functools.cache
def load_capture() -> None:
    """Import capture, when something is first compiled. A collection of garbage on the way would find nothing.

    With a torch that Kiln does not know, it may want names that are gone: capture is then switched off.
    """
    if reason_off(CAPTURE):
        return
    enabled = gc.isenabled()
    gc.disable()
    try:
        from . import api_rules  # noqa: F401  (registers rules for the functions of this file)
    except Exception as error:
        if startup.findings is None:
            raise
        switch_off(CAPTURE, f"it cannot be loaded: {raised_text(error)}")
    finally:
        if enabled:
            gc.enable()


def run_in_eager(function: Any, fullgraph: bool, reason: str) -> Any:
    """What `compile` gives where capture is switched off: the function itself, with a warning the first time."""
    if fullgraph:
        raise exc.SwitchedOff("kiln.compile with fullgraph=True", reason)
    warn_of_eager(reason)
    if function is _NOTHING:
        return functools.partial(run_in_eager, fullgraph=fullgraph, reason=reason)
    if not callable(function) and not isinstance(function, (staticmethod, classmethod)):
        raise exc.NotCallable(function)
    count("skips", reason)
    return function


@functools.cache
def warn_of_eager(reason: str) -> None:
    text = f"kiln.compile is switched off, and functions run in plain Python: {reason}. More: `python -m kiln doctor`"
    frame, level = inspect.currentframe(), 1
    while frame is not None and exc.is_library(frame.f_code.co_filename):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, exc.PlatformWarning, stacklevel=level)


def _compile(target: Any, options: Options) -> Any:
    load_capture()
    from .capture.entry.dispatch import make_compiled
    from .capture.entry.dispatchers import state_of
    from .capture.interpreter.call_wrappers import object_caller

    if has_backward_scope(target):
        made = _compile(target.__wrapped__, options)
        return target if has_backward_scope(made) and made.__wrapped__ is target.__wrapped__ else made
    if is_disabled(target):
        return with_backward_scope(target, options)
    if isinstance(target, _native.Dispatcher):  # compiled already: as it is, or anew with other options
        known = state_of(target).cache.options == options
        return with_backward_scope(target, options) if known else _compile(target.function, options)
    if isinstance(target, torch.nn.Module):
        from .modules import OptimizedModule

        if isinstance(target, OptimizedModule):
            return target if target._kiln_options == options else OptimizedModule(target._orig_mod, options)
        return OptimizedModule(target, options)
    if isinstance(target, types.FunctionType):
        return with_backward_scope(make_compiled(target, options), options)
    if is_apply(target):
        return with_backward_scope(make_compiled(object_caller(target), options), options)
    if isinstance(target, types.MethodType) and isinstance(target.__func__, (types.FunctionType, _native.Dispatcher)):
        return types.MethodType(_compile(target.__func__, options), target.__self__)
    if isinstance(target, (staticmethod, classmethod)):
        return type(target)(_compile(target.__func__, options))
    if not callable(target):
        raise exc.NotCallable(target)
    return with_backward_scope(make_compiled(object_caller(target), options), options)


_scope_code: types.CodeType | None = None  # of the functions that `with_backward_scope` has made


def with_backward_scope(compiled: Any, options: Options) -> Any:
    """What is called for a compiled function: itself, or what compiles the backward passes that start in it as well."""
    if not options.compiled_autograd:
        return compiled
    global _scope_code
    from .capture.entry.dispatchers import shared
    from .capture.interpreter.calls import TRANSPARENT_WRAPPERS
    from .engine.run.scopes import SCOPE_CODE, with_scope

    _scope_code = SCOPE_CODE
    TRANSPARENT_WRAPPERS.add(SCOPE_CODE)  # in a compiled function, it is that one's engine that counts
    return with_scope(compiled, compile_backward(shared(options)))


def compile_backward(options: Options) -> Callable[..., Any]:
    """What compiles graphs of backward passes with given options: one object, as its graphs are known by it."""
    if options.backward is None:
        own = dataclasses.replace(options, compiled_autograd=False)
        options.backward = lambda graph_module: _compile(graph_module, own)
    return options.backward


def has_backward_scope(target: Any) -> bool:
    """Whether `with_backward_scope` made this."""
    return isinstance(target, types.FunctionType) and target.__code__ is _scope_code


def is_apply(target: Any) -> bool:
    """``SomeFunction.apply`` may be Python code of torch around native code: it is captured as one call."""
    from .platform.torch_autograd import function_of_apply  # private names: `import kiln` must do without them

    return isinstance(target, types.MethodType) and function_of_apply(target) is not None


@python_only
class disable:
    """Keep a function or method out of graphs, or (as a context manager) a block of calls from being compiled."""

    # Called with a function, it returns that function's type. Type checkers accept only subclasses from `__new__`.
    @overload
    def __new__(cls) -> disable: ...

    @overload
    def __new__(cls, function: Target) -> Target: ...  # type: ignore[misc]

    def __new__(cls, function: Any = _NOTHING) -> Any:
        return super().__new__(cls) if function is _NOTHING else _disabled(function)

    def __call__(self, function: Target) -> Target:
        disabled: Target = _disabled(function)
        return disabled

    def __enter__(self) -> None:
        self._before = _native.set_disabled(True)

    def __exit__(self, *error: object) -> None:
        _native.set_disabled(self._before)


def is_disabled(target: Any) -> bool:
    """Whether ``disable`` (Kiln's or torch's) made this. Other objects are not asked: that could be seen."""
    if reason_off(CAPTURE):
        return False
    from .capture.state.annotations import is_excluded

    function = target.__func__ if isinstance(target, types.MethodType) else target
    return isinstance(function, types.FunctionType) and is_excluded(function)


def _disabled(function: Any) -> Any:
    if reason_off(CAPTURE):
        return function
    from .modules import OptimizedModule

    if isinstance(function, OptimizedModule):
        function = function._orig_mod
    if isinstance(function, torch.nn.Module):
        function.forward = _disabled(function.forward)
        return function
    if isinstance(function, (staticmethod, classmethod)):
        return type(function)(_disabled(function.__func__))
    function = function.__wrapped__ if has_backward_scope(function) else function
    if is_disabled(function):
        return function
    if not callable(function):
        raise exc.NotCallable(function, "kiln.disable")
    original = function.function if isinstance(function, _native.Dispatcher) else function

    @functools.wraps(original)
    def eager(*args: Any, **kwargs: Any) -> Any:
        before = _native.set_disabled(True)
        try:
            return original(*args, **kwargs)
        finally:
            _native.set_disabled(before)

    return mark_disabled(eager)


def graph_break(message: str = "") -> None:
    """End the graph here; the program goes on in the next one. Does nothing in eager."""


def is_compiling() -> bool:
    """Whether this code is being captured: True inside graphs, False in eager."""
    return False


@python_only
def allow_in_graph(function: Target) -> Target:
    """Put calls of a function into graphs as they are, without looking into it."""
    if reason_off(CAPTURE):
        return function
    from .capture.state.annotations import ALLOWED

    for item in function if isinstance(function, (list, tuple)) else (function,):
        if not callable(item):
            raise exc.NotCallable(item)
        ALLOWED.add(item)
    return function


@python_only
def disallow_in_graph(function: Target) -> Target:
    """Keep calls of a function, torch's own ones included, out of graphs: the graph ends before such a call."""
    if reason_off(CAPTURE):
        return function
    from .capture.interpreter.call_rules import leave_to_python

    for item in function if isinstance(function, (list, tuple)) else (function,):
        if not callable(item):
            raise exc.NotCallable(item, "kiln.disallow_in_graph")
        leave_to_python(item, getattr(item, "__name__", repr(item)), "kiln.disallow_in_graph keeps it out of graphs")
    return function


@python_only
def reset() -> None:
    """Forget all compiled code, of backward passes too; functions are compiled again when they are next called."""
    if reason_off(CAPTURE):
        return
    from .capture.entry.dispatchers import reset as reset_dispatch
    from .engine.run.scopes import forget_graphs

    reset_dispatch()
    forget_graphs()


def on_recompile(callback: Callable[[types.FunctionType, str], object]) -> Subscription:
    """Call ``callback(function, reason)`` whenever no compiled version fits a call and another one is made.

    The result has ``remove()``, and works as a ``with`` block.
    """
    if not callable(callback):
        raise exc.NotCallable(callback)
    return Subscription(callback)


@python_only
def mark_dynamic(tensor: torch.Tensor, dimensions: int | list[int] | tuple[int, ...]) -> None:
    """Make sizes of a tensor symbolic when it is next compiled for."""
    _mark(tensor, dimensions, is_dynamic=True)


@python_only
def mark_static(tensor: torch.Tensor, dimensions: int | list[int] | tuple[int, ...] | None = None) -> None:
    """Keep sizes of a tensor (all by default) from becoming symbolic."""
    _mark(tensor, range(tensor.dim()) if dimensions is None else dimensions, is_dynamic=False)


def _mark(tensor: torch.Tensor, dimensions: int | Iterable[int], is_dynamic: bool) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise exc.UserError(f"a tensor is expected, not {type(tensor).__name__}")
    chosen = [dimensions] if isinstance(dimensions, int) else list(dimensions)
    for dimension in chosen:
        if not -tensor.dim() <= dimension < tensor.dim():
            raise exc.UserError(f"dimension {dimension} of a tensor with {tensor.dim()} dimensions")
    mark_dimensions(tensor, is_dynamic, [dimension % tensor.dim() for dimension in chosen])
