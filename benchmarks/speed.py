"""How fast compiled training is: Kiln beside eager, torch.compile and, for the GPT, JAX's jit, in one run, two threads.

*Cold compile* is the first training step (forward and backward) in a fresh process, all caches empty; *warm start* the
same in another process, with the caches that the first one left. *Steady* is a step once compiled: all contestants of
a model live at the same time in processes of their own and take turns, a few steps each, so that what disturbs the
machine disturbs all alike. *Memory* is the peak of what torch's allocator gives out in a step. *Dynamic sizes* is a
step of Kiln's with all sizes symbolic, beside its own with fixed ones. *Three ops* is a step of
``(x * w).sin().sum()``. ``gpt, AdamW`` has an update of the weights in its step, compiled as well.

Numbers are medians. The last line is the result as JSON; `--json FILE` also writes it there. A whole run takes about
an hour, most of which is the peer's, and draws docs/speed.png and docs/speed.svg (`--chart FOLDER`); with the effort of
`--quick` all models (`--only` and their names) take 20 minutes.

    python benchmarks/speed.py [--quick] [--only gpt,resnet] [--json FILE] [--chart FOLDER]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from benchmarks.measuring import ROOT, Row, as_json, print_table, rotated
from benchmarks.speed_child import ADAMW, THREADS, THREE_OPS
from benchmarks.speed_models import BUILDERS

RATIOS = ("ratio", "best_ratio")
CHILD = os.path.join(ROOT, "benchmarks", "speed_child.py")
COLD_GOAL, WARM_GOAL, FASTER_GOAL, DYNAMIC_GOAL = 1 / 15, 1 / 4, 1.15, 1.1
NAMES = (*BUILDERS, ADAMW, THREE_OPS)


@dataclass
class Effort:
    """How much is done for a median."""

    starts: int = 3  # of Kiln (and JAX), cold and warm; the peer's cold start is so long that one must do
    rounds: int = 7
    seconds: float = 0.4  # of a turn


@dataclass
class Measured:
    """All that was seen of one model, by contestant. A contestant that failed has no numbers but an error."""

    name: str
    cold: dict[str, list[float]] = field(default_factory=dict)
    warm: dict[str, list[float]] = field(default_factory=dict)
    steady: dict[str, list[float]] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)
    losses: dict[str, float] = field(default_factory=dict)
    left_alone: dict[str, str] = field(default_factory=dict)  # what a compiler did not compile
    errors: dict[str, str] = field(default_factory=dict)

    def median(self, kind: str, contestant: str) -> float | None:
        found = getattr(self, kind).get(contestant)
        return statistics.median(found) if found else None


# --- contestants ------------------------------------------------------------------------------------------------------


class Failed(RuntimeError):
    """A contestant's process ended."""


class Contestant:
    """A process that takes training steps when it is told to."""

    def __init__(self, contestant: str, model: str, backend: str, caches: str) -> None:
        # Each has its own; a process that never saw them starts cold.
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(THREADS),
            "KILN_CACHE_DIR": os.path.join(caches, "kiln"),
            "TORCHINDUCTOR_CACHE_DIR": os.path.join(caches, "peer"),
            "JAX_COMPILATION_CACHE_DIR": os.path.join(caches, "jax"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
            "JAX_PLATFORMS": "cpu",
        }
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # installed packages have their bytecode beside them
        self.complaints = tempfile.TemporaryFile("w+")  # noqa: SIM115 (lives as long as the process)
        self.process = subprocess.Popen(
            [sys.executable, CHILD, contestant, model, backend],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.complaints,
            text=True,
            env=environment,
            cwd=ROOT,
        )

    def ask(self, *request: Any) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            self.complaints.seek(0)
            lines = [line for line in self.complaints.read().splitlines() if line.strip()]
            raise Failed(next((line for line in reversed(lines) if "Error" in line), lines[-1] if lines else "ended"))
        return json.loads(answer)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.complaints.close()


