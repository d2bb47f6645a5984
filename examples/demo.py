"""The main job of `make demo`: a small classifier trained in eager and with Kiln from one seed, and what came of it.

The model is ordinary PyTorch with the things that make capture hard: a Python loop over layers, dropout (random
numbers), batch normalisation (state), and a list and a print that only plain Python can serve (a graph break). It is
then trained once more with its forward and backward as two graphs each (ahead-of-time autograd), and once with an eager
forward whose whole backward pass is one graph, hooks on its parameters included (the engine).
"""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

import kiln
from kiln.testing import CompileCounter

STEPS = 30
CLASSES = 4
ROWS = 64


class Classifier(nn.Module):
    """Convolution, a stack of hidden layers, and a head, on 12 × 12 images."""

    def __init__(self, width: int = 48, depth: int = 3) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 8, 3, stride=2)
        self.norm = nn.BatchNorm2d(8)
        self.hidden = nn.ModuleList(nn.Linear(200 if index == 0 else width, width) for index in range(depth))
        self.head = nn.Linear(width, CLASSES)
        self.dropout = nn.Dropout(0.1)
        self.activity: list[float] = []

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.convolution(images))).flatten(1)
        for layer in self.hidden:
            x = self.dropout(torch.relu(layer(x)))
        # A number for people: .item() and print need the value now, so the graph ends here and another begins.
        mean = x.mean().item()
        self.activity.append(mean)
        print(f"mean activity {mean:.3f}")
        return self.head(x)


@dataclass
class Training:
    """What one training left behind."""

    losses: list[float] = field(default_factory=list)
    parameters: list[torch.Tensor] = field(default_factory=list)
    activity: list[float] = field(default_factory=list)
    printed: str = ""
    first_step: float = 0.0
    other_steps: float = 0.0


