"""Which launches run concurrently, as one step of the program.

Launches are independent if none writes what another reads or writes. A launch joins the step before it, or an earlier
step to which it can be moved, if its results do not raise the peak of memory there. A large launch only joins where no
step reads its results: alone it occupies all threads, and a reader on the same thread finds its part in the cache.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from kiln.loops.ir import Buffer
from kiln.loops.steps import Call, Step, buffers_in, estimated_bytes, uses_of

from ...platform.light_dataclass import dataclass

MOST_STEPS_MOVED = 16  # steps that a small launch is moved up, at most
SMALL_LAUNCH = 256 * 1024  # bytes that it reads and writes
FREE_BYTES = 512 * 1024  # bytes that may always be held


def group_concurrent(steps: Sequence[Step], outputs: Sequence[Any], same: Mapping[Buffer, Buffer]) -> list[list[Step]]:
    """The steps as runs: concurrent launches, or one call. ``same`` maps results to inputs that they are written to."""
    return ConcurrencyGrouper(steps, outputs, same).run()


@dataclass
class ConcurrentRun:
    steps: list[Step]
    reads: set[Any]
    writes: set[Any]
    held: int  # bytes that the program holds meanwhile

    def meets(self, other: ConcurrentRun) -> bool:
        """Whether two runs depend on each other."""
        return bool(self.writes & (other.reads | other.writes) or self.reads & other.writes)


class StepMemory:
    """What the steps of a program use, in their order, and the bytes that it holds at each of them."""

    def __init__(self, steps: Sequence[Step], outputs: Sequence[Any], free_bytes: int) -> None:
        self.uses = [uses_of(step) for step in steps]
        self.first: dict[Any, int] = {}
        self.last: dict[Any, int] = {}
        for number, (reads, writes) in enumerate(self.uses):
            for buffer in (*reads, *writes):
                self.first.setdefault(buffer, number)
                self.last[buffer] = number
        self.last |= {buffer: len(steps) for output in outputs for buffer in buffers_in(output)}
        self.held = self.bytes_by_step(len(steps))
        self.peak = max(*self.held, free_bytes)

    def bytes_by_step(self, count: int) -> list[int]:
        """The bytes that are alive at each step."""
        changes = [0] * (count + 2)
        for buffer, number in self.first.items():
            changes[number] += bytes_held(buffer)
            changes[self.last[buffer] + 1] -= bytes_held(buffer)
        return list(itertools.accumulate(changes[:-1]))

    def made(self, number: int) -> int:
        """The bytes of the buffers that a step is the first to use."""
        return sum(bytes_held(buffer) for buffer in self.uses[number][1] if self.first[buffer] == number)


class ConcurrencyGrouper:
    def __init__(self, steps: Sequence[Step], outputs: Sequence[Any], same: Mapping[Buffer, Buffer]) -> None:
        self.steps, self.same = steps, same
        self.memory = StepMemory(steps, outputs, FREE_BYTES)
        self.uses, self.peak = self.memory.uses, self.memory.peak
        self.read = {buffer for reads, _ in self.uses for buffer in reads}

    def run(self) -> list[list[Step]]:
        runs: list[ConcurrentRun] = []
        for number, step in enumerate(self.steps):
            reads, writes = self.uses[number]
            inputs = {self.same[buffer] for buffer in writes if buffer in self.same}
            one = ConcurrentRun([step], reads, writes | inputs, self.memory.held[number])
            place = len(runs) if isinstance(step, Call) else self.place(number, one, runs)
            if place == len(runs):
                runs.append(one)
            else:
                self.join(runs[place], one)
                for other in runs[place:]:
                    other.held += self.memory.made(number)
        return [run.steps for run in runs]

    def place(self, number: int, one: ConcurrentRun, runs: list[ConcurrentRun]) -> int:
        """The first run that a launch can join; the end where there is none."""
        is_small = sum(map(estimated_bytes, one.reads | one.writes)) <= SMALL_LAUNCH
        if not is_small and self.uses[number][1] & self.read:
            return len(runs)
        found = len(runs)
        for place in range(len(runs) - 1, max(-1, len(runs) - 1 - (MOST_STEPS_MOVED if is_small else 1)), -1):
            other = runs[place]
            if other.meets(one) or other.held + self.memory.made(number) > self.peak:
                break
            if not isinstance(other.steps[0], Call):
                found = place
        return found

    def join(self, run: ConcurrentRun, one: ConcurrentRun) -> None:
        run.steps += one.steps
        run.reads |= one.reads
        run.writes |= one.writes


def bytes_held(buffer: Any) -> int:
    """The bytes of a buffer that the program itself holds."""
    return estimated_bytes(buffer) if isinstance(buffer, Buffer) and buffer.kind in ("made", "called") else 0
