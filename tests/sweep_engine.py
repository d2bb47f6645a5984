"""Every differentiable operator of torch under the engine: gradients as those of torch's own engine, bit for bit.

    python tests/sweep_engine.py                              # all operators, three samples, float64
    python tests/sweep_engine.py --only linalg_qr --limit 9 -v

Each sample of torch's own descriptions (``op_db``; function, method, in-place variant, non-contiguous arguments) runs
forward in eager. The backward is torch's, and then the engine's: with the traced graph as it is, and for the first
samples through ``kiln.compile``. One cache serves all samples of an operator, so sizes vary in it. A sample comes
three times: as it is; with other values, for which no graph may be made anew; with the first dimension of all arguments
doubled, where the operator takes that.

*Captured* is a backward that the engine did, *again* one for which other values made another graph (the graph depends
on them), *left* one that torch's engine did, with the reason; *close* differs in the last bits (some nodes choose other
operations when they are traced); *failed* is any other difference. Operators run in worker processes that are replaced
when they crash or hang.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # the repository takes the place of this folder: `tests` is a package
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch
import torch.utils._pytree as pytree

import kiln
from kiln.report import events
from kiln.testing import differences
from kiln.testing.observe import read_random_states, run_backward, seed_everything
from tests import sweep_aot, sweep_ops
from tests.sweep_ops import Case, Verdict

Compiler = Callable[[torch.fx.GraphModule], Callable[..., Any]]
Tensors = list[torch.Tensor]


@dataclass
class Options:
    """What to sweep; the same for all workers."""

    limit: int | None = 3
    compiled: int = 1


class Counting:
    """A compiler that counts the graphs it is given."""

    def __init__(self, compiler: Compiler):
        self.compiler, self.count = compiler, 0

    def __call__(self, graph_module: torch.fx.GraphModule) -> Callable[..., Any]:
        self.count += 1
        return self.compiler(graph_module)


def as_it_is(graph_module: torch.fx.GraphModule) -> Callable[..., Any]:
    return graph_module


def captured_again(graph_module: torch.fx.GraphModule) -> Callable[..., Any]:
    return kiln.compile(graph_module, backend="eager", dynamic=True)


# -- one call ---------------------------------------------------------------------------------------------------------


def observed(function: Callable[..., Any], tensors: Tensors, compiler: Compiler | None) -> dict[str, Any]:
    """What a backward pass leaves behind: by torch's engine, or by Kiln's with a compiler."""
    inputs = [sweep_aot.fresh(tensor) for tensor in tensors]
    seed_everything(0)
    result = function(*inputs)
    if compiler is None:
        error = run_backward(result)
    else:
        with kiln.compiled_autograd.enable(compiler):
            error = run_backward(result)
    seen = {
        "raised": None if error is None else f"{type(error).__name__}: {error}",
        "random state": read_random_states()["torch"],
        "gradients": [tensor.grad for tensor in inputs],
    }
    seen = pytree.tree_map_only(torch.Tensor, sweep_aot.densified, seen)
    return {**seen, "layouts": [layout(gradient) for gradient in seen["gradients"]]}


def layout(tensor: torch.Tensor | None) -> list[int] | None:
    """Strides, where they mean something."""
    if tensor is None or tensor.numel() == 0:
        return None
    return [step for step, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]


def judge_call(function: Callable[..., Any], tensors: Tensors, compiler: Compiler) -> Verdict:
    """One backward beside torch's."""
    try:
        expected = observed(function, tensors, None)
    except Exception as error:
        return Verdict("skipped", f"eager raises {type(error).__name__}")
    left: list[str] = []

    def watch(what: str, detail: str) -> None:
        if what == "engine handed over":
            left.append(detail)

    events.watchers.append(watch)
    try:
        with kiln.config.patch(raise_internal_errors=False):  # what cannot be traced is left to torch, as for users
            seen = observed(function, tensors, compiler)
    except Exception as error:
        return Verdict("failed", sweep_aot.error_text(error))
    finally:
        events.watchers.remove(watch)
    # Whose memory gradients share is not compared: eager keeps parts of others' memory where nobody holds it.
    found = differences(expected, seen, name="", identity=False, strides=False)
    if found and not differences(expected, seen, name="", identity=False, strides=False, rtol=1e-12, atol=1e-12):
        return Verdict("close", re.sub(r"\s+", " ", found[0]))
    if found:
        return Verdict("failed", re.sub(r"\s+", " ", "; ".join(found[:2])))
    return Verdict("left", left[0]) if left else Verdict("captured")


