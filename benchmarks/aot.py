"""What ahead-of-time autograd costs and saves: Kiln beside eager and torch.compile(backend="aot_eager"), in one run.

*Calls*: forward and backward of small functions and modules, and a training step, once they are compiled. Eager and
Kiln take turns in one process, the peer has processes of its own (once torch.compile was used in a process, all Python
code in it that calls much runs at half the speed).

*Trace*: time to trace and partition what capture made of six tiny Hugging Face models and a four-layer GPT. Both
compilers are given a backend that times its inner ``aot_eager``; to that comes what the first forward and backward take
longer than later ones, where compilers do what they put off. ``cold`` is the first trace of a process.

*Saved*: bytes that the forward keeps for the backward on the same models, both partitioners being the compiler's own
min-cut: the distinct storages among the values that forward graphs return besides their results, without those of
parameters, buffers and the batch, which live anyway. Eager's are what ``saved_tensors_hooks`` sees, counted likewise.

Numbers are medians. The last line is the result as JSON; `--json FILE` also writes it there.

    python benchmarks/aot.py [--quick] [--json FILE] [--only calls,trace,saved]
"""

from __future__ import annotations

import argparse
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
from benchmarks.capture import Tower
from benchmarks.measuring import (
    Row,
    as_json,
    judged,
    no_collection,
    print_table,
    printed,
    rotated,
    time_calls,
)

EAGER_GOAL = 1.5  # times eager's time of the three-op function
RATIOS = ("eager_ratio", "ratio")
CONTESTANTS = ("eager", "kiln", "peer")
COMPILERS = ("kiln", "peer")


