"""``kiln.explain(f, profile=True)``: the time of each kernel and each call of ATen, beside what memory allows.

The call is run again under torch's profiler, which has a range for each compiled program and for each of its steps. The
bytes that a step must move, divided by its time, are compared with a copy that is measured on the same device. On a GPU
times are those of the GPU, and the driver says how many registers and how much shared memory a kernel takes. CUDA
graphs are not used meanwhile.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from ..platform.light_dataclass import dataclass
from .cuda_graphs.recorded_program import recordings_unused
from .inspection import Generated, counted_noun

WARM_UP, RUNS = 2, 5
COPIED_BYTES = {"cpu": 128 << 20, "cuda": 512 << 20}
MOST_SHOWN = 40  # steps of a program


@dataclass(frozen=True)
class StepTime:
    """A step of a program: kernels that are launched at once, or a call of ATen. Times and bytes are those of one run.

    ``bytes``: what kernels must read and write, None for a call; ``resources``: of a kernel on a GPU.
    """

    name: str
    is_kernel: bool
    count: float  # how often it runs
    seconds: float
    bytes: int | None
    resources: dict[str, int]

    @property
    def bandwidth(self) -> float | None:
        """In bytes per second."""
        return self.bytes / self.seconds if self.bytes is not None and self.seconds > 0 else None


@dataclass(frozen=True)
class ProgramTime:
    """A program: how long a run takes, on its device, and its steps, the longest first."""

    name: str
    device: str
    seconds: float
    copy_bandwidth: float
    steps: list[StepTime]

    def lines(self) -> list[str]:
        speed = f"a copy moves {in_gigabytes(self.copy_bandwidth)}"
        found = [f"{self.name}: {in_milliseconds(self.seconds)} a run on {self.device}, where {speed}"]
        found += [self.line(step) for step in self.steps[:MOST_SHOWN]]
        if len(self.steps) > MOST_SHOWN:
            rest = self.steps[MOST_SHOWN:]
            found.append(f"{in_milliseconds(sum(step.seconds for step in rest))}  in {len(rest)} more")
        return found

    def line(self, step: StepTime) -> str:
        share = 100 * step.seconds / self.seconds if self.seconds > 0 else 0.0
        speed = ""
        if step.bandwidth is not None:
            speed = f"{in_gigabytes(step.bandwidth)}, {100 * step.bandwidth / self.copy_bandwidth:.0f} % of a copy"
        often = f"  ({step.count:.3g} times)" if step.count > 1 else ""
        needs = ", ".join(f"{count} {what}" for what, count in step.resources.items())
        words = f"{step.name}{often}{f': {needs}' if needs else ''}"
        return f"{in_milliseconds(step.seconds)} {share:5.1f} %  {speed:31}  {words}"


def in_milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:9.4f} ms"


def in_gigabytes(bandwidth: float) -> str:
    return f"{bandwidth / 1e9:.1f} GB/s"


# ---- measuring -------------------------------------------------------------------------------------------------------


def measure(run: Callable[[], object], programs: Sequence[Generated]) -> list[ProgramTime]:
    """The times of programs that a call runs; it is called `WARM_UP` + `RUNS` times."""
    for _ in range(WARM_UP):
        run()
    on_gpu = any(program.target.is_gpu for program in programs)
    watched = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with recordings_unused(), profile(activities=watched, acc_events=True) as profiler:
        for _ in range(RUNS):
            run()
        if on_gpu:
            torch.cuda.synchronize()
    found = profiler.events() or []
    ranges = [event for event in found if event.device_type.name == "CPU"]
    return [times for program in programs if (times := program_time(program, ranges)) is not None]


def program_time(program: Generated, events: Iterable[Any]) -> ProgramTime | None:
    """The times of one program, from the profiler's ranges; None where it did not run."""
    name, on_gpu = program.name, program.target.is_gpu
    whole: list[Any] = []
    parts: dict[str, list[Any]] = {}
    for event in events:
        if event.name == name:
            whole.append(event)
        elif event.cpu_parent is not None and event.cpu_parent.name == name:
            parts.setdefault(event.name, []).append(event)
    if not name or not whole:
        return None
    moved, resources = program.bytes_of_steps(), program.resources() if on_gpu else {}
    steps = [
        StepTime(
            step,
            step in moved,
            len(ran) / len(whole),
            seconds_of(ran, on_gpu) / len(whole),
            moved.get(step),
            resources.get(step, {}),
        )
        for step, ran in parts.items()
    ]
    steps = sorted((step for step in steps if step.seconds > 0), key=lambda step: -step.seconds)
    device = program.target.device
    return ProgramTime(name, str(device), seconds_of(whole, on_gpu) / len(whole), copy_bandwidth(device), steps)


def seconds_of(events: Iterable[Any], on_gpu: bool) -> float:
    """The time of ranges: on a GPU, that of the work which they started there."""
    return sum(float(event.device_time_total if on_gpu else event.cpu_time_total) for event in events) / 1e6


@functools.cache
def copy_bandwidth(device: torch.device) -> float:
    """How many bytes a second a copy reads and writes on a device, both counted."""
    count = COPIED_BYTES[device.type]
    source = torch.ones(count // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    return max(2 * count / seconds_of_copy(source, target) for _ in range(RUNS))


def seconds_of_copy(source: torch.Tensor, target: torch.Tensor) -> float:
    if source.device.type == "cuda":
        begin: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        begin.record()
        target.copy_(source)
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3
    start = time.perf_counter()
    target.copy_(source)
    return time.perf_counter() - start


def text_of(times: Sequence[ProgramTime]) -> list[str]:
    """What `kiln.explain` prints."""
    if not times:
        return ["Profile: no compiled program ran."]
    found = [f"Profile, of {counted_noun(RUNS, 'call')}:"]
    for one in times:
        first, *steps = one.lines()
        found += [f"  {first}", *(f"    {line}" for line in steps)]
    return found