# -- other arguments --------------------------------------------------------------------------------------------------


def other_values(tensors: Tensors) -> Tensors:
    """The same but for a factor: what is symmetric, sorted or positive stays so."""
    made = [sweep_aot.fresh(tensor) for tensor in tensors]
    for tensor in made:
        if tensor.requires_grad:
            tensor.detach().mul_(0.875)
    return made


def doubled(tensors: Tensors) -> Tensors:
    """Twice as long in the first dimension."""
    made = []
    for tensor in tensors:
        longer = torch.cat([tensor, tensor]).detach() if tensor.dim() else tensor.detach()
        made.append(longer.requires_grad_(tensor.requires_grad))
    return made


def judge_case(case: Case, compiler: Counting) -> Iterator[tuple[str, Verdict]]:
    """The three calls of a sample."""
    function, tensors = sweep_aot.of_tensors(case)
    first = judge_call(function, tensors, compiler)
    yield case.name, first
    if first.status != "captured" or sweep_ops.has_sparse(tensors):
        return
    before = compiler.count
    second = judge_call(function, other_values(tensors), compiler)
    if second.status == "captured" and compiler.count != before:
        second = Verdict("again", "another graph for other values")
    yield f"{case.name}, other values", second
    longer = judge_call(function, doubled(tensors), compiler)
    if longer.status != "skipped":
        yield f"{case.name}, doubled", longer


def judge_operator(operator: Any, options: Options) -> Iterator[tuple[str, Verdict]]:
    """All verdicts on one operator, each under the name of its case."""
    if torch.float64 not in operator.supported_backward_dtypes("cpu"):
        return
    for name, compile_graph, limit in (
        ("graph", as_it_is, options.limit),
        ("compiled", captured_again, options.compiled),
    ):
        if limit == 0:
            continue
        kiln.reset()
        kiln.compiled_autograd.reset()
        compiler = Counting(compile_graph)
        for case in sweep_aot.guarded(sweep_ops.cases(operator, limit, torch.float64, noncontiguous=name == "graph")):
            if isinstance(case, Exception):
                yield (
                    f"{operator.formatted_name} ({name})",
                    Verdict("skipped", f"no samples: {sweep_aot.error_text(case)}"),
                )
                break
            if case.name.endswith(" out="):
                continue
            for title, verdict in judge_case(case, compiler):
                yield f"{title} ({name})", verdict


# -- the run ----------------------------------------------------------------------------------------------------------


def summed_up(results: dict[str, list[tuple[str, Verdict]]]) -> Iterator[str]:
    """Counts of cases, reasons of all that was not captured, and operators that were left."""
    reasons: dict[tuple[str, str], list[str]] = {}
    counts: Counter[str] = Counter()
    for verdicts in results.values():
        for case, verdict in verdicts:
            counts[verdict.status] += 1
            if verdict.status != "captured":
                reasons.setdefault((verdict.status, verdict.reason), []).append(case)
    for (status, reason), cases in sorted(reasons.items()):
        more = f" and {len(cases) - 6} more" if len(cases) > 6 else ""
        yield f"{status:8} {len(cases):4} x  {reason[:400]}\n              {', '.join(cases[:6])}{more}"
    left = [name for name, verdicts in results.items() if any(verdict.status == "left" for _, verdict in verdicts)]
    failed = [name for name, verdicts in results.items() if any(verdict.status == "failed" for _, verdict in verdicts)]
    yield f"{sum(counts.values())} calls: " + ", ".join(f"{number} {status}" for status, number in counts.most_common())
    yield f"{len(results)} operators: {len(left)} left to torch's engine at times, {len(failed)} with a failure"


def main() -> int:
    parser = sweep_aot.arguments(__doc__)
    parser.add_argument("--limit", type=int, default=3, help="samples an operator")
    parser.add_argument("--compiled", type=int, default=1, help="samples an operator through kiln.compile")
    given = parser.parse_args()
    if given.worker:
        sweep_aot.work(Options(**json.loads(given.worker)), judge_operator)
        return 0
    names = sweep_aot.chosen(sweep_aot.differentiable_operators(), given)
    began = time.perf_counter()
    options = Options(given.limit, given.compiled)
    results = sweep_aot.sweep(names, options, given.processes, given.verbose, __file__)
    for line in summed_up(results):
        print(line)
    print(f"{time.perf_counter() - began:.0f} s")
    return 1 if any(verdict.status == "failed" for verdicts in results.values() for _, verdict in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
