"""What the program did that waits until the graph has run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import TYPE_CHECKING, Any

from ...platform.light_dataclass import dataclass

if TYPE_CHECKING:
    from ..python.logging_calls import LogLine


@dataclass(eq=False, slots=True)
class DeferredWork:
    """Calls, lines for loggers, and the locks that are taken to write effects."""

    calls: list[tuple[Callable[..., object], tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)
    log_lines: list[LogLine] = field(default_factory=list)
    locks: dict[int, object] = field(default_factory=dict)  # that the program took, by id
    locks_held: list[object] = field(default_factory=list)  # now
