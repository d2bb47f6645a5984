"""Events of the engine: counters, ``KILN_LOG=engine`` (all of them) or ``KILN_LOG=backward`` (the graphs), listeners.

``kiln.config.log`` is read when something happens. A listener (``kiln.compat`` adds torch's loggers) is asked whether
it is interested when a ``kiln.compiled_autograd.enable`` scope is entered; the answer holds for that scope.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Protocol

from ..config import config
from . import events
from .log import log


class Listener(Protocol):
    """Receives texts: ``kind`` is "graph" for graphs, and "cache" or "handed over" for single lines."""

    def is_interested(self) -> bool:
        """Whether it wants texts at this moment."""

    def receive(self, kind: str, text: str) -> None:
        """Something happened."""


listeners: list[Listener] = []
_thread = threading.local()
_reported: set[str] = set()


def interested_listeners() -> tuple[Listener, ...]:
    """The listeners for a scope that is entered now."""
    return tuple(listener for listener in listeners if listener.is_interested())


def set_listeners(chosen: tuple[Listener, ...]) -> tuple[Listener, ...]:
    """Send this thread's events to these listeners; gives those that received them before."""
    before: tuple[Listener, ...] = getattr(_thread, "chosen", ())
    _thread.chosen = chosen
    return before


def _is_wanted(kind: str) -> bool:
    asked = config.log
    return bool(getattr(_thread, "chosen", ())) or "engine" in asked or (kind == "graph" and "backward" in asked)


def _send(kind: str, text: str) -> None:
    asked = config.log
    if "engine" in asked:
        log("engine", text)
    elif kind == "graph" and "backward" in asked:
        log("backward", text)
    for listener in getattr(_thread, "chosen", ()):
        listener.receive(kind, text)


def _send_once(kind: str, reason: str, text: str) -> None:
    if reason not in _reported and _is_wanted(kind):
        _reported.add(reason)
        _send(kind, f"{text}: {reason}")


def captured(module: Any) -> None:
    """A backward pass was traced into this graph, whose code has a comment for each node of autograd's."""
    events.count("engine captures")
    if _is_wanted("graph"):
        _send("graph", f"the graph of a backward pass\n{module.print_readable(print_output=False)}")


def cache_miss(name: str, index: int, key_size: int, previous: Sequence[int]) -> None:
    """No graph of the cache is for what the walk found, from this node on (from node 0: for none of it)."""
    if _is_wanted("cache"):
        sizes = ", ".join(map(str, previous))
        node = f"{name} (NodeCall {index})"
        text = f"Cache miss due to new autograd node: {node} with key size {key_size}, previous key sizes=[{sizes}]"
        _send("cache", text)


def dynamic_size(position: int, name: str, index: int) -> None:
    """A size differs from that of earlier passes and becomes symbolic. ``position`` counts among all sizes."""
    if _is_wanted("cache"):
        node = f"{name} (NodeCall {index})"
        _send("cache", f"Cache miss due to changed shapes: marking size idx {position} of {node} as dynamic")


def handed_over(reason: str) -> None:
    """A backward pass falls back to torch's engine. Counted each time, reported once a reason."""
    events.count("engine handed over", reason)
    _send_once("handed over", reason, "a backward pass is left to torch's engine")


def opaque(reason: str) -> None:
    """The graph of a pass gets opaque calls. Counted each time, reported once a reason."""
    events.count("engine opaque", reason)
    _send_once("cache", reason, "the Python code of a backward pass is called by its graph as it is")


def reset() -> None:
    """Report each reason again (``kiln.compiled_autograd.reset``)."""
    _reported.clear()
