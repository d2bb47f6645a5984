"""Hints: what misses taught about a frame - which sizes, numbers and other values vary from call to call.

A hint is about a place, by its description (``L['x']``): the dimensions of a tensor that vary, True for a number that
does, a count for other constants, or :data:`NEEDED` where the very value is needed though it varies. Variables of a
function keep their names in its continuations, so these share what was learnt; what lies on the operand stack at a
break has a name of its own in each.
"""

from __future__ import annotations

from ...bytecode.split_plan import OWN_PREFIX

NEEDED = "needed"


class Hints:
    """What is known of one frame; a continuation's shares the variables' part with the frame it continues."""

    def __init__(self, continued: Hints | None = None):
        self.variables: dict[str, object] = {} if continued is None else continued.variables
        self.operands: dict[str, object] = {}

    def __bool__(self) -> bool:
        return bool(self.variables or self.operands)

    def get(self, place: str) -> object:
        return self._table(place).get(place)

    def __setitem__(self, place: str, hint: object) -> None:
        self._table(place)[place] = hint

    def _table(self, place: str) -> dict[str, object]:
        return self.operands if is_operand(place) else self.variables


def is_operand(place: str) -> bool:
    """Whether a place is an operand carried over a break: plain Python made its value, likely another each time."""
    return place.startswith(f"L['{OWN_PREFIX}")
