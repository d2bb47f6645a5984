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
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import torch

import kiln
from benchmarks.measuring import (
    Row,
    as_json,
    in_process,
    judged,
    no_collection,
    print_table,
    printed,
    race,
    rotated,
)

Compiler = Callable[[Callable[..., Any]], Callable[..., Any]]

IMPORT_GOAL_SECONDS = 0.2
RATIOS = ("ratio", "overhead_ratio")


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


def measure_dispatch(name: str, function: Callable[..., Any], args: tuple[Any, ...], repeats: int, calls: int) -> Row:
    """The time of a call whose graph is compiled already."""
    contestants = {"eager": function, **{key: compiler(function) for key, compiler in COMPILERS.items()}}
    return race(name, contestants, args, repeats, calls)


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few repeats: to see that it runs, not to quote")
    options = parser.parse_args()
    torch.set_num_threads(1)  # the operations are tiny; other threads would only add noise
    rows = list(measure(options.quick))
    print_table("Capture: Kiln beside torch.compile(backend='eager')", rows, RATIOS)
    print(as_json("capture", options.quick, rows, RATIOS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
