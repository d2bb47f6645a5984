"""What the benchmarks share: a row of the table, timing of calls, processes of their own, and printing."""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
GOAL = 0.5  # of the peer's time


@dataclass
class Row:
    """One measurement, in seconds, bytes or a number of things; `eager` and `peer` where they mean something."""

    name: str
    kiln: float
    peer: float | None = None
    eager: float | None = None
    goal: str = f"≤ {GOAL} × peer"
    met: bool | None = False
    unit: str = "s"
    jax: float | None = None

    @property
    def ratio(self) -> float | None:
        return self.kiln / self.peer if self.peer else None

    @property
    def eager_ratio(self) -> float | None:
        return self.kiln / self.eager if self.eager else None

    @property
    def best_ratio(self) -> float | None:
        """To the faster of eager and the peer."""
        others = [value for value in (self.eager, self.peer) if value]
        return self.kiln / min(others) if others else None

    @property
    def overhead_ratio(self) -> float | None:
        """The same of what the compilers add to the operations themselves, which nobody can make cheaper here."""
        if self.peer is None or self.eager is None or self.peer <= self.eager:
            return None
        return max(0.0, self.kiln - self.eager) / (self.peer - self.eager)


def judged(row: Row) -> Row:
    row.met = row.ratio is not None and row.ratio <= GOAL
    return row


# --- timing -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Collect now rather than somewhere inside a measurement."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def time_calls(function: Callable[..., Any], args: tuple[Any, ...], calls: int) -> float:
    """Seconds per call."""
    repeat = itertools.repeat(None, calls)
    with no_collection():
        start = time.perf_counter()
        for _ in repeat:
            function(*args)
        return (time.perf_counter() - start) / calls


def race(name: str, contestants: dict[str, Callable[..., Any]], args: tuple[Any, ...], repeats: int, calls: int) -> Row:
    """All in this process, their repeats interleaved."""
    for contestant in contestants.values():
        for _ in range(50):
            contestant(*args)
    times: dict[str, list[float]] = {key: [] for key in contestants}
    for number in range(repeats):
        for key in rotated(list(contestants), number):
            times[key].append(time_calls(contestants[key], args, calls))
    return judged(Row(name, **{key: statistics.median(values) for key, values in times.items()}))


def rotated(items: list[str], number: int) -> list[str]:
    """Another one first each time, so that nobody always runs after the same neighbour."""
    cut = number % len(items)
    return items[cut:] + items[:cut]


# --- processes of their own -------------------------------------------------------------------------------------------


def in_process(program: str, **values: Any) -> float:
    """The number that a Python program prints, run in a process of its own."""
    return float(printed(program, **values))


def printed(program: str, **values: Any) -> str:
    """The last line that a Python program prints, run in a process of its own.

    It writes and reads bytecode whatever the environment says: an installed package has it.
    """
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", program.format(root=ROOT, **values)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
    if done.returncode:
        raise RuntimeError(f"the measuring process failed:\n{done.stderr}")
    return done.stdout.splitlines()[-1]


# --- printing ---------------------------------------------------------------------------------------------------------

UNITS = {"s": (("µs", 1e6), ("ms", 1e3), ("s", 1.0)), "B": (("B", 1.0), ("kB", 1e-3), ("MB", 1e-6)), "": (("", 1.0),)}


def shown(value: float | None, unit: str = "s") -> str:
    if value is None:
        return ""
    name, factor = next((each for each in UNITS[unit] if value * each[1] < 1000), UNITS[unit][-1])
    return f"{value * factor:.3g} {name}".strip()


def print_table(title: str, rows: list[Row], ratios: tuple[str, ...]) -> None:
    """A table of rows with the ratios asked for: names of properties of `Row`."""
    from rich.console import Console
    from rich.table import Table

    headings = {"ratio": "Kiln / peer", "eager_ratio": "Kiln / eager", "overhead_ratio": "overhead only"}
    headings["best_ratio"] = "Kiln / best"
    jax = ("JAX",) if any(row.jax is not None for row in rows) else ()
    table = Table(title=f"{title}, torch {torch.__version__}, medians")
    for heading in ("", "eager", "Kiln", "peer", *jax, *(headings[name] for name in ratios), "goal", "met"):
        table.add_column(heading, justify="left" if heading in ("", "goal", "met") else "right")
    for row in rows:
        values = (row.eager, row.kiln, row.peer, *((row.jax,) if jax else ()))
        numbers = [shown(value, row.unit) for value in values]
        found = [getattr(row, name) for name in ratios]
        cells = [row.name, *numbers, *(f"{ratio:.2f}" if ratio is not None else "" for ratio in found), row.goal]
        table.add_row(*cells, {True: "[green]yes[/green]", False: "[red]no[/red]", None: ""}[row.met])
    console = Console()
    console.width = max(console.width, 120)  # a pipe has no width; the rows should still be lines
    console.print(table)


def as_json(benchmark: str, quick: bool, rows: list[Row], ratios: tuple[str, ...]) -> str:
    """The result as one line."""
    result = [{**asdict(row), **{name: getattr(row, name) for name in ratios}} for row in rows]
    return json.dumps({"benchmark": benchmark, "torch": torch.__version__, "quick": quick, "rows": result})
