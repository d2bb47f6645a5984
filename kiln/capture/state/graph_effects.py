"""What the operations of the graph do besides computing: which inputs they change, and what may raise when.

Running the frame again in eager, after the graph has raised, gives the same only where nothing was changed before
that, or where it can be undone.
"""

from __future__ import annotations

from dataclasses import field, replace

from ...platform.light_dataclass import dataclass
from .values import TensorInfo


@dataclass(eq=False, slots=True)
class GraphEffects:
    """Effects of the operations captured so far. Inputs are known by the ids of their fakes."""

    reasons: list[str] = field(default_factory=list)  # why running the frame again differs (mutation, random numbers)
    changed: dict[int, TensorInfo] = field(default_factory=dict)  # inputs that operations change
    changed_history: dict[int, TensorInfo] = field(default_factory=dict)  # those whose change autograd follows
    written_from: dict[int, TensorInfo] = field(default_factory=dict)  # inputs written from others, and those others
    raises_late: bool = False  # an operation that may raise comes after an effect
    cannot_rewind: bool = False  # or after a change of history, which cannot be undone (only under fullgraph)
    in_try: bool = False  # an operation that may raise was captured inside a try block
    in_with: bool = False  # or inside a with block, whose manager may swallow what it raises

    def copy(self) -> GraphEffects:
        return replace(
            self,
            reasons=list(self.reasons),
            changed=dict(self.changed),
            changed_history=dict(self.changed_history),
            written_from=dict(self.written_from),
        )
