"""The order of steps: launches run as late as saves memory.

A value that is computed long before it is needed takes up memory in the meantime, above all what a backward recomputes
of the forward. So each launch moves to just before the first step that depends on it, unless that keeps more memory
alive (what it reads) than it saves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kiln.loops.steps import Call, Step, buffers_in, estimated_bytes, uses_of


def delay_launches(steps: Sequence[Step], outputs: Sequence[Any]) -> list[Step]:
    """The steps with launches moved down; each step still follows those it depends on."""
    return StepOrder(steps, outputs).run()


class StepOrder:
    """Places the steps one by one, from the last to the first."""

    def __init__(self, steps: Sequence[Step], outputs: Sequence[Any]) -> None:
        self.steps = steps
        self.uses = [uses_of(step) for step in steps]
        self.bytes: dict[Any, int] = {}
        self.kept: set[Any] = {buffer for output in outputs for buffer in buffers_in(output)}
        self.first_use: dict[Any, int] = {}  # the first step, as given, that uses a buffer
        for number, (reads, writes) in enumerate(self.uses):
            for buffer in (*reads, *writes):
                self.first_use.setdefault(buffer, number)

    def run(self) -> list[Step]:
        placed: list[int] = []  # the numbers of steps, from the last to the first
        for number in reversed(range(len(self.steps))):
            placed.insert(self.place(number, placed), number)
        return [self.steps[number] for number in reversed(placed)]

    def place(self, number: int, placed: list[int]) -> int:
        """The place of a step among the later ones, which are in reverse order: the end is where it was."""
        if isinstance(self.steps[number], Call):
            return len(placed)
        reads, writes = self.uses[number]
        for place in reversed(range(len(placed))):
            other_reads, other_writes = self.uses[placed[place]]
            if writes & (other_reads | other_writes) or reads & other_writes:
                break
        else:
            return len(placed)  # only the caller needs it
        place += 1
        if place == len(placed):
            return place
        later = set(self.kept)
        for other in placed[:place]:
            later |= self.uses[other][0] | self.uses[other][1]
        saved = sum(self.size(buffer) for buffer in writes if self.first_use[buffer] == number)
        held = sum(self.size(buffer) for buffer in reads - later)
        return place if saved > held else len(placed)

    def size(self, buffer: Any) -> int:
        if buffer not in self.bytes:
            self.bytes[buffer] = estimated_bytes(buffer)
        return self.bytes[buffer]
