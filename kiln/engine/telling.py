"""What the engine tells: counters, ``KILN_LOG=engine`` (all of it) or ``KILN_LOG=backward`` (the graphs), listeners.

``kiln.config.log`` is looked at when something happens. A listener (``kiln.compat`` puts torch's loggers there) is
asked when ``kiln.compiled_autograd.enable`` is entered, and its answer holds for that block.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Protocol

from ..config import config
from ..report import events


class Listener(Protocol):
    """Somebody who wants texts: ``kind`` is "graph" for graphs, and "cache" or "handed over" for single lines."""

    def asks(self) -> bool:
        """Whether it wants any, at this moment."""

    def tell(self, kind: str, text: str) -> None:
        """Something happened."""


listeners: list[Listener] = []
_thread = threading.local()
_said: set[str] = set()


def ask() -> tuple[Listener, ...]:
    """The listeners that want to hear of a block that is entered now, for `listening`."""
    return tuple(listener for listener in listeners if listener.asks())


def listening(chosen: tuple[Listener, ...]) -> tuple[Listener, ...]:
    """Tell this thread's events to these from now on; gives those who were told before."""
    before: tuple[Listener, ...] = getattr(_thread, "chosen", ())
    _thread.chosen = chosen
    return before


def _is_wanted(kind: str) -> bool:
    asked = config.log
    return bool(getattr(_thread, "chosen", ())) or "engine" in asked or (kind == "graph" and "backward" in asked)


def _tell(kind: str, text: str) -> None:
    asked = config.log
    if "engine" in asked:
        events.log("engine", text)
    elif kind == "graph" and "backward" in asked:
        events.log("backward", text)
    for listener in getattr(_thread, "chosen", ()):
        listener.tell(kind, text)


def captured() -> None:
    """A backward pass was traced into a graph."""
    events.count("engine captures")


def new_node(name: str, index: int, key_size: int, previous: Sequence[int]) -> None:
    """No graph was made yet for what the walk found, from this node on (all of it: the first one, number 0)."""
    if _is_wanted("cache"):
        sizes = ", ".join(map(str, previous))
        node = f"{name} (NodeCall {index})"
        _tell(
            "cache",
            f"Cache miss due to new autograd node: {node} with key size {key_size}, previous key sizes=[{sizes}]",
        )


def dynamic_size(position: int, name: str, index: int) -> None:
    """A size was another one in the calls before: it becomes symbolic. ``position`` counts among all sizes."""
    if _is_wanted("cache"):
        node = f"{name} (NodeCall {index})"
        _tell("cache", f"Cache miss due to changed shapes: marking size idx {position} of {node} as dynamic")


def handed_over(reason: str) -> None:
    """Torch's own engine does a backward pass. Counted each time, said once a reason."""
    events.count("engine handed over", reason)
    if reason not in _said and _is_wanted("handed over"):
        _said.add(reason)
        _tell("handed over", f"a backward pass is left to torch's engine: {reason}")


def opaque(reason: str) -> None:
    """Hooks and backwards of a pass are called by its graph as they are. Counted each time, said once a reason."""
    events.count("engine opaque", reason)
    if reason not in _said and _is_wanted("cache"):
        _said.add(reason)
        _tell("cache", f"the Python code of a backward pass is called by its graph as it is: {reason}")


def graph(module: Any) -> None:
    """The graph of a backward pass, as Python, with a comment for each node of autograd's."""
    if _is_wanted("graph"):
        _tell("graph", f"the graph of a backward pass\n{module.print_readable(print_output=False)}")


def forget() -> None:
    """Say everything anew (``kiln.compiled_autograd.reset``)."""
    _said.clear()
