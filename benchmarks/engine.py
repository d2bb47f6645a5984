"""What the engine costs: Kiln beside eager and ``torch._dynamo.compiled_autograd``, in one run.

The main program is the backward of a 12-layer transformer encoder that was built in eager: 910 nodes, 335 saved tensors
(`nn.TransformerEncoderLayer` in training mode, small sizes). The others are small. Forwards are never timed.

*Overhead*: the cached call of a compiled backward that does nothing, for each node of the graph: what is left is the
walk, the key, the collecting of what nodes saved, and the call. Once with the graph kept (`retain_graph`, so that
nothing is freed) and once without. *Walk*, Kiln's alone, is the native part of it.

*Cached*: the whole backward, compiled already: the traced graph as it is (*graph*) or through the compiler's own
capture with the backend named.

*First*: how much longer the first backward takes than later ones, in a process that has compiled one before (*warm*)
and in one that has not (*cold*).

*Series*: backwards with batch sizes that vary, all of them together, and how many graphs were made for them.

The peer is given sizes that turn symbolic when they vary, as Kiln's do: with symbols from the start (its default) one
layer of the encoder takes it a minute to compile. `--quick` compiles two layers instead of twelve.

Eager and Kiln take turns in one process, the peer has processes of its own (once torch.compile was used in a process,
all Python code in it that calls much runs at half the speed). Numbers are medians. The last line is the result as JSON;
`--json FILE` also writes it there.

    python benchmarks/engine.py [--quick] [--json FILE] [--only overhead,cached,first,series]
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import torch
from torch import nn

import kiln
from benchmarks.measuring import (
    Row,
    as_json,
    judged,
    no_collection,
    print_table,
    printed,
    rotated,
)

NODE_GOAL_SECONDS = 0.5e-6  # of overhead a node
RATIOS = ("eager_ratio", "ratio")
CONTESTANTS = ("eager", "kiln", "peer")
COMPILERS = ("kiln", "peer")
GROUPS = {"kiln": ("eager", "kiln"), "peer": ("peer",)}
PARTS = ("overhead", "cached", "first", "series")
LAYERS = 12  # of the encoder that is compiled

CHILD = """
import json, sys
sys.path.insert(0, {root!r})
import benchmarks.engine as engine
engine.torch.set_num_threads(1)
engine.LAYERS = {layers}
found = engine.{call}
engine.check_taken()
print(json.dumps(found))
"""


def check_taken() -> None:
    """A backward that Kiln handed to torch's engine would look good and mean nothing."""
    handed = kiln.report.counters["engine handed over"]
    if handed:
        raise SystemExit(f"{handed} backwards were handed to torch's engine; KILN_LOG=engine says why")


def in_turns(processes: int, call: Callable[[str], str]) -> dict[str, dict[str, float]]:
    """The medians of each compiler's processes, which take turns."""
    found: dict[str, list[dict[str, float]]] = {key: [] for key in COMPILERS}
    for number in range(processes):
        for key in rotated(list(COMPILERS), number):
            found[key].append(json.loads(printed(CHILD, call=call(key), layers=LAYERS)))
    return {
        key: {name: statistics.median(result[name] for result in each) for name in each[0]}
        for key, each in found.items()
    }


# --- contestants ------------------------------------------------------------------------------------------------------


class Compiler:
    """A compiler of traced backwards that counts them. `how` is a backend, "graph" (leave it) or "nothing"."""

    def __init__(self, key: str, how: str):
        self.key, self.how, self.count = key, how, 0

    def __call__(self, graph_module: torch.fx.GraphModule) -> Callable[..., Any]:
        self.count += 1
        if self.how == "nothing":
            results: Any = () if self.key == "kiln" else []
            return lambda inputs, *rest: inputs.clear() or results
        if self.how == "graph":
            return graph_module
        return (kiln.compile if self.key == "kiln" else torch.compile)(graph_module, backend=self.how)


