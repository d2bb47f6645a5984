"""Values that no code can make again: running generators, exceptions that were raised, their tracebacks."""

from __future__ import annotations

import weakref
from dataclasses import field
from typing import TYPE_CHECKING

from ...platform.light_dataclass import dataclass

if TYPE_CHECKING:
    from ..interpreter.generators import InterpretedGenerator


@dataclass(eq=False, slots=True)
class Unbuildable:
    """Such values, and where the program made them: a break moves there."""

    made: dict[int, tuple[object, tuple[int, int]]] = field(default_factory=dict)  # id -> (value, root instruction)
    generators: weakref.WeakSet[InterpretedGenerator] = field(default_factory=weakref.WeakSet)  # alive
    unclosed: tuple[int, int] | None = None  # where a generator was made that could not be closed
    active: bool = True  # objects that are dropped now are dropped by the program

    def place_made(self, value: object) -> tuple[int, int] | None:
        made = self.made.get(id(value))
        return made[1] if made is not None else getattr(value, "made_at", None)
