"""What the scripts of this folder share: the compiler under test, and a run of a program beside eager."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from kiln.report import events
from kiln.testing import differences

GROUP = "torch_dynamo_backends"
Compile = Callable[..., Any]
Program = Callable[[Compile], Any]


def is_installed() -> bool:
    """Whether torch finds the entry point; where Kiln is only on the path, its function is given instead."""
    return "kiln" in entry_points(group=GROUP).names


def backend() -> Any:
    if is_installed():
        return "kiln"
    from kiln.torch_backend import compile_graph

    return compile_graph


def compiled(function: Any, **options: Any) -> Any:
    return torch.compile(function, **{"backend": backend(), **options})


def in_eager(function: Any, **options: Any) -> Any:
    return function


def captured_graphs(program: Program, compile: Compile) -> tuple[Any, int]:
    """What a program gives, and how many graphs torch captures in it."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch.manual_seed(0)
    found = program(compile)
    return found, torch._dynamo.utils.counters["stats"]["unique_graphs"]


def compare(program: Program, **tolerance: float) -> dict[str, Any]:
    """Run a program in eager, by torch's compiler alone, and with Kiln as its backend."""
    torch.manual_seed(0)
    expected = program(in_eager)
    state = torch.get_rng_state()
    _, by_torch = captured_graphs(program, lambda function, **more: torch.compile(function, backend="eager", **more))
    left: list[str] = []
    events.watchers.append(watcher := lambda what, why: left.append(why) if what == "aot eager" else None)
    try:
        seen, count = captured_graphs(program, compiled)
    finally:
        events.watchers.remove(watcher)
    found = differences(expected, seen, **{"rtol": 1e-4, "atol": 1e-5, **tolerance})
    if not torch.equal(state, torch.get_rng_state()):
        found.append("the state of the random generator differs")
    return {"differences": found, "left": left, "more graphs": count - by_torch, "graphs": count}