@contextlib.contextmanager
def engine(key: str, compiler: Compiler) -> Iterator[None]:
    """Backwards in the block are the contestant's."""
    if key == "eager":
        yield
    elif key == "kiln":
        with kiln.compiled_autograd.enable(compiler):
            yield
    else:
        with torch._dynamo.compiled_autograd._enable(compiler, dynamic=False):  # as Kiln: sizes that vary are symbolic
            yield


def reset(key: str) -> None:
    kiln.reset()
    kiln.compiled_autograd.reset()
    if key == "peer":
        torch._dynamo.reset()


# --- programs ---------------------------------------------------------------------------------------------------------

Step = Callable[..., torch.Tensor]


def encoder(layers: int) -> nn.Module:
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


def stepping(model: nn.Module, *shape: int) -> Step:
    """A function that does a forward, of a batch of the size it is given, with no gradients there."""
    cached_batch = functools.cache(lambda size: torch.randn(size, *shape))

    def step(size: int = 2) -> torch.Tensor:
        for parameter in model.parameters():
            parameter.grad = None
        return model(cached_batch(size)).sum()

    return step


def large() -> Step:
    return stepping(encoder(LAYERS), 8, 32)


def perceptron() -> Step:
    layers = (nn.Linear(16, 16), nn.ReLU()) * 3
    return stepping(nn.Sequential(*layers, nn.Linear(16, 4)), 16)


def hooked() -> Step:
    """A hook on every parameter."""
    model = encoder(2)
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient * 0.5)
    return stepping(model, 8, 32)


