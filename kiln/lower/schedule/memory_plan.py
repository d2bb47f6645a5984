"""The memory plan of a program: what is allocated when, and whose memory is used again.

Small values that only kernels see are in one block of scratch memory, at offsets chosen here. Every other buffer is
allocated just before its first use and released after its last one. It may get a *donor*: a buffer whose memory it
takes over. The donor is either read for the last time by the kernel that writes the buffer (each point is then read
before it is written), or a dead buffer of the same size. The program checks at run time that nothing else holds the
donor's memory, so a donor may also be an input or the result of a call; otherwise new memory is allocated. Results of
the program do not share memory.

Time is counted in runs of concurrent launches (concurrency.py). On a GPU a run is one launch, or several of one kernel
(joint_launches.py): launches are in order on one stream. The threads of a row may read what one of them writes for the
row, so nothing is written in place there; and memory that users' operators have seen, perhaps on other streams, is not
taken over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from kiln.loops import ir
from kiln.loops.ir import Access, Buffer
from kiln.loops.kernel import Kernel
from kiln.loops.sizes import fills_memory, hint, same
from kiln.loops.steps import Call, Launch, Scheduled, View, buffers_in, uses_of
from kiln.program.operators.operator_table import find_operator

from ...platform.light_dataclass import dataclass
from .concurrency import group_concurrent
from .joint_launches import join_launches

ALIGNMENT = 64
LARGEST_IN_SCRATCH = 256 * 1024  # bytes of the largest buffer in the scratch block
LARGEST_SCRATCH = 1024 * 1024  # bytes of that block
LEAST_KEPT = 64 * 1024  # bytes of a dead buffer that are worth keeping for another


@dataclass
class Allocation:
    buffer: Buffer
    donor: Buffer | None = None


@dataclass
class Plan:
    """``allocations[i]`` come before run i; those at the end are for results that no step makes. A run may be empty."""

    runs: list[list[Launch | Call]]
    allocations: dict[int, list[Allocation]] = field(default_factory=dict)
    scratch: dict[Buffer, int] = field(default_factory=dict)  # places in the block, in bytes
    scratch_bytes: int = 0
    out_variants: set[Call] = field(default_factory=set)
    written: dict[Buffer, Buffer] = field(default_factory=dict)  # results that are written into inputs
    peak: int = 0  # bytes that the program itself holds at once, at most, where that is known

    @property
    def launches_together(self) -> list[list[Launch]]:
        """The launches of each run that has any."""
        found = [[step for step in run if isinstance(step, Launch)] for run in self.runs]
        return [launches for launches in found if launches]


@dataclass
class LiveRange:
    """The first and the last run that use a buffer, and whether the caller or a call uses it."""

    first: int
    last: int
    is_result: bool = False
    is_called: bool = False  # used by a call, as an argument or a result
    is_foreign: bool = False  # used by a call of what is not torch's own


def plan_memory(scheduled: Scheduled, changed: Mapping[int, int] | None = None, is_for_gpu: bool = False) -> Plan:
    """``changed`` maps results that are new contents of inputs to these inputs, by number. The new content is written
    into the input where all readers of the input have run before."""
    return Planner(scheduled, changed or {}, is_for_gpu).run()


def bytes_of(buffer: Buffer) -> int | None:
    """None where the size is dynamic."""
    span = buffer.span
    return span * buffer.dtype.itemsize if isinstance(span, int) else None


class Planner:
    def __init__(self, scheduled: Scheduled, changed: Mapping[int, int], is_for_gpu: bool) -> None:
        self.scheduled, self.is_for_gpu = scheduled, is_for_gpu
        self.changed = [(scheduled.outputs[place], scheduled.inputs[index]) for place, index in changed.items()]
        same = {output.buffer: before for output, before in self.changed if is_new_content(output, before)}
        group = join_launches if is_for_gpu else group_concurrent
        self.runs: list[list[Launch | Call]] = group(scheduled.steps, scheduled.outputs, same)
        self.end = len(self.runs)
        self.ranges = live_ranges(self.runs, scheduled.outputs)
        self.places: dict[Launch, int] = {}
        self.writers: dict[Buffer, list[Launch]] = {}
        for index, run in enumerate(self.runs):
            for launch in run:
                if isinstance(launch, Launch):
                    self.places[launch] = index
                    for buffer in uses_of(launch)[1]:
                        self.writers.setdefault(buffer, []).append(launch)
        self.plan = Plan(self.runs)
        self.donated: set[Buffer] = set()
        self.bytes = {buffer: bytes_of(buffer) for buffer in self.ranges}
        self.held = self.bytes_by_step()
        self.plan.peak = max(self.held, default=0)

    def run(self) -> Plan:
        for output, before in self.changed:
            self.plan_input_write(output, before)
        if self.is_for_gpu:
            self.drop_copies_to_itself()
        made = [buffer for buffer in self.ranges if buffer.kind == "made" and buffer not in self.plan.written]
        small = [buffer for buffer in made if self.is_small(buffer)]
        self.place_scratch(small)
        begins: dict[int, list[Buffer]] = {}
        for buffer in made:
            if buffer not in self.plan.scratch:
                begins.setdefault(self.ranges[buffer].first, []).append(buffer)
        dead: list[Buffer] = []
        ends = self.ends()
        for index in range(self.end + 1):
            for buffer in begins.get(index, ()):
                donor = self.donor(buffer, dead, index)
                self.plan.allocations.setdefault(index, []).append(Allocation(buffer, donor))
            step = self.runs[index][0] if index < self.end and self.runs[index] else None
            if isinstance(step, Call):
                self.plan_out_variant(step, index, dead)
            dead += [buffer for buffer in ends.get(index, ()) if buffer not in self.donated]
        return self.plan

    # ---- lives -------------------------------------------------------------------------------------------------------

    def ends(self) -> dict[int, list[Buffer]]:
        found: dict[int, list[Buffer]] = {}
        for buffer, life in self.ranges.items():
            is_kept = life.is_result or self.is_foreign(life) or buffer.kind in ("constant", "drawn")
            if not is_kept and buffer not in self.plan.scratch:
                found.setdefault(life.last, []).append(buffer)
        return found

    def is_foreign(self, life: LiveRange) -> bool:
        """Whether another stream may still use the memory when its buffer is dead."""
        return self.is_for_gpu and life.is_foreign

    def bytes_by_step(self) -> list[int]:
        """The bytes that the program holds at each step, without reuse; buffers of dynamic size count as 0."""
        held = [0] * (self.end + 1)
        for buffer, life in self.ranges.items():
            if buffer.kind in ("made", "called"):
                size = self.bytes[buffer] or 0
                for index in range(life.first, min(life.last, self.end) + 1):
                    held[index] += size
        return held

    # ---- changed inputs ----------------------------------------------------------------------------------------------

    def plan_input_write(self, output: Any, changed: Any) -> None:
        """Writes a result into the input whose new content it is, if that is safe."""
        if not is_new_content(output, changed):
            return
        result, before = output.buffer, self.ranges.get(changed)
        if result is changed:  # it has it already
            self.plan.written[result] = changed
            self.donated.add(changed)
            return
        results = [one.buffer for one in self.scheduled.outputs if isinstance(one, View)]
        if result.kind != "made" or results.count(result) != 1 or not has_same_layout(result, changed):
            return
        writers = self.writers.get(result, [])
        if not writers or self.ranges[result].first != self.places[writers[0]]:
            return
        # On a GPU a bad index ends everything; on the CPU the input must not have changed when it is found.
        is_filled = self.is_for_gpu and changed in copied_by(writers[0]).get(result, ())
        if len(writers) > 1 and not is_filled:
            return
        if before is not None and not self.is_fully_read(changed, before, writers[0], result):
            return
        self.plan.written[result] = changed
        self.donated.add(changed)

    def drop_copies_to_itself(self) -> None:
        """Where a result is written into an input, its other elements are there already: a scatter into a cache."""
        first = [self.writers[result][0] for result in self.plan.written if result in self.writers]
        for launch in dict.fromkeys(first):
            copied = copied_by(launch)
            written = uses_of(launch)[1]
            if all(self.plan.written.get(result) in copied.get(result, ()) for result in written):
                self.runs[self.places[launch]].remove(launch)

    def is_fully_read(self, changed: Buffer, life: LiveRange, writer: Launch, result: Buffer) -> bool:
        """Whether all readers of an input have run when its new content is written."""
        index = self.places[writer]
        if life.is_result or life.last > index or self.is_used_concurrently(writer, changed):
            return False
        for step in (run[0] for run in self.runs[:index]):
            if isinstance(step, Call) and changed in step.reads and may_return_views(step):
                return False
        return changed not in writer.buffers or self.may_write_in_place(writer, changed, result)

    def is_used_concurrently(self, launch: Launch, buffer: Buffer) -> bool:
        """Whether another launch that runs at the same time uses a buffer."""
        run = self.runs[self.places[launch]]
        return any(buffer in other.buffers for other in run if isinstance(other, Launch) and other is not launch)

    # ---- scratch -----------------------------------------------------------------------------------------------------

    def is_small(self, buffer: Buffer) -> bool:
        life, size = self.ranges[buffer], bytes_of(buffer)
        return size is not None and size <= LARGEST_IN_SCRATCH and not life.is_result and not life.is_called

    def place_scratch(self, small: list[Buffer]) -> None:
        """Offsets of small buffers: the lowest that no buffer with an overlapping live range has."""
        placed: list[tuple[int, int, LiveRange]] = []
        for buffer in small:
            size, life = bytes_of(buffer) or 0, self.ranges[buffer]
            place = 0
            for start, end, other in sorted(placed, key=lambda one: one[0]):
                if other.last < life.first or life.last < other.first:
                    continue
                if place + size <= start:
                    break
                place = max(place, end)
            end = -(-(place + max(size, 1)) // ALIGNMENT) * ALIGNMENT
            if end > LARGEST_SCRATCH:
                continue
            placed.append((place, end, life))
            self.plan.scratch[buffer] = place
            self.plan.scratch_bytes = max(self.plan.scratch_bytes, end)

    # ---- donors ------------------------------------------------------------------------------------------------------

    def donor(self, buffer: Buffer, dead: list[Buffer], index: int) -> Buffer | None:
        found = self.last_read_here(buffer, index) or self.find_dead(buffer, dead, index)
        if found is not None:
            self.donated.add(found)
            if found in dead:
                dead.remove(found)
        return found

    def last_read_here(self, buffer: Buffer, index: int) -> Buffer | None:
        """A buffer that is read for the last time by the launch that writes this one."""
        launch = next((one for one in self.writers.get(buffer, ()) if self.places[one] == index), None)
        if launch is None:
            return None
        for other in launch.buffers:
            life = self.ranges.get(other)
            if life is None or other in self.donated or other in self.plan.scratch:
                continue
            if other.kind in ("constant", "drawn"):
                continue
            if life.last != index or life.is_result or not self.fits(buffer, other) or self.is_foreign(life):
                continue
            if self.may_write_in_place(launch, other, buffer) and not self.is_used_concurrently(launch, other):
                return other
        return None

    def may_write_in_place(self, launch: Launch, dying: Buffer, written: Buffer) -> bool:
        if self.is_for_gpu and launch.kernel.reduced and not is_written_inside(launch, written):
            return False
        return may_write_in_place(launch, dying, written)

    def fits(self, buffer: Buffer, donor: Buffer) -> bool:
        return buffer.dtype.itemsize == donor.dtype.itemsize and same(buffer.span, donor.span)

    def find_dead(self, buffer: Buffer, dead: list[Buffer], index: int) -> Buffer | None:
        size = self.bytes[buffer]
        if size is None or size < LEAST_KEPT:
            return None
        for other in reversed(dead):
            if self.bytes[other] == size and self.can_keep_until(other, size, index):
                return other
        return None

    def can_keep_until(self, donor: Buffer, size: int, until: int) -> bool:
        """Whether a dead buffer can be kept for another without more memory than is needed anyway."""
        between = range(self.ranges[donor].last + 1, until)
        if donor.kind == "input" and between:
            return False  # it may well be the only one that holds that memory
        if any(self.held[index] + size > self.plan.peak for index in between):
            return False
        for index in between:
            self.held[index] += size
        return True

    def plan_out_variant(self, call: Call, index: int, dead: list[Buffer]) -> None:
        """Lets an operator with an out variant compute into the memory of a dead buffer, if there is one."""
        called = find_operator(call.target)
        if called is None or not called.computes_into_out:
            return
        if len(call.results) != 1 or not isinstance(call.results[0], Buffer):
            return
        result = call.results[0]
        if self.ranges[result].is_result:
            return
        donor = self.find_dead(result, dead, index)
        if donor is not None:
            self.donated.add(donor)
            dead.remove(donor)
            self.plan.out_variants.add(call)
            self.plan.allocations.setdefault(index, []).append(Allocation(result, donor))


def is_new_content(output: Any, before: Any) -> bool:
    """Whether a result, as it is in memory, may become the content of an input."""
    return isinstance(output, View) and output.is_whole and isinstance(before, Buffer)


def has_same_layout(one: Buffer, other: Buffer) -> bool:
    """Whether two buffers have the same layout, without overlap and holes."""
    if one.dtype is not other.dtype or len(one.shape) != len(other.shape):
        return False
    if not all(map(same, (*one.shape, *one.strides), (*other.shape, *other.strides))):
        return False
    order = sorted(range(len(one.shape)), key=lambda dim: (hint(one.strides[dim]), hint(one.shape[dim])))
    return fills_memory(one.shape, one.strides, order)


def may_return_views(call: Call) -> bool:
    """Whether results of a call may share memory with its arguments."""
    called = find_operator(call.target)
    return called is None or called.may_return_views


def is_torchs_own(call: Call) -> bool:
    called = find_operator(call.target)
    return called is not None and called.is_own


def live_ranges(runs: Sequence[Sequence[Launch | Call]], outputs: Sequence[Any]) -> dict[Any, LiveRange]:
    """The live range of each buffer that is used, in order of first use."""
    lives: dict[Any, LiveRange] = {}

    def use(buffer: Any, index: int, is_called: bool, is_foreign: bool = False) -> None:
        if isinstance(buffer, Buffer):
            life = lives.setdefault(buffer, LiveRange(index, index))
            life.last = index
            life.is_called = life.is_called or is_called
            life.is_foreign = life.is_foreign or is_foreign

    for index, run in enumerate(runs):
        for step in run:
            is_call = isinstance(step, Call)
            is_foreign = isinstance(step, Call) and not is_torchs_own(step)
            for buffer in (*step.reads, *step.results) if isinstance(step, Call) else step.buffers:
                use(buffer, index, is_call, is_foreign)
    for output in outputs:
        for buffer in buffers_in(output):
            use(buffer, len(runs), False)
            if isinstance(buffer, Buffer):
                lives[buffer].is_result = True
    return lives


# ---- writing where one reads -----------------------------------------------------------------------------------------


def may_write_in_place(launch: Launch, dying: Buffer, written: Buffer) -> bool:
    """Whether a kernel may write a buffer into the memory of one that it reads: each point after all reads of it."""
    if launch.buffers.count(dying) != 1 or launch.buffers.count(written) != 1:
        return False
    kernel = launch.kernel
    read = kernel.buffers[launch.buffers.index(dying)]
    target = kernel.buffers[launch.buffers.index(written)]
    outputs = [output for output in kernel.outputs if output.target.buffer in (read, target)]
    if len(outputs) != 1 or outputs[0].target.buffer is not target or outputs[0].accumulate:
        return False
    place = outputs[0].target
    if not place.is_plain:
        return False
    loops = range(len(kernel.loops)) if outputs[0].is_inner else kernel.kept  # those that it is written in
    if any(same(place.strides[loop], 0) and not same(kernel.loops[loop].size, 1) for loop in loops):
        return False
    if not all(is_same_access(access, place) for access in ir.loads_of(*kernel.roots()) if access.buffer is read):
        return False
    return not read_after(kernel, read, kernel.phase(outputs[0].value))


def copied_by(launch: Launch) -> dict[Buffer, tuple[Buffer]]:
    """The buffers that a launch only copies others into, element by element: from which."""
    kernel, actual = launch.kernel, launch.actual
    if kernel.reductions:
        return {}
    found: dict[Buffer, tuple[Buffer]] = {}
    for output in kernel.outputs:
        value = output.value
        if not output.accumulate and output.target.is_plain and value.kind == "load":
            if is_same_access(value.payload, output.target):
                found[actual[output.target.buffer]] = (actual[value.payload.buffer],)
    return found


def is_written_inside(launch: Launch, written: Buffer) -> bool:
    """Whether a kernel with reductions writes a buffer at each point of its reduced loops, and not once a row."""
    target = launch.kernel.buffers[launch.buffers.index(written)]
    return all(output.is_inner for output in launch.kernel.outputs if output.target.buffer is target)


def is_same_access(access: Access, place: Access) -> bool:
    return access.is_plain and same(access.offset, place.offset) and all(map(same, access.strides, place.strides))


def read_after(kernel: Kernel, buffer: Buffer, phase: int) -> bool:
    """Whether a later phase reads a buffer."""

    def reads(exprs: list[ir.Expr]) -> bool:
        scanned = [scan.value for scan in kernel.scans_in(exprs)]
        return any(access.buffer is buffer for access in ir.loads_of(*exprs, *scanned))

    for reduction in kernel.reductions:
        parts = [part for part in (reduction.value, reduction.position) if part is not None]
        if reads(parts) and kernel.phase(*parts) > phase:
            return True
    for output in kernel.outputs:
        parts = [output.value, *output.target.parts]
        if reads(parts) and kernel.phase(*parts) > phase:
            return True
    return False