def make_data(seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Images with a bright bar; where it is, is the class."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (STEPS, ROWS), generator=generator)
    images = torch.randn(STEPS, ROWS, 1, 12, 12, generator=generator) * 0.5
    for step in range(STEPS):
        for row in range(ROWS):
            start = 3 * int(labels[step, row])
            images[step, row, 0, start : start + 3] += 1.5
    return images, labels


def train(
    compiler: Callable[[nn.Module], Callable[..., Any]],
    engine: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
) -> Training:
    """Train a fresh model from the same seed; the compiler gets the model and returns what to call.

    The engine's block is around the backward passes.
    """
    torch.manual_seed(0)
    model = Classifier()
    call = compiler(model)
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient.clamp(-1.0, 1.0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    images, labels = make_data()
    result = Training()
    printed = io.StringIO()
    for step in range(STEPS):
        start = time.perf_counter()
        with contextlib.redirect_stdout(printed):
            loss = nn.functional.cross_entropy(call(images[step]), labels[step])
        optimizer.zero_grad()
        with engine():
            loss.backward()
        optimizer.step()
        result.losses.append(loss.item())
        seconds = time.perf_counter() - start
        if step == 0:
            result.first_step = seconds
        else:
            result.other_steps += seconds
    result.parameters = [parameter.detach().clone() for parameter in model.state_dict().values()]
    result.activity, result.printed = model.activity, printed.getvalue()
    return result


def largest_difference(eager: Training, compiled: Training) -> float:
    """Over all parameters and buffers."""
    pairs = zip(eager.parameters, compiled.parameters, strict=True)
    return max(float((one.double() - other.double()).abs().max()) for one, other in pairs)


def print_results(
    eager: Training, compiled: Training, counter: CompileCounter, breaks: object, recompiles: object
) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    losses = Table(title="Loss")
    for heading in ("step", "eager", "kiln", "difference"):
        losses.add_column(heading, justify="right")
    for step in sorted({0, 1, 2, *range(4, STEPS, 5), STEPS - 1}):
        one, other = eager.losses[step], compiled.losses[step]
        losses.add_row(str(step + 1), f"{one:.6f}", f"{other:.6f}", f"{abs(one - other):.1e}")
    console.print(losses)

    results = Table(title="Results", show_header=False)
    for name, value in (
        ("largest difference of parameters", f"{largest_difference(eager, compiled):.1e}"),
        (
            "same text printed, same list kept",
            str((eager.printed, eager.activity) == (compiled.printed, compiled.activity)),
        ),
        ("graphs", str(counter.frame_count)),
        ("operations in them", str(counter.op_count)),
        ("graph breaks", str(breaks)),
        ("recompiles", str(recompiles)),
        ("first step: eager, kiln (with compiling)", f"{eager.first_step:.3f} s, {compiled.first_step:.3f} s"),
        (f"other {STEPS - 1} steps: eager, kiln", f"{eager.other_steps:.3f} s, {compiled.other_steps:.3f} s"),
    ):
        results.add_row(name, value)
    console.print(results)


def print_ahead_of_time(eager: Training, ahead: Training) -> None:
    """What the same training came to with forward and backward as graphs, and what is kept between them."""
    from rich.console import Console
    from rich.table import Table

    torch.manual_seed(0)
    with contextlib.redirect_stdout(io.StringIO()):
        found = kiln.explain(Classifier())(make_data()[0][0])
    graphs = [graph for graph in found.differentiated if "backward" in graph.graphs]
    results = Table(title="Ahead-of-time autograd (backend aot_eager)", show_header=False)
    for name, value in (
        ("largest difference of parameters", f"{largest_difference(eager, ahead):.1e}"),
        ("graphs with a backward", str(len(graphs))),
        ("saved for backward: eager", f"{sum(graph.eager.bytes for graph in graphs):,} bytes"),
        ("saved for backward: kiln", f"{sum(graph.saved.bytes for graph in graphs):,} bytes"),
        (f"other {STEPS - 1} steps: eager, kiln", f"{eager.other_steps:.3f} s, {ahead.other_steps:.3f} s"),
    ):
        results.add_row(name, value)
    Console().print(results)


def train_with_engine() -> tuple[Training, int]:
    """The same training in eager, but for backward passes, which are graphs; and how many graphs were made."""
    made: list[Any] = []

    def compile_backward(graph: torch.fx.GraphModule) -> Callable[..., Any]:
        made.append(graph)
        return kiln.compile(graph, backend="eager", fullgraph=True)  # the hooks, too, or an error

    return train(lambda model: model, lambda: kiln.compiled_autograd.enable(compile_backward)), len(made)


def print_engine(eager: Training, engine: Training, graphs: int, handed_over: int) -> None:
    from rich.console import Console
    from rich.table import Table

    results = Table(title="The engine (eager forward, compiled backward)", show_header=False)
    for name, value in (
        ("largest difference of parameters", f"{largest_difference(eager, engine):.1e}"),
        ("backward passes", str(STEPS)),
        ("graphs made for them, with the hooks of all parameters", str(graphs)),
        ("left to torch's engine", str(handed_over)),
        ("first step: eager, kiln (with compiling)", f"{eager.first_step:.3f} s, {engine.first_step:.3f} s"),
        (f"other {STEPS - 1} steps: eager, kiln", f"{eager.other_steps:.3f} s, {engine.other_steps:.3f} s"),
    ):
        results.add_row(name, value)
    Console().print(results)


def print_code(eager: Training, code: Training) -> None:
    """What the same training came to in machine code, which is what ``kiln.compile(model)`` gives."""
    from rich.console import Console
    from rich.table import Table

    torch.manual_seed(0)
    with contextlib.redirect_stdout(io.StringIO()):
        found = kiln.explain(Classifier())(make_data()[0][0])
    kernels = sum(len(program.kernels) for program in found.programs)
    results = Table(title="Code generation (backend kiln, the default)", show_header=False)
    for name, value in (
        ("largest difference of parameters", f"{largest_difference(eager, code):.1e}"),
        ("programs, kernels in them", f"{len(found.programs)}, {kernels}"),
        ("graphs left to run operator by operator", str(kiln.report.counters["codegen eager"])),
        ("first step: eager, kiln (with compiling)", f"{eager.first_step:.3f} s, {code.first_step:.3f} s"),
        (f"other {STEPS - 1} steps: eager, kiln", f"{eager.other_steps:.3f} s, {code.other_steps:.3f} s"),
    ):
        results.add_row(name, value)
    Console().print(results)


def main() -> int:
    from kiln.testing.differential import read_counters

    counter = CompileCounter()
    train(lambda model: model)  # warm torch up, so that the first step of eager is not charged for it
    eager = train(lambda model: model)
    before = read_counters()
    compiled = train(lambda model: kiln.compile(model, backend=counter))
    after = read_counters()
    counts = ["unknown", "unknown"]
    if before is not None and after is not None:
        counts = [str(after[name] - before[name]) for name in ("breaks", "recompiles")]
    print_results(eager, compiled, counter, *counts)
    ahead = train(lambda model: kiln.compile(model, backend="aot_eager"))
    print_ahead_of_time(eager, ahead)
    engine, graphs = train_with_engine()
    print_engine(eager, engine, graphs, kiln.report.counters["engine handed over"])
    code = train(kiln.compile)
    print_code(eager, code)
    if eager.losses != compiled.losses or largest_difference(eager, compiled) != 0.0:
        print("Kiln's results differ from eager's: this is a bug.")
        return 1
    if largest_difference(eager, ahead) > 1e-4 or ahead.activity != eager.activity:
        print("Ahead-of-time autograd's results differ from eager's: this is a bug.")
        return 1
    if largest_difference(eager, engine) != 0.0 or engine.activity != eager.activity:
        print("The engine's results differ from eager's: this is a bug.")
        return 1
    if largest_difference(eager, code) > 1e-3 or len(code.activity) != len(eager.activity):
        print("The generated code's results differ from eager's: this is a bug.")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
