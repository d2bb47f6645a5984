"""What capture costs: Kiln beside torch.compile(backend="eager"), in one run.

Dispatch of a compiled function, and of modules with many parameters (whose graph does nothing, so that guards and the
reading of parameters are all there is); time to the first result of a new function, and of six tiny Hugging Face models
(each compiler in processes of its own); the first compile of a process, and what `import kiln` adds to `import torch`.
Repeats of the two are interleaved, so that a machine that slows down slows down both; the numbers are medians. The last
line is the result as JSON.

    python benchmarks/capture.py [--quick]
"""

from __future__ import annotations

import argparse
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

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, ROOT)

import torch  # noqa: E402

import kiln  # noqa: E402

Compiler = Callable[[Callable[..., Any]], Callable[..., Any]]

GOAL = 0.5  # of the peer's time
IMPORT_GOAL_SECONDS = 0.2


@dataclass
class Row:
    """One measurement, in seconds; `eager` and `peer` where they mean something."""

    name: str
    kiln: float
    peer: float | None = None
    eager: float | None = None
    goal: str = f"≤ {GOAL} × peer"
    met: bool = False

    @property
    def ratio(self) -> float | None:
        return self.kiln / self.peer if self.peer else None

    @property
    def overhead_ratio(self) -> float | None:
        """The same of what the compilers add to the operations themselves, which nobody can make cheaper here."""
        if self.peer is None or self.eager is None or self.peer <= self.eager:
            return None
        return max(0.0, self.kiln - self.eager) / (self.peer - self.eager)


def kiln_compile(function: Callable[..., Any]) -> Callable[..., Any]:
    return kiln.compile(function, backend="eager")


def peer_compile(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, backend="eager")


COMPILERS: dict[str, Compiler] = {"kiln": kiln_compile, "peer": peer_compile}


# --- dispatch ---------------------------------------------------------------------------------------------------------