def compiled(key: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as a contestant runs it."""
    if key == "eager":
        return function
    return (kiln.compile if key == "kiln" else torch.compile)(function, backend="aot_eager")


CHILD = """
import json, sys
sys.path.insert(0, {root!r})
import benchmarks.aot as aot
aot.torch.set_num_threads(1)
found = aot.{call}
aot.check_compiled()
print(json.dumps(found))
"""


def check_compiled() -> None:
    """A graph that Kiln left to eager has no traces and saves nothing: its numbers would look good and mean nothing."""
    left = kiln.report.counters["aot eager"]
    if left:
        raise SystemExit(f"{left} graphs were left to eager; KILN_LOG=aot says why")


def in_child(call: str) -> Any:
    """What a call of this module gives in a process of its own."""
    return json.loads(printed(CHILD, call=call))


def medians(found: list[dict[str, float]]) -> dict[str, float]:
    """Over processes, of each measurement."""
    return {name: statistics.median(each[name] for each in found) for name in found[0]}


def in_turns(keys: tuple[str, ...], processes: int, call: Callable[[str], str]) -> dict[str, dict[str, float]]:
    """Each contestant's medians over processes of its own, contestants taking turns."""
    found: dict[str, list[dict[str, float]]] = {key: [] for key in keys}
    for number in range(processes):
        for key in rotated(list(keys), number):
            found[key].append(in_child(call(key)))
    return {key: medians(each) for key, each in found.items()}


# --- calls ------------------------------------------------------------------------------------------------------------


def three_ops(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x * w).sin().sum()


def twenty_ops(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for _ in range(6):
        x = (x * w).sin() + w
    return (x * 0.5).sum()


def leaves(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones(shape, requires_grad=True), torch.full(shape, 0.5, requires_grad=True)


def forward_backward(key: str, function: Callable[..., Any]) -> Callable[..., None]:
    call = compiled(key, function)

    def both(*args: Any) -> None:
        call(*args).sum().backward()

    return both


def of_scalar(key: str, function: Callable[..., Any]) -> Callable[..., None]:
    """As `forward_backward`, of a function that returns its loss."""
    call = compiled(key, function)

    def both(*args: Any) -> None:
        call(*args).backward()

    return both


def training_step(key: str) -> Callable[[], None]:
    """A step of SGD on the four-layer GPT."""
    model, batch = four_layer_gpt()
    call, optimizer = compiled(key, model), torch.optim.SGD(model.parameters(), lr=1e-4)

    def step() -> None:
        call(**batch)[1].backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


# name -> how to make what is called, its arguments, and how many calls make a repeat.
CALLS: dict[str, tuple[Callable[[str], Callable[..., Any]], tuple[Any, ...], int]] = {
    "three ops, forward + backward": (lambda key: of_scalar(key, three_ops), leaves(8), 2000),
    "three ops, forward": (lambda key: compiled(key, three_ops), leaves(8), 4000),
    "20 ops, forward + backward": (lambda key: of_scalar(key, twenty_ops), leaves(8), 500),
    "module, 50 parameters, forward + backward": (
        lambda key: forward_backward(key, Tower(50)),
        (torch.ones(2, 4),),
        100,
    ),
    "training step, four-layer GPT": (training_step, (), 20),
}
FIRST_CALL = next(iter(CALLS))


def times_of_calls(keys: tuple[str, ...], repeats: int) -> dict[str, float]:
    """Seconds per call of each of `CALLS` for contestants in this process, their repeats interleaved."""
    found = {}
    for name, (make, args, calls) in CALLS.items():
        functions = {key: make(key) for key in keys}
        times: dict[str, list[float]] = {key: [] for key in keys}
        for key in keys:
            time_calls(functions[key], args, max(20, calls // 4))
        for number in range(repeats):
            for key in rotated(list(keys), number):
                times[key].append(time_calls(functions[key], args, calls))
        found |= {f"{key}, {name}": statistics.median(each) for key, each in times.items()}
    return found


def measure_calls(repeats: int, processes: int) -> Iterator[Row]:
    groups = {"kiln": ("eager", "kiln"), "peer": ("peer",)}
    found = in_turns(COMPILERS, processes, lambda key: f"times_of_calls({groups[key]!r}, {repeats})")
    times = {**found["kiln"], **found["peer"]}
    for name in CALLS:
        row = Row(name, **{key: times[f"{key}, {name}"] for key in CONTESTANTS}, goal="< peer")
        row.met = row.kiln < (row.peer or 0.0)
        if name == FIRST_CALL:
            row.goal = f"≤ {EAGER_GOAL} × eager, < peer"
            row.met = row.met and (row.eager_ratio or 0.0) <= EAGER_GOAL
        yield row


# --- models -----------------------------------------------------------------------------------------------------------

SIZE = (4, 24)  # batch and length: long enough that activations are more than parameters
MODELS = ("bert", "gpt2", "llama", "t5", "vit", "whisper", "four-layer GPT")


def four_layer_gpt() -> tuple[torch.nn.Module, dict[str, Any]]:
    from tests.models.plain_models import LittleGPT, Settings, tokens

    return LittleGPT(Settings(layers=4)), {**tokens(*SIZE), "targets": tokens(*SIZE)["x"]}


def model_and_batch(name: str) -> tuple[torch.nn.Module, dict[str, Any]]:
    """A model in training mode that returns its loss, and a batch for it."""
    if name == "four-layer GPT":
        return four_layer_gpt()
    from tests.models import tiny_models
    from tests.models.training import DROPOUT, HEADS

    model, inputs = tiny_models.BUILDERS[name](**({"head": HEADS[name]} if name in HEADS else {}), **DROPOUT[name])
    return model.train(), inputs(*SIZE)


def loss_of(output: Any) -> torch.Tensor:
    return output[1] if isinstance(output, tuple) else output.loss


def reset(key: str) -> None:
    kiln.reset()
    if key == "peer":
        torch._dynamo.reset()


def inner_backend(key: str) -> Callable[..., Any]:
    if key == "kiln":
        return kiln.backends.lookup_backend("aot_eager")
    from torch._dynamo.backends.registry import lookup_backend

    return lookup_backend("aot_eager")


# --- time to trace ----------------------------------------------------------------------------------------------------


def trace_seconds(key: str, name: str) -> float:
    """Seconds of the ahead-of-time part of compiling a model."""
    torch.manual_seed(0)
    model, batch = model_and_batch(name)
    inner, spent = inner_backend(key), 0.0

    def timed(graph_module: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        """What it makes is timed on its first call, too."""
        nonlocal spent
        start = time.perf_counter()
        made = inner(graph_module, example_inputs)
        spent += time.perf_counter() - start
        first = True

        def run(*args: Any) -> Any:
            nonlocal spent, first
            if not first:
                return made(*args)
            first = False
            start = time.perf_counter()
            result = made(*args)
            spent += time.perf_counter() - start
            return result

        return run

    reset(key)
    call = (kiln.compile if key == "kiln" else torch.compile)(model, backend=timed)
    with no_collection():
        loss = loss_of(call(**batch))
        spent += backward_seconds(key, loss)
        return spent - statistics.median(steady_seconds(key, call, batch) for _ in range(5))


def steady_seconds(key: str, call: Callable[..., Any], batch: dict[str, Any]) -> float:
    start = time.perf_counter()
    loss = loss_of(call(**batch))
    return time.perf_counter() - start + backward_seconds(key, loss)


def backward_seconds(key: str, loss: torch.Tensor) -> float:
    start = time.perf_counter()
    try:
        loss.backward()
    except RuntimeError:  # the peer's backward of T5 raises: it gets the time up to there
        if key != "peer":
            raise
    return time.perf_counter() - start


def times_of_traces(key: str, repeats: int) -> dict[str, float]:
    """For each model: the first of each is left out, it imports and builds things."""
    for name in MODELS:
        trace_seconds(key, name)
    return {name: statistics.median(trace_seconds(key, name) for _ in range(repeats)) for name in MODELS}


def time_of_cold_trace(key: str) -> dict[str, float]:
    return {"cold": trace_seconds(key, "gpt2")}


def measure_traces(repeats: int, processes: int) -> Iterator[Row]:
    times = in_turns(COMPILERS, processes, lambda key: f"times_of_traces({key!r}, {repeats})")
    for name in MODELS:
        yield judged(Row(f"trace, {name}", **{key: times[key][name] for key in COMPILERS}))
    cold = in_turns(COMPILERS, processes, lambda key: f"time_of_cold_trace({key!r})")
    yield judged(Row("trace, gpt2, cold", **{key: cold[key]["cold"] for key in COMPILERS}))


# --- bytes saved ------------------------------------------------------------------------------------------------------


def storage_bytes(values: list[Any], apart_from: list[Any]) -> int:
    """Bytes of the distinct storages of some tensors, without those of others."""
    known = {value.untyped_storage().data_ptr() for value in apart_from if isinstance(value, torch.Tensor)}
    found = {
        value.untyped_storage().data_ptr(): value.untyped_storage().nbytes()
        for value in values
        if isinstance(value, torch.Tensor)
    }
    return sum(size for address, size in found.items() if address not in known)


def collecting_backend(key: str, saved: list[Any]) -> Callable[..., Any]:
    """The compiler's ``aot_eager`` with its own min-cut; `saved` gets what forward graphs return besides results."""
    if key == "kiln":
        from kiln.aot import make_aot_backend
        from kiln.aot import min_cut_partition as partition
    else:
        from torch._dynamo.backends.common import aot_autograd as make_aot_backend
        from torch._functorch.partitioners import min_cut_rematerialization_partition as partition
    results: list[int] = []  # how many results the graph has that was just partitioned

    def partition_fn(joint: torch.fx.GraphModule, inputs: Any, *, num_fwd_outputs: int, **more: Any) -> Any:
        results.append(num_fwd_outputs)
        return partition(joint, inputs, num_fwd_outputs=num_fwd_outputs, **more)

    def forward_compiler(graph_module: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        visible = results.pop() if results else None  # none: a graph without a backward

        def run(*args: Any) -> Any:
            returned = graph_module(*args)
            if visible is not None:
                saved.extend(returned[visible:])
            return returned

        return run

    return make_aot_backend(
        fw_compiler=forward_compiler, bw_compiler=lambda graph_module, _: graph_module, partition_fn=partition_fn
    )


def saved_by(key: str, name: str) -> int:
    """Bytes of what a contestant keeps between forward and backward of a model."""
    torch.manual_seed(0)
    model, batch = model_and_batch(name)
    saved: list[Any] = []
    if key == "eager":
        with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.detach()) or t, lambda t: t):
            output = model(**batch)
    else:
        reset(key)
        call = (kiln.compile if key == "kiln" else torch.compile)(model, backend=collecting_backend(key, saved))
        output = call(**batch)
        assert saved, f"nothing is saved for the backward of {name}"
    assert loss_of(output).requires_grad
    return storage_bytes(saved, [*model.parameters(), *model.buffers(), *batch.values()])


def bytes_saved(key: str) -> dict[str, float]:
    return {name: saved_by(key, name) for name in MODELS}


def measure_saved() -> Iterator[Row]:
    sizes = in_turns(CONTESTANTS, 1, lambda key: f"bytes_saved({key!r})")
    for name in MODELS:
        row = Row(f"saved, {name}", **{key: sizes[key][name] for key in CONTESTANTS}, goal="≤ peer", unit="B")
        row.met = row.ratio is not None and row.ratio <= 1.0
        yield row


# --- the run ----------------------------------------------------------------------------------------------------------


def measure(quick: bool, parts: list[str]) -> Iterator[Row]:
    """All rows, in the order of the table."""
    if "calls" in parts:
        yield from measure_calls(*((3, 1) if quick else (11, 5)))
    if "trace" in parts:
        yield from measure_traces(*((1, 1) if quick else (5, 3)))
    if "saved" in parts:
        yield from measure_saved()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few repeats: to see that it runs, not to quote")
    parser.add_argument("--only", default="calls,trace,saved", help="parts of the run")
    parser.add_argument("--json", help="a file to write the result to")
    options = parser.parse_args()
    rows = list(measure(options.quick, options.only.split(",")))
    print_table("Ahead of time: Kiln beside eager and torch.compile(backend='aot_eager')", rows, RATIOS)
    result = as_json("aot", options.quick, rows, RATIOS)
    print(result)
    if options.json:
        with open(options.json, "w") as file:
            file.write(result + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