class Scaled(torch.autograd.Function):
    """A function of a user's own, with a saved tensor and an attribute."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: float) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.scale = scale
        return x.sin() * scale

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return gradients[0] * x.cos() * ctx.scale, None


class Waves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(12))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = Scaled.apply(layer(x), 0.5)
        return x


def custom_functions() -> Step:
    return stepping(Waves(), 16)


def optimizer_in_backward() -> Step:
    """Every parameter takes its step, and drops its gradient, as soon as the gradient is there."""
    model = encoder(2)

    def take_step(parameter: torch.Tensor) -> None:
        parameter.add_(parameter.grad, alpha=-1e-6)
        parameter.grad = None

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(take_step)
    return stepping(model, 8, 32)


def backward_seconds(loss: torch.Tensor, **options: Any) -> float:
    start = time.perf_counter()
    loss.backward(**options)
    return time.perf_counter() - start


def steps_seconds(step: Step, calls: int) -> float:
    """Seconds of a backward, over so many, each of a graph of its own."""
    with no_collection():
        return statistics.median(backward_seconds(step()) for _ in range(calls))


def kept_seconds(step: Step, calls: int) -> float:
    """The same of one graph that is kept; gradients are accumulated."""
    loss = step()
    with no_collection():
        return statistics.median(backward_seconds(loss, retain_graph=True) for _ in range(calls))


def node_count(loss: torch.Tensor) -> int:
    seen, waiting = set(), [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [edge[0] for edge in node.next_functions]
    return len(seen)


# --- overhead ---------------------------------------------------------------------------------------------------------

OVERHEADS = {"graph kept": kept_seconds, "graph freed": steps_seconds}


def times_of_overhead(key: str, repeats: int, calls: int) -> dict[str, float]:
    """Seconds a node of backwards that do nothing, and of the native part alone."""
    compiler, step = Compiler(key, "nothing"), stepping(encoder(12), 8, 32)
    nodes = node_count(step())
    found = {"nodes": nodes}
    with engine(key, compiler):
        for name, measure_calls in OVERHEADS.items():
            measure_calls(step, 5)
            found[name] = statistics.median(measure_calls(step, calls) / nodes for _ in range(repeats))
    assert compiler.count == 1, f"{compiler.count} compiles, where one would do"
    if key == "kiln":
        found["walk"] = walk_seconds(step(), repeats * calls) / nodes
    return found


def walk_seconds(loss: torch.Tensor, calls: int) -> float:
    """Seconds of walking, making the key, and collecting what the compiled backward is given."""
    from kiln import _native

    def walk() -> float:
        start = time.perf_counter()
        found = _native.walk((loss,), (gradient,), (), True, True)
        found.key, found.size_bytes, found.inputs(), found.hooks()
        return time.perf_counter() - start

    gradient = torch.ones_like(loss)
    with no_collection():
        return statistics.median(walk() for _ in range(calls))


def measure_overhead(repeats: int, calls: int, processes: int) -> Iterator[Row]:
    times = in_turns(processes, lambda key: f"times_of_overhead({key!r}, {repeats}, {calls})")
    for name in OVERHEADS:
        row = Row(f"overhead a node, {name}", **{key: times[key][name] for key in COMPILERS}, goal="< peer")
        row.met = row.kiln < (row.peer or 0.0)
        if name == "graph kept":  # freeing is no overhead: eager frees as well
            row.goal = f"≤ {NODE_GOAL_SECONDS * 1e6:g} µs, < peer"
            row.met = row.met and row.kiln <= NODE_GOAL_SECONDS
        yield row
    walk = times["kiln"]["walk"]
    yield Row("of which the walk", walk, goal=f"≤ {NODE_GOAL_SECONDS * 1e6:g} µs", met=walk <= NODE_GOAL_SECONDS)
    yield Row("nodes", *(times[key]["nodes"] for key in COMPILERS), goal="", met=None, unit="")


# --- cached calls -----------------------------------------------------------------------------------------------------

# name -> the program, how its traced backward is compiled, and how its calls are timed.
CACHED: dict[str, tuple[Callable[[], Step], str, Callable[[Step, int], float]]] = {
    "encoder, graph": (large, "graph", steps_seconds),
    "encoder, eager": (large, "eager", steps_seconds),
    "encoder, aot_eager": (large, "aot_eager", steps_seconds),
    "encoder, eager, graph kept": (large, "eager", kept_seconds),
    "perceptron, eager": (perceptron, "eager", steps_seconds),
    "hooks on every parameter, eager": (hooked, "eager", steps_seconds),
    "custom functions, eager": (custom_functions, "eager", steps_seconds),
    "optimizer in backward, eager": (optimizer_in_backward, "eager", steps_seconds),
}


def times_of_cached(keys: tuple[str, ...], repeats: int, calls: int) -> dict[str, float]:
    """Seconds of each of `CACHED` for contestants in this process, their repeats interleaved."""
    found = {}
    for name, (make, how, measure_calls) in CACHED.items():
        steps, times = {key: make() for key in keys}, {key: [] for key in keys}
        compilers = {key: Compiler(key, how) for key in keys}
        for key in keys:
            with engine(key, compilers[key]):
                measure_calls(steps[key], 5)
        for number in range(repeats):
            for key in rotated(list(keys), number):
                with engine(key, compilers[key]):
                    times[key].append(measure_calls(steps[key], calls))
        found |= {f"{key}, {name}": statistics.median(each) for key, each in times.items()}
        for key in keys:
            reset(key)
    return found


def measure_cached(repeats: int, calls: int, processes: int) -> Iterator[Row]:
    found = in_turns(processes, lambda key: f"times_of_cached({GROUPS[key]!r}, {repeats}, {calls})")
    times = {**found["kiln"], **found["peer"]}
    for name in CACHED:
        row = Row(f"cached, {name}", **{key: times[f"{key}, {name}"] for key in CONTESTANTS}, goal="< peer")
        row.met = row.kiln < (row.peer or 0.0)
        yield row


# --- first compile ----------------------------------------------------------------------------------------------------

FIRST = {
    "encoder, graph": (large, "graph"),
    "encoder, eager": (large, "eager"),
    "encoder, aot_eager": (large, "aot_eager"),
    "perceptron, eager": (perceptron, "eager"),
    "perceptron, aot_eager": (perceptron, "aot_eager"),
    "hooks on every parameter, eager": (hooked, "eager"),
}
WARMING = ("perceptron, eager", "perceptron, aot_eager")
COLD = "encoder, eager"


def first_seconds(key: str, name: str) -> float:
    """How much longer the first backward takes than the next ones; what was compiled before is forgotten."""
    make, how = FIRST[name]
    reset(key)
    step = make()
    with engine(key, Compiler(key, how)), no_collection():
        first = backward_seconds(step())
        return first - statistics.median(backward_seconds(step()) for _ in range(5))


def times_of_first(key: str, repeats: int) -> dict[str, float]:
    """Warm: small ones come before, they import and build things."""
    for name in WARMING:
        first_seconds(key, name)
    return {name: statistics.median(first_seconds(key, name) for _ in range(repeats)) for name in FIRST}


def time_of_cold(key: str) -> dict[str, float]:
    return {"cold": first_seconds(key, COLD)}


def measure_first(repeats: int, processes: int) -> Iterator[Row]:
    times = in_turns(processes, lambda key: f"times_of_first({key!r}, {repeats})")
    for name in FIRST:
        yield judged(Row(f"first, warm, {name}", **{key: times[key][name] for key in COMPILERS}))
    cold = in_turns(processes, lambda key: f"time_of_cold({key!r})")
    yield judged(Row(f"first, cold, {COLD}", **{key: cold[key]["cold"] for key in COMPILERS}))


# --- sizes that vary --------------------------------------------------------------------------------------------------

SIZES = (2, 3, 4, 5, 6, 7, 8, 9)


def times_of_series(key: str, repeats: int) -> dict[str, float]:
    """Seconds of all backwards of a series together, compiling included, and how often the compiler was called."""
    seconds, captures = [], 0

    def run() -> tuple[float, int]:
        reset(key)
        compiler, step = Compiler(key, "eager"), perceptron()
        with engine(key, compiler), no_collection():
            return sum(backward_seconds(step(size)) for size in SIZES), compiler.count

    run()
    for _ in range(repeats):
        spent, captures = run()
        seconds.append(spent)
    return {"seconds": statistics.median(seconds), "captures": captures}


def measure_series(repeats: int, processes: int) -> Iterator[Row]:
    found = in_turns(processes, lambda key: f"times_of_series({key!r}, {repeats})")
    row = Row(f"{len(SIZES)} batch sizes, perceptron, eager", **{key: found[key]["seconds"] for key in COMPILERS})
    yield judged(row)
    counts = Row("graphs made for them", **{key: found[key]["captures"] for key in COMPILERS}, goal="≤ peer", unit="")
    counts.met = counts.kiln <= (counts.peer or 0.0)
    yield counts


# --- the run ----------------------------------------------------------------------------------------------------------


def measure(quick: bool, parts: list[str]) -> Iterator[Row]:
    """All rows, in the order of the table."""
    global LAYERS
    LAYERS = 2 if quick else 12
    if "overhead" in parts:
        yield from measure_overhead(*((3, 20, 1) if quick else (11, 50, 5)))
    if "cached" in parts:
        yield from measure_cached(*((3, 10, 1) if quick else (9, 20, 3)))
    if "first" in parts:
        yield from measure_first(*((1, 1) if quick else (2, 3)))
    if "series" in parts:
        yield from measure_series(*((1, 1) if quick else (3, 3)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few repeats: to see that it runs, not to quote")
    parser.add_argument("--only", default=",".join(PARTS), help="parts of the run")
    parser.add_argument("--json", help="a file to write the result to")
    options = parser.parse_args()
    rows = list(measure(options.quick, options.only.split(",")))
    print_table("The engine: Kiln beside eager and torch's compiled autograd", rows, RATIOS)
    result = as_json("engine", options.quick, rows, RATIOS)
    print(result)
    if options.json:
        with open(options.json, "w") as file:
            file.write(result + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
