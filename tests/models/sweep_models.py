"""Many model families through Kiln: captured whole, as in eager, and how often compiled again.

    python tests/models/sweep_models.py                      # all families, eval and train
    python tests/models/sweep_models.py mistral 'swin.*'     # some of them
    python tests/models/sweep_models.py --modes eval --shard 1/2 --failures
    python tests/models/sweep_models.py --modes train --backend aot_eager

Each model is a tiny random one. It is compiled with `fullgraph=True`, called twice with the same sizes, then with
another batch size and length, then with a third. `again` counts compilations at the second call, `other` those at the
third call and after: one at most is right. Where `fullgraph` raises, the same is done without it, to list all breaks.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # the repository takes the place of this folder: `tests` is a package
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import torch

import kiln
from kiln.report import counters, events
from tests.models.families import FAMILIES
from tests.models.plain_models import PLAIN

SIZES = [(2, 8), (2, 8), (3, 11), (4, 13), (3, 9)]


@dataclass
class Result:
    """A line of the table."""

    family: str
    mode: str
    backend: str = "eager"
    graphs: int = 0
    breaks: list[str] = field(default_factory=list)
    again: int = 0
    other: int = 0
    equal: str = "yes"
    seconds: float = 0.0
    why: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not self.breaks and self.graphs >= 1 and not self.again and self.other <= 1 and self.equal == "yes"

    def line(self) -> str:
        state = "ok  " if self.good else "FAIL"
        counts = f"{self.graphs:3} graphs {len(self.breaks):3} breaks {self.again:2} again {self.other:2} other"
        return f"{state} {self.family:20} {self.mode:6} {counts}  {self.seconds:5.1f} s  equal: {self.equal}"


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor of an output, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
    elif hasattr(value, "__dict__"):
        for item in vars(value).values():
            yield from tensors_in(item)


def difference(expected: Any, seen: Any, what: str) -> str | None:
    """What differs, in words."""
    if type(expected) is not type(seen):
        return f"{what}: a {type(expected).__name__} expected, a {type(seen).__name__} seen"
    first, second = list(tensors_in(expected)), list(tensors_in(seen))
    if len(first) != len(second):
        return f"{what}: {len(first)} tensors expected, {len(second)} seen"
    for number, (one, other) in enumerate(zip(first, second, strict=True)):
        try:
            torch.testing.assert_close(other, one, equal_nan=True, rtol=1e-4, atol=1e-5)
        except AssertionError as error:
            return f"{what} {number}: " + " ".join(str(error).split())[:200]
        if one.requires_grad != other.requires_grad:
            return f"{what} {number}: requires_grad"
    return None


def gradients(model: torch.nn.Module, output: Any) -> list[torch.Tensor | None]:
    """What backward leaves in the parameters, for a loss made of all outputs that want one."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    wanting = [t for t in tensors_in(output) if t.requires_grad and t.is_floating_point()]
    if not wanting:
        return []
    loss = sum((t * torch.arange(t.numel()).view(t.shape).cos()).sum() for t in wanting)
    return list(torch.autograd.grad(loss, parameters, allow_unused=True))


def run(build: Callable[[], tuple[torch.nn.Module, Any]], mode: str, fullgraph: bool, result: Result) -> None:
    """Compile one model, call it with all sizes, and compare with eager."""
    torch.manual_seed(0)
    model, inputs = build()
    model.train(mode == "train")
    calls = [inputs(*size) for size in SIZES]
    state = {name: value.clone() for name, value in model.state_dict().items()}
    kiln.reset()
    compiled = kiln.compile(model, fullgraph=fullgraph, backend=result.backend)
    for number, arguments in enumerate(calls):
        taken = counters["taken over"]
        before = counters["frames"], counters["graphs"]
        outcomes = []
        for function in (model, compiled):
            model.load_state_dict(state)
            torch.manual_seed(number)
            with torch.set_grad_enabled(mode == "train"):
                output = function(**arguments)
                outcomes.append((output, gradients(model, output) if mode == "train" else []))
        after = counters["frames"], counters["graphs"]
        note(result, number, before, after)
        if counters["taken over"] != taken:
            result.equal = f"call {number + 1}: the graph raised, eager took over"
        found = difference(outcomes[0][0], outcomes[1][0], f"call {number + 1}, output")
        found = found or difference(outcomes[0][1], outcomes[1][1], f"call {number + 1}, gradient")
        if found and result.equal == "yes":
            result.equal = found


def note(result: Result, number: int, before: tuple[int, int], after: tuple[int, int]) -> None:
    if number == 0:
        result.graphs = after[1] - before[1]
    elif number == 1:
        result.again = after[0] - before[0]
    else:
        result.other += after[0] - before[0]


def sweep(family: str, build: Callable[[], tuple[torch.nn.Module, Any]], mode: str, backend: str = "eager") -> Result:
    """One line of the table."""
    result = Result(family, mode, backend)
    began = time.perf_counter()
    with kiln.on_recompile(lambda function, reason: result.why.append(f"{function.__qualname__}: {reason}")):
        try:
            run(build, mode, True, result)
        except kiln.exc.Unsupported:
            result.equal, result.why = "yes", []
            result.breaks = list(breaks_of(build, mode, result))
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            result.equal = f"{type(error).__name__}: {str(error)[:300]} ({last.filename}:{last.lineno})"
    result.seconds = time.perf_counter() - began
    return result


def breaks_of(build: Callable[[], tuple[torch.nn.Module, Any]], mode: str, result: Result) -> Iterator[str]:
    """All graph breaks without `fullgraph`."""
    with events.listen() as heard:
        try:
            run(build, mode, False, result)
        except Exception as error:
            result.equal = f"{type(error).__name__}: {str(error)[:300]}"
    yield from dict.fromkeys(str(found) for found in heard.breaks)
    yield from (f"runs in eager: {where}: {reason}" for where, reason in heard.skips)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", help="names (regular expressions); all if none is given")
    parser.add_argument("--modes", default="eval,train")
    parser.add_argument("--backend", default="eager")
    parser.add_argument("--shard", default="1/1", help="k/n: every n-th family, beginning with the k-th")
    parser.add_argument("--failures", action="store_true", help="print only what failed")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    kiln.config.raise_internal_errors = True
    part, parts = map(int, arguments.shard.split("/"))
    everything = {**FAMILIES, **PLAIN}
    chosen = [n for n in everything if not arguments.families or any(re.fullmatch(p, n) for p in arguments.families)]
    results = []
    for family in chosen[part - 1 :: parts]:
        for mode in arguments.modes.split(","):
            result = sweep(family, everything[family], mode, arguments.backend)
            results.append(result)
            if not arguments.failures or not result.good:
                print(result.line(), flush=True)
                for text in [*result.breaks, *(result.why if not result.good else [])]:
                    print(f"       {text}", flush=True)
    good = sum(result.good for result in results)
    print(f"{good} of {len(results)} captured whole, as in eager, compiled again once at most")


if __name__ == "__main__":
    main()