class Match:
    """One model, all contestants."""

    def __init__(self, name: str, backend: str, effort: Effort) -> None:
        self.backend, self.effort = backend, effort
        self.found = Measured(name)
        self.alive: dict[str, Contestant] = {}
        self.caches = tempfile.mkdtemp(prefix="kiln-speed-")

    def run(self) -> Measured:
        try:
            if self.found.name == THREE_OPS:
                for contestant in ("eager", "kiln", "peer"):
                    self.start("cold", contestant, "0")
                self.take_turns(calls=500)
            else:
                self.start_cold_and_warm()
                self.start("cold", "eager", "0")
                self.start("cold", "kiln dynamic", "dynamic")
                self.take_turns(calls=1)
                self.weigh()
        finally:
            for contestant in self.alive.values():
                contestant.close()
            shutil.rmtree(self.caches, ignore_errors=True)
        return self.found

    def start_cold_and_warm(self) -> None:
        compilers = ["kiln", "peer"] + (["jax"] if self.found.name == "gpt" else [])
        for kind in ("cold", "warm"):
            for number in range(self.effort.starts):
                for contestant in rotated(compilers, number):
                    if contestant != "peer" or kind == "warm" or number == 0:
                        # The caches of the first cold start are those that warm starts find.
                        self.start(kind, contestant, str(number) if kind == "cold" else "0")

    def start(self, kind: str, contestant: str, caches: str) -> None:
        """A fresh process and its first step; the latest process of each contestant stays for the steady rounds."""
        if contestant in self.found.errors:
            return
        if contestant in self.alive:
            self.alive.pop(contestant).close()
        process = Contestant(contestant, self.found.name, self.backend, os.path.join(self.caches, caches))
        self.alive[contestant] = process
        found = self.ask(contestant, "first")
        if found is not None:
            getattr(self.found, kind).setdefault(contestant, []).append(found[0])
            self.found.losses[contestant] = found[1]
            self.found.left_alone[contestant] = found[2]

    def ask(self, contestant: str, *request: Any) -> Any:
        """An answer; None from one that failed, who is out."""
        try:
            return self.alive[contestant].ask(*request)
        except Failed as error:
            self.found.errors[contestant] = str(error)[:300]
            self.alive.pop(contestant).close()
            return None

    def take_turns(self, calls: int) -> None:
        paces = [min(self.ask(name, "steps", 5, calls) or [math.inf]) for name in list(self.alive)]
        count = max(3, math.ceil(self.effort.seconds / (min(paces) * calls)))
        for number in range(self.effort.rounds):
            for contestant in rotated(list(self.alive), number):
                found = self.ask(contestant, "steps", count, calls) if contestant in self.alive else None
                self.found.steady.setdefault(contestant, []).extend(found or [])

    def weigh(self) -> None:
        for contestant in list(self.alive):
            if contestant != "jax":  # its memory is not torch's
                found = self.ask(contestant, "memory")
                if found is not None:
                    self.found.memory[contestant] = found


# --- rows -------------------------------------------------------------------------------------------------------------


def row(found: Measured, kind: str, title: str, goal: str = "") -> Row | None:
    values = {name: found.median(kind, name) for name in ("kiln", "peer", "eager", "jax")}
    return Row(f"{title}, {found.name}", **values, goal=goal, met=None) if values["kiln"] else None  # type: ignore[arg-type]


def cold_row(found: Measured) -> Row | None:
    made = row(found, "cold", "cold compile", "≤ 1/15 × peer")
    if made:
        made.eager = None
        made.met = made.ratio <= COLD_GOAL if made.ratio and not found.left_alone.get("peer") else None
        if made.jax:
            made.goal += ", < JAX"
            made.met = bool(made.met) and made.kiln < made.jax
    return made


def warm_row(found: Measured) -> Row | None:
    made = row(found, "warm", "warm start", "≤ 1/4 × peer")
    if made:
        made.met = made.ratio <= WARM_GOAL if made.ratio and not found.left_alone.get("peer") else None
    return made


def steady_row(found: Measured) -> Row | None:
    title = "training step" if found.name != THREE_OPS else "steady"
    made = row(found, "steady", title, "≤ eager, peer" if found.name != THREE_OPS else "≤ eager")
    if made:
        ratio = made.best_ratio if found.name != THREE_OPS else made.eager_ratio
        made.met = ratio is not None and ratio <= 1
    return made


def memory_row(found: Measured) -> Row | None:
    if "kiln" not in found.memory:
        return None
    values = {name: found.memory.get(name) for name in ("kiln", "peer", "eager")}
    made = Row(f"peak memory, {found.name}", **values, goal="≤ eager", unit="B")  # type: ignore[arg-type]
    made.met = made.eager_ratio is not None and made.eager_ratio <= 1
    return made


