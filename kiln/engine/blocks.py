"""Blocks in which backward passes are compiled, and the stand-in for torch's engine that serves them.

While any thread is in such a block, a stand-in is where ``torch.autograd`` looks for its engine. What runs in a thread
that is in none, it passes on as it is.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable
from typing import Any

import torch

from .. import _native, exc
from ..forking import new_lock
from ..report import events
from . import telling
from .turns import turns

Compiler = Callable[[torch.fx.GraphModule], Callable[..., Any]]


class Block:
    """One entered ``with`` block: the compiler (None: torch's engine does it), and whom to tell what happens."""

    __slots__ = ("compiler", "home", "listeners")

    def __init__(self, compiler: Compiler | None, home: list[Block]):
        self.compiler = compiler
        self.home = home  # the blocks of its thread; it may be left in another one, by a generator that is collected
        self.listeners = telling.ask() if compiler is not None else ()


class Blocks(threading.local):
    """The blocks that a thread is in, in the order they were entered; the last one counts.

    A generator may be suspended in a block: blocks are not always left in the opposite order.
    """

    def __init__(self) -> None:
        self.entered: list[Block] = []


class Engine:
    """Stands where torch looks for its engine; passes on everything but backward passes in an enabled block."""

    behind: Any = None  # what was there before, and is again; kept, for those who still have hold of the stand-in
    installed = False

    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        entered = _blocks.entered
        block = entered[-1] if entered else None
        if block is None or block.compiler is None or events.is_compiling():
            with turns.torch_pass():
                return self.behind.run_backward(*args, **kwargs)
        from .call import run_backward

        before = telling.listening(block.listeners)
        disabled = _native.set_disabled(False)  # kiln.disable is about functions; a pass that starts in one is compiled
        try:
            return run_backward(block.compiler, self.behind, *args, **kwargs)
        finally:
            _native.set_disabled(disabled)
            telling.listening(before)

    def queue_callback(self, callback: Callable[[], Any]) -> None:
        """Have something called at the end of the running backward pass. Captured code does so after its graph."""
        self.behind.queue_callback(callback)

    queue_callback.__kiln_deferred__ = True  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.behind, name)


_blocks = Blocks()
_lock = new_lock()
_engine = Engine()
_count = 0  # of blocks that need the stand-in, in all threads


def _install() -> None:
    if not _engine.installed:
        owner: Any = torch.autograd.Variable
        _engine.behind = owner._execution_engine
        owner._execution_engine = _engine
        _engine.installed = True


def _uninstall() -> None:
    """Where somebody has put something in front of the stand-in, it stays, and passes everything on."""
    owner: Any = torch.autograd.Variable
    if owner._execution_engine is _engine:
        owner._execution_engine = _engine.behind
        _engine.installed = False


def _enter(compiler: Compiler | None) -> Block:
    global _count
    home = _blocks.entered
    block = Block(compiler, home)
    with _lock:
        home.append(block)
        if compiler is not None:
            _count += 1
            _install()
    return block


def _leave(block: Block) -> None:
    """End a block; nothing where `reset` has ended it."""
    global _count
    with _lock:
        if block not in block.home:
            return
        block.home.remove(block)
        if block.compiler is not None:
            _count -= 1
            if not _count:
                _uninstall()


class _Entering(contextlib.ContextDecorator):
    """A ``with`` block or decorator that may be entered again inside itself, and by several threads."""

    def __init__(self, compiler: Compiler | None):
        self._compiler = compiler
        self._entered: list[Block] = []

    def __enter__(self) -> None:
        self._entered.append(_enter(self._compiler))

    def __exit__(self, *error: object) -> None:
        own = [block for block in self._entered if block.home is _blocks.entered] or self._entered
        block = own[-1]
        self._entered.remove(block)
        _leave(block)


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
    entered = _blocks.entered
    return bool(entered) and entered[-1].compiler is not None


def enclosing(compiled: Callable[..., Any], compiler: Compiler) -> Callable[..., Any]:
    """A function like ``compiled`` that enables ``compiler`` around each call."""

    @functools.wraps(getattr(compiled, "function", compiled))
    def call(*args: Any, **kwargs: Any) -> Any:
        with enable(compiler):
            return compiled(*args, **kwargs)

    call.__wrapped__ = compiled
    return call


ENCLOSING = enclosing(enabled, lambda graph_module: graph_module).__code__


def reset() -> None:
    """Forget all graphs of backward passes, and leave all blocks that this thread is in."""
    forget_graphs()
    for block in list(_blocks.entered):
        _leave(block)


def forget_graphs() -> None:
    """Trace every backward pass anew."""
    from . import call

    call.reset()
