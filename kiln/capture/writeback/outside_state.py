"""What the program has done so far to objects from outside: whether a call adds to that."""

from __future__ import annotations

import types
from typing import Any

from ..._native import is_instance as isinstance
from ..guards.descriptions import module_of
from ..state.operations import Args
from ..state.trace import Trace
from .effects import write_effects
from .rebuild import CannotRebuild, Rebuilder


class OutsideState:
    """What the program has done so far to objects that ``forward`` could reach, to see whether it adds to that."""

    def __init__(self, trace: Trace, args: Args):
        self.arguments = [(value, elements(value)) for value in args if isinstance(value, (list, dict, set))]
        self.pending = pending_writes(trace)
        self.hooks = hooks_so_far(trace)

    def is_changed(self, trace: Trace) -> bool:
        if any(elements(value) != before for value, before in self.arguments) or hooks_so_far(trace) != self.hooks:
            return True
        return pending_writes(trace) != self.pending


def hooks_so_far(trace: Trace) -> tuple[Any, ...]:
    """Hooks put on tensors and taken off again: they are kept apart from other effects."""
    return (
        len(trace.hooks.registrations),
        len(trace.hooks.removals),
        sum(item.removed for item in trace.hooks.registrations.values()),
    )


def elements(container: list[Any] | dict[Any, Any] | set[Any]) -> list[int]:
    parts = [part for pair in container.items() for part in pair] if isinstance(container, dict) else container
    return [id(part) for part in parts]


def pending_writes(trace: Trace) -> list[str]:
    """The statements that would bring outside objects up to date now."""
    rebuilder = Rebuilder(trace)
    try:
        write_effects(rebuilder)
    except CannotRebuild as problem:
        return [problem.reason]
    return rebuilder.lines + rebuilder.effects


def is_closed(raw: object) -> bool:
    """Whether a function sees nothing but its arguments and modules."""
    function = raw.__func__ if isinstance(raw, staticmethod) else raw
    if not isinstance(function, types.FunctionType) or module_of(function).startswith("torch."):
        return True
    known = {name: function.__globals__[name] for name in function.__code__.co_names if name in function.__globals__}
    return not function.__closure__ and all(isinstance(value, types.ModuleType) for value in known.values())