def dynamic_row(found: Measured) -> Row | None:
    dynamic, static = found.median("steady", "kiln dynamic"), found.median("steady", "kiln")
    if dynamic is None or static is None:
        return None
    made = Row(f"dynamic sizes, {found.name}", dynamic, goal=f"≤ 1.1 × Kiln's own static ({dynamic / static:.2f})")
    made.met = dynamic <= DYNAMIC_GOAL * static
    return made


def geometric_mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def mean_row(rows: list[Row]) -> Row | None:
    """How many times faster than the best other, in the geometric mean over the models."""
    ratios = [made.best_ratio for made in rows if made.best_ratio]
    if len(ratios) < 2:
        return None
    faster = 1 / geometric_mean(ratios)
    return Row("times faster than the best other, mean", faster, goal="≥ 1.15", met=faster >= FASTER_GOAL, unit="")


def rows_of(measured: list[Measured]) -> list[Row]:
    models = [found for found in measured if found.name != THREE_OPS]
    tiny = [found for found in measured if found.name == THREE_OPS]
    made = {make: [row for row in map(make, models) if row] for make in (cold_row, warm_row, steady_row, memory_row)}
    mean = mean_row(made[steady_row])
    dynamic = [row for row in map(dynamic_row, models) if row]
    last = [row for row in map(steady_row, tiny) if row]
    return [
        *made[cold_row],
        *made[warm_row],
        *made[steady_row],
        *([mean] if mean else []),
        *last,
        *made[memory_row],
        *dynamic,
    ]


def complaints(found: Measured) -> Iterator[str]:
    """What must be said beside the numbers: contestants that failed or left to eager, losses that are not eager's."""
    for contestant, error in found.errors.items():
        yield f"{found.name}: {contestant} failed: {error}"
    for contestant, what in found.left_alone.items():
        if what:
            yield f"{found.name}: not all of {contestant} is compiled: {what}"
    expected = found.losses.get("eager")
    for contestant, loss in found.losses.items():
        if expected is not None and not math.isclose(loss, expected, rel_tol=1e-4, abs_tol=1e-5):
            yield f"{found.name}: {contestant} has another loss: {loss} instead of {expected}"


# --- the run ----------------------------------------------------------------------------------------------------------


def use_two_cores() -> None:
    """Threads that compilers and JAX make for themselves have no more room than torch's."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > THREADS:
        os.sched_setaffinity(0, cores[:THREADS])


def write_bytecode(backend: str) -> None:
    """Kiln's own files are compiled by Python when they are first imported, once and not in each process."""
    with tempfile.TemporaryDirectory() as caches:
        for _ in range(2):  # with an empty cache and with a full one
            contestant = Contestant("kiln", THREE_OPS, backend, caches)
            with contextlib.suppress(Failed):
                contestant.ask("first")
            contestant.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few repeats, two models: to see that it runs")
    parser.add_argument("--only", default="", help=f"some of: {', '.join(NAMES)} (separated by ';' or ',')")
    parser.add_argument("--backend", default="kiln", help="of kiln.compile")
    parser.add_argument("--json", help="a file to write the result to")
    parser.add_argument("--chart", help="the folder for speed.png and speed.svg; docs after a whole run")
    options = parser.parse_args()
    names = [name for name in NAMES if not options.only or name in chosen(options.only)]
    if options.quick and not options.only:
        names = ["gpt", THREE_OPS]
    use_two_cores()
    effort = Effort(1, 3, 0.2) if options.quick else Effort()
    write_bytecode(options.backend)
    measured = []
    for number, name in enumerate(names, 1):
        print(f"{number} of {len(names)}: {name} …", file=sys.stderr, flush=True)
        measured.append(Match(name, options.backend, effort).run())
        for text in complaints(measured[-1]):
            print(text, file=sys.stderr, flush=True)
    rows = rows_of(measured)
    print_table("Training: Kiln beside eager, torch.compile (peer) and JAX, 2 threads", rows, RATIOS)
    for text in (text for found in measured for text in complaints(found)):
        print(text)
    result = as_json("speed", options.quick, rows, (*RATIOS, "eager_ratio"))
    print(result)
    if options.json:
        with open(options.json, "w") as file:
            file.write(result + "\n")
    folder = options.chart or (os.path.join(ROOT, "docs") if names == list(NAMES) and not options.quick else None)
    if folder:
        from benchmarks.speed_chart import draw

        draw(rows, folder)
    return 0


def chosen(only: str) -> list[str]:
    """Names have commas of their own: the longest that fits is meant."""
    return [name for name in NAMES if name in only.split(";") or name in only.split(",")]


if __name__ == "__main__":
    sys.exit(main())
