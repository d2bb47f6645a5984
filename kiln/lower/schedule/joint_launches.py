"""Which launches of a kernel are one launch on a GPU.

A launch costs a GPU some microseconds in which little of it works, as much as moving megabytes does. Launches of one
kernel, with other buffers and sizes, that do not depend on each other become one: casts of weights, casts of gradients,
the tensors of an optimizer. A launch moves up to the last one of its kernel, or that one moves down to it, if no step
between them is in the way and the program's peak of memory stays about what it is. Large launches gain nothing, and
stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, TypeAlias

from kiln.loops.ir import Buffer
from kiln.loops.kernel import Kernel, Output
from kiln.loops.sizes import Size
from kiln.loops.steps import Call, Launch, Step, estimated_bytes

from ...platform.light_dataclass import dataclass
from .concurrency import StepMemory, bytes_held

LARGE_LAUNCH = 64 * 1024 * 1024  # bytes that it reads and writes
FREE_BYTES = 16 * 1024 * 1024  # bytes that may always be held
SLACK = 16  # the peak may grow by this part of it

Range: TypeAlias = tuple[int, int] | None  # the first and the last element that are written; None: perhaps all


def join_launches(steps: Sequence[Step], outputs: Sequence[Any], same: Mapping[Buffer, Buffer]) -> list[list[Step]]:
    """The steps as runs: a call, or launches of one kernel. ``same``: results, and inputs that they are written to."""
    return LaunchJoiner(steps, outputs, same).run()


@dataclass(eq=False)
class JointRun:
    """Steps that run at the place of the step with this number."""

    place: int
    steps: list[Step] = field(default_factory=list)
    reads: set[Any] = field(default_factory=set)
    writes: dict[Any, Range] = field(default_factory=dict)

    def meets(self, reads: set[Any], writes: dict[Any, Range]) -> bool:
        """Whether it depends on a step with these uses, or such a step on it."""
        if not self.reads.isdisjoint(writes) or not reads.isdisjoint(self.writes):
            return True
        return any(overlap(part, self.writes[buffer]) for buffer, part in writes.items() if buffer in self.writes)


class LaunchJoiner:
    def __init__(self, steps: Sequence[Step], outputs: Sequence[Any], same: Mapping[Buffer, Buffer]) -> None:
        self.steps, self.same = steps, same
        self.memory = StepMemory(steps, outputs, FREE_BYTES)
        self.most = self.memory.peak + self.memory.peak // SLACK
        self.bytes: dict[Any, int] = {}
        self.runs: list[JointRun] = []
        self.latest: dict[Kernel, JointRun] = {}  # the last run of a kernel
        self.readers: dict[Any, list[JointRun]] = {}
        self.writers: dict[Any, list[tuple[JointRun, Range]]] = {}

    def run(self) -> list[list[Step]]:
        for number, step in enumerate(self.steps):
            reads, writes = self.uses(number)
            kernel = step.kernel if isinstance(step, Launch) and self.is_worth_joining(number) else None
            run = self.run_for(number, kernel, reads, writes)
            self.add(run, step, reads, writes)
            if kernel is not None:
                self.latest[kernel] = run
        return [run.steps for run in sorted(self.runs, key=lambda run: run.place)]

    def run_for(self, number: int, kernel: Kernel | None, reads: set[Any], writes: dict[Any, Range]) -> JointRun:
        """The run that a step joins, perhaps a new one. ``kernel``: of a launch that may join others."""
        latest = self.latest.get(kernel) if kernel is not None else None
        if latest is not None:
            if self.last_place(reads, writes) < latest.place:
                if self.move_up(number, latest):
                    return latest
            elif not latest.meets(reads, writes) and self.last_place(latest.reads, latest.writes) <= latest.place:
                if self.move_down(latest, number):
                    return latest
        new = JointRun(number)
        self.runs.append(new)
        return new

    def add(self, run: JointRun, step: Step, reads: set[Any], writes: dict[Any, Range]) -> None:
        run.steps.append(step)
        run.reads |= reads
        for buffer in reads:
            self.readers.setdefault(buffer, []).append(run)
        for buffer, part in writes.items():
            run.writes[buffer] = around(run.writes[buffer], part) if buffer in run.writes else part
            self.writers.setdefault(buffer, []).append((run, part))

    def uses(self, number: int) -> tuple[set[Any], dict[Any, Range]]:
        """What a step reads, and which parts of buffers it writes."""
        reads, _ = self.memory.uses[number]
        writes = written_parts(self.steps[number])
        return reads, writes | {self.same[buffer]: part for buffer, part in writes.items() if buffer in self.same}

    def is_worth_joining(self, number: int) -> bool:
        """Whether a launch is small. Kernels that draw random numbers have no tables."""
        reads, writes = self.memory.uses[number]
        if any(isinstance(buffer, Buffer) and buffer.kind == "drawn" for buffer in reads):
            return False
        return sum(map(self.size, reads | writes)) <= LARGE_LAUNCH

    def size(self, buffer: Any) -> int:
        if buffer not in self.bytes:
            self.bytes[buffer] = estimated_bytes(buffer)
        return self.bytes[buffer]

    def last_place(self, reads: Iterable[Any], writes: Mapping[Any, Range]) -> int:
        """The place of the last run that depends on steps with these uses, or they on it; -1 where there is none."""
        found = [run.place for buffer in reads for run, _ in self.writers.get(buffer, ())]
        for buffer, part in writes.items():
            found += [run.place for run in self.readers.get(buffer, ())]
            found += [run.place for run, other in self.writers.get(buffer, ()) if overlap(part, other)]
        return max(found, default=-1)

    # ---- memory ------------------------------------------------------------------------------------------------------

    def move_up(self, number: int, run: JointRun) -> bool:
        """Whether a launch may join an earlier run: its results are then held from there on."""
        memory, made = self.memory, self.memory.made(number)
        if max(memory.held[run.place : number]) + made > self.most:
            return False
        for place in range(run.place, number):
            memory.held[place] += made
        for buffer in memory.uses[number][1]:
            memory.first[buffer] = min(memory.first[buffer], run.place)
        return True

    def move_down(self, run: JointRun, number: int) -> bool:
        """Moves a run to a later launch, if it may: what it reads is then held until there, its results only from there
        on. What inputs hold counts as well: the program may be the only one that holds them."""
        memory, start = self.memory, run.place
        held = memory.held[start : number + 1]
        for buffer in run.reads:
            for place in range(max(memory.last[buffer] + 1, start), number + 1):
                held[place - start] += self.size(buffer)
        made = [buffer for buffer in run.writes if memory.first.get(buffer) == start]
        freed = sum(map(bytes_held, made))
        for place in range(number - start):
            held[place] -= freed
        if max(held) > self.most:
            return False
        memory.held[start : number + 1] = held
        memory.last |= {buffer: max(memory.last[buffer], number) for buffer in run.reads}
        memory.first |= dict.fromkeys(made, number)
        run.place = number
        return True


# ---- parts of buffers ------------------------------------------------------------------------------------------------


def written_parts(step: Step) -> dict[Any, Range]:
    """The parts of buffers that a step writes. Launches that write different parts are independent."""
    if isinstance(step, Call):
        return {result: None for result in step.results if result is not None}
    actual, sizes = step.actual, dict(zip(step.kernel.sizes, step.sizes, strict=True))
    found: dict[Any, Range] = {}
    for output in step.kernel.outputs:
        buffer, part = actual[output.target.buffer], part_of(output, step.kernel, sizes)
        found[buffer] = around(found[buffer], part) if buffer in found else part
    return found


def part_of(output: Output, kernel: Kernel, sizes: Mapping[Any, Size]) -> Range:
    target = output.target
    if not target.is_plain:
        return None
    first = last = sizes.get(target.offset, target.offset)
    for stride, loop in zip(target.strides, kernel.loops, strict=True):
        size = sizes.get(loop.size, loop.size)
        if not isinstance(stride, int) or not isinstance(size, int) or not isinstance(first, int):
            return None
        first += min(0, stride * (size - 1))
        last += max(0, stride * (size - 1))
    return (first, last) if isinstance(first, int) and isinstance(last, int) else None


def overlap(one: Range, other: Range) -> bool:
    return one is None or other is None or (one[0] <= other[1] and other[0] <= one[1])


def around(one: Range, other: Range) -> Range:
    """A range that contains both."""
    if one is None or other is None:
        return None
    return min(one[0], other[0]), max(one[1], other[1])
