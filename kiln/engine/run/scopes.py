"""Scopes in which backward passes are compiled, and the stand-in for torch's engine that serves them.

While any thread is in such a scope, a stand-in is where ``torch.autograd`` looks for its engine. It forwards the passes
of threads that are in no scope to torch's engine.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable
from typing import Any

import torch

from ... import _native, exc
from ...platform.locks import new_lock
from ...platform.torch_autograd import execution_engine, set_execution_engine
from ...program.call_markers import deferred
from ...report import engine_events, events
from ...report.stages import stage
from ..walk.exclusion import exclusion

Compiler = Callable[[torch.fx.GraphModule], Callable[..., Any]]


class Scope:
    """One entered scope: the compiler (None: torch's engine runs the passes), and the listeners to its events."""

    __slots__ = ("compiler", "listeners", "stack")

    def __init__(self, compiler: Compiler | None, stack: list[Scope]):
        self.compiler = compiler
        self.stack = stack  # of its thread; a generator that is collected may leave the scope in another thread
        self.listeners = engine_events.interested_listeners() if compiler is not None else ()


class ThreadScopes(threading.local):
    """The scopes that a thread is in, in the order they were entered; the last one counts.

    A generator may be suspended in a scope, so scopes are not always left in the opposite order.
    """

    def __init__(self) -> None:
        self.stack: list[Scope] = []


class EngineStandIn:
    """Stands where torch looks for its engine; forwards everything except backward passes in an enabled scope."""

    torch_engine: Any = None  # kept after uninstalling, for those who still hold a reference to the stand-in
    installed = False

    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        stack = _scopes.stack
        scope = stack[-1] if stack else None
        if scope is None or scope.compiler is None or events.is_compiling():
            with exclusion.torch_pass():
                return self.torch_engine.run_backward(*args, **kwargs)
        from .backward_pass import run_backward

        before = engine_events.set_listeners(scope.listeners)
        disabled = _native.set_disabled(False)  # kiln.disable is about functions; a pass that starts in one is compiled
        try:
            with stage("backward pass"):
                return run_backward(scope.compiler, self.torch_engine, *args, **kwargs)
        finally:
            _native.set_disabled(disabled)
            engine_events.set_listeners(before)

    @deferred
    def queue_callback(self, callback: Callable[[], Any]) -> None:
        """Have something called at the end of the running backward pass. Captured code does so after its graph."""
        self.torch_engine.queue_callback(callback)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.torch_engine, name)


_scopes = ThreadScopes()
_lock = new_lock()
_engine = EngineStandIn()
_count = 0  # of scopes that need the stand-in, in all threads


def _install() -> None:
    if not _engine.installed:
        _engine.torch_engine = execution_engine()
        set_execution_engine(_engine)
        _engine.installed = True


def _uninstall() -> None:
    """If another stand-in was installed over this one, this one stays and forwards everything."""
    if execution_engine() is _engine:
        set_execution_engine(_engine.torch_engine)
        _engine.installed = False


def _enter(compiler: Compiler | None) -> Scope:
    global _count
    stack = _scopes.stack
    scope = Scope(compiler, stack)
    with _lock:
        stack.append(scope)
        if compiler is not None:
            _count += 1
            _install()
    return scope


def _leave(scope: Scope) -> None:
    """End a scope; does nothing if `reset` has ended it."""
    global _count
    with _lock:
        if scope not in scope.stack:
            return
        scope.stack.remove(scope)
        if scope.compiler is not None:
            _count -= 1
            if not _count:
                _uninstall()


class _Entering(contextlib.ContextDecorator):
    """A ``with`` block or decorator that may be entered again inside itself, and by several threads."""

    def __init__(self, compiler: Compiler | None):
        self._compiler = compiler
        self._entered: list[Scope] = []

    def __enter__(self) -> None:
        self._entered.append(_enter(self._compiler))

    def __exit__(self, *error: object) -> None:
        own = [scope for scope in self._entered if scope.stack is _scopes.stack] or self._entered
        scope = own[-1]
        self._entered.remove(scope)
        _leave(scope)


class enable(_Entering):
    """In the block, backward passes of this thread are traced into graphs, which ``compiler`` compiles.

    ``compiler(graph_module)`` gives a callable with the graph's arguments; ``kiln.compile`` is the usual one. What Kiln
    cannot take over faithfully is left to torch's engine (``KILN_LOG=engine`` says why). Blocks nest.
    """

    def __init__(self, compiler: Compiler):
        if not callable(compiler):
            raise exc.NotCallable(compiler, "kiln.compiled_autograd.enable")
        super().__init__(compiler)


class disable(_Entering):
    """In the block, torch's own engine does the backward passes of this thread, whatever is enabled around it."""

    def __init__(self) -> None:
        super().__init__(None)


def enabled() -> bool:
    """Whether backward passes of this thread are Kiln's at this point."""
    stack = _scopes.stack
    return bool(stack) and stack[-1].compiler is not None


def with_scope(compiled: Callable[..., Any], compiler: Compiler) -> Callable[..., Any]:
    """A function like ``compiled`` that enables ``compiler`` around each call."""

    @functools.wraps(getattr(compiled, "function", compiled))
    def call(*args: Any, **kwargs: Any) -> Any:
        with enable(compiler):
            return compiled(*args, **kwargs)

    call.__wrapped__ = compiled
    return call


SCOPE_CODE = with_scope(enabled, lambda graph_module: graph_module).__code__  # of all functions that `with_scope` makes


def reset() -> None:
    """Forget all graphs of backward passes, and leave all blocks that this thread is in."""
    forget_graphs()
    for scope in list(_scopes.stack):
        _leave(scope)


def forget_graphs() -> None:
    """Trace every backward pass anew."""
    from . import backward_pass

    backward_pass.reset()