def one_op(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def ten_tensors(a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, h: Any, i: Any, j: Any) -> torch.Tensor:
    return a + b + c + d + e + f + g + h + i + j


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


def measure_dispatch(name: str, function: Callable[..., Any], args: tuple[Any, ...], repeats: int, calls: int) -> Row:
    """The time of a call whose graph is compiled already."""
    contestants = {"eager": function, **{key: compiler(function) for key, compiler in COMPILERS.items()}}
    return race(name, contestants, args, repeats, calls)


def race(name: str, contestants: dict[str, Callable[..., Any]], args: tuple[Any, ...], repeats: int, calls: int) -> Row:
    for contestant in contestants.values():
        for _ in range(50):
            contestant(*args)
    times: dict[str, list[float]] = {key: [] for key in contestants}
    for number in range(repeats):
        for key in rotated(list(contestants), number):
            times[key].append(time_calls(contestants[key], args, calls))
    return judged(Row(name, **{key: statistics.median(values) for key, values in times.items()}))


class Tower(torch.nn.Module):
    """A module with so many parameters, two in each layer."""

    def __init__(self, parameters: int):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(parameters // 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def nothing(graph_module: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    """A backend whose code does not compute: what is left is what the compiler adds."""
    result = (torch.ones(2, 4),)
    return lambda *inputs: result


def measure_module(parameters: int, repeats: int, calls: int) -> Row:
    """The time of a call of a compiled module whose graph does nothing."""
    module, x = Tower(parameters), torch.ones(2, 4)
    contestants = {"kiln": kiln.compile(module, backend=nothing), "peer": torch.compile(module, backend=nothing)}
    return race(f"dispatch, module, {parameters} parameters", contestants, (x,), repeats, calls)


def rotated(items: list[str], number: int) -> list[str]:
    """Another one first each time, so that nobody always runs after the same neighbour."""
    cut = number % len(items)
    return items[cut:] + items[:cut]


def judged(row: Row) -> Row:
    row.met = row.ratio is not None and row.ratio <= GOAL
    return row


# --- time to first result ---------------------------------------------------------------------------------------------

LINES = ("x = x + y", "x = torch.sin(x)", "x = x * 0.5", "x = x.relu()", "x = torch.add(x, y, alpha=2)")
_numbers = itertools.count()


def new_function(ops: int) -> Callable[..., Any]:
    """A function of so many operations that no compiler has seen before."""
    name = f"generated_{next(_numbers)}"
    body = "\n".join(f"    {LINES[index % len(LINES)]}" for index in range(ops))
    namespace: dict[str, Any] = {"torch": torch}
    exec(compile(f"def {name}(x, y):\n{body}\n    return x\n", f"<{name}>", "exec"), namespace)
    return namespace[name]


def first_result(compiler: Compiler, ops: int) -> float:
    """Seconds from an uncompiled function to its first result."""
    function, args = new_function(ops), (torch.ones(4), torch.ones(4))
    with no_collection():
        start = time.perf_counter()
        compiler(function)(*args)
        return time.perf_counter() - start


def measure_first_result(ops: int, repeats: int) -> Row:
    """The time to the first result of a new function, once both compilers are warm."""
    times: dict[str, list[float]] = {key: [] for key in COMPILERS}
    for number in range(repeats):
        for key in rotated(list(COMPILERS), number):
            times[key].append(first_result(COMPILERS[key], ops))
    return judged(Row(f"first result, {ops:,} ops", **{key: statistics.median(each) for key, each in times.items()}))


MODELS = ("bert", "gpt2", "llama", "t5", "vit", "whisper")


def first_result_of_model(key: str, name: str) -> float:
    """Seconds to the first result of a new model; what was compiled before is forgotten."""
    from tests.models import tiny_models

    model, inputs = getattr(tiny_models, name)()
    model.eval()
    arguments = inputs(2, 8)
    kiln.reset()
    if key == "peer":
        torch._dynamo.reset()
    with no_collection(), torch.no_grad():
        start = time.perf_counter()
        COMPILERS[key](model)(**arguments)
        return time.perf_counter() - start


def first_results_of_models(key: str, repeats: int) -> dict[str, float]:
    """For each model the median, the first of each left out: it imports things."""
    for name in MODELS:
        first_result_of_model(key, name)
    return {name: statistics.median(first_result_of_model(key, name) for _ in range(repeats)) for name in MODELS}


def measure_models(repeats: int, processes: int) -> Iterator[Row]:
    """The time to the first result of each of the six models, each compiler in processes of its own.

    (Once torch.compile was used in a process, all Python code in it that calls much runs at half the speed.)
    """
    found: dict[str, list[dict[str, float]]] = {key: [] for key in COMPILERS}
    for number in range(processes):
        for key in rotated(list(COMPILERS), number):
            found[key].append(json.loads(printed(WARM_MODELS, which=key, repeats=repeats)))
    for name in MODELS:
        medians = {key: statistics.median(each[name] for each in results) for key, results in found.items()}
        yield judged(Row(f"first result, {name}", **medians))


# --- whole processes --------------------------------------------------------------------------------------------------

COLD = """
import sys, time
sys.path.insert(0, {root!r})
import torch
import benchmarks.capture as capture
print(capture.first_result(capture.COMPILERS[{which!r}], 10))
"""

WARM_MODELS = """
import json, sys
sys.path.insert(0, {root!r})
import torch
torch.set_num_threads(1)
import benchmarks.capture as capture
print(json.dumps(capture.first_results_of_models({which!r}, {repeats})))
"""

IMPORT = """
import sys, time
sys.path.insert(0, {root!r})
import torch
start = time.perf_counter()
import kiln
print(time.perf_counter() - start)
"""


def in_process(program: str, **values: Any) -> float:
    """The number that a Python program prints, run in a process of its own."""
    return float(printed(program, **values))


def printed(program: str, **values: Any) -> str:
    """The last line that a Python program prints, run in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", program.format(root=ROOT, **values)], capture_output=True, text=True, cwd=ROOT
    )
    if done.returncode:
        raise RuntimeError(f"the measuring process failed:\n{done.stderr}")
    return done.stdout.splitlines()[-1]


def measure_cold(repeats: int) -> Row:
    """The first compile of a process, with all that a compiler imports and builds on its first use."""
    times: dict[str, list[float]] = {key: [] for key in COMPILERS}
    for number in range(repeats):
        for key in rotated(list(COMPILERS), number):
            times[key].append(in_process(COLD, which=key))
    return judged(
        Row("first compile of a process, 10 ops", **{key: statistics.median(each) for key, each in times.items()})
    )


def measure_import(repeats: int) -> Row:
    """What importing Kiln adds where torch is imported already."""
    seconds = statistics.median(in_process(IMPORT) for _ in range(repeats))
    return Row(
        "import kiln, after import torch",
        seconds,
        goal=f"≤ {IMPORT_GOAL_SECONDS} s",
        met=seconds <= IMPORT_GOAL_SECONDS,
    )


# --- the run ----------------------------------------------------------------------------------------------------------


def measure(quick: bool) -> Iterator[Row]:
    """All rows, in the order of the table."""
    for ops in (10, 10):  # both compilers import and build things on their first use
        for compiler in COMPILERS.values():
            first_result(compiler, ops)
    repeats, calls = (5, 1000) if quick else (21, 5000)
    x = torch.ones(4)
    yield measure_dispatch("dispatch, one op", one_op, (x,), repeats, calls)
    tensors = tuple(torch.ones(4) for _ in range(10))
    yield measure_dispatch("dispatch, ten tensors", ten_tensors, tensors, repeats, calls)
    for parameters in (20, 150, 600):
        yield measure_module(parameters, repeats, calls // 10)
    for ops, times in ((10, 25), (100, 15), (1000, 7)):
        yield measure_first_result(ops, 3 if quick else times)
    yield from measure_models(*((1, 1) if quick else (3, 3)))
    yield measure_cold(1 if quick else 5)
    yield measure_import(3 if quick else 7)


def shown(seconds: float | None) -> str:
    if seconds is None:
        return ""
    for unit, factor in (("µs", 1e6), ("ms", 1e3)):
        if seconds * factor < 1000:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds:.3g} s"


def print_table(rows: list[Row]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"Capture: Kiln beside torch.compile(backend='eager'), torch {torch.__version__}, medians")
    for heading in ("", "eager", "Kiln", "peer", "Kiln / peer", "overhead only", "goal", "met"):
        table.add_column(heading, justify="left" if heading in ("", "goal", "met") else "right")
    for row in rows:
        ratios = [f"{ratio:.2f}" if ratio is not None else "" for ratio in (row.ratio, row.overhead_ratio)]
        cells = [row.name, shown(row.eager), shown(row.kiln), shown(row.peer), *ratios, row.goal]
        table.add_row(*cells, "[green]yes[/green]" if row.met else "[red]no[/red]")
    console = Console()
    console.width = max(console.width, 120)  # a pipe has no width; the rows should still be lines
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few repeats: to see that it runs, not to quote")
    options = parser.parse_args()
    torch.set_num_threads(1)  # the operations are tiny; other threads would only add noise
    rows = list(measure(options.quick))
    print_table(rows)
    result = [{**asdict(row), "ratio": row.ratio, "overhead_ratio": row.overhead_ratio} for row in rows]
    print(json.dumps({"benchmark": "capture", "torch": torch.__version__, "quick": options.quick, "rows": result}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
