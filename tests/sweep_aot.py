"""Every differentiable operator of torch ahead of time: results and gradients through ``aot_eager`` as in eager.

    python tests/sweep_aot.py                                 # all operators, all samples, float32 and float64
    python tests/sweep_aot.py --only linalg_qr --limit 5 -v   # one operator (regular expression), five samples
    python tests/sweep_aot.py --second --dynamic              # second derivatives; with all sizes symbolic

Each sample of torch's own descriptions (``op_db``) goes two ways. *Direct*: `kiln.aot.aot_function` on a function of
the sample's tensors, without capture. *Compiled*: ``kiln.compile(backend="aot_eager")`` and everything that
`kiln.testing.check` sees; its cost limits it to a few samples (`--compiled`). Values, gradients, which gradients are
None, ``requires_grad``, changed arguments and the state of the random generator are compared. The function, the method,
the in-place variant, ``out=`` and non-contiguous arguments are cases of their own.

Operators run in worker processes that are replaced when they crash or hang. What fails is compared with
``tests/aot/known_failures.txt``: a failure that is not there, or an entry that does not fail, is an error (`--write`
rewrites the file instead). The list must stay below 2% of the operators.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import re
import select
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # the repository takes the place of this folder: `tests` is a package
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch
import torch.utils._pytree as pytree

import kiln
from kiln.testing import differences
from kiln.testing.observe import _weights as weights
from kiln.testing.observe import read_random_states, run_backward, seed_everything, tensors_in
from tests import sweep_ops
from tests.sweep_ops import Case, Summary, Verdict

KNOWN_FAILURES = Path(__file__).parent / "aot" / "known_failures.txt"
MOST_FAILURES = 0.02  # of the operators
DTYPES = {"float32": torch.float32, "float64": torch.float64}
# Both sides run the same kernels; only the order in which gradients are added may differ.
TOLERANCES = {"float32": {"rtol": 1.3e-5, "atol": 1e-5}, "float64": {"rtol": 1e-9, "atol": 1e-9}}
PATIENCE = 300.0  # seconds without news after which a worker is replaced


@dataclass
class Options:
    """What to sweep; the same for all workers."""

    dtypes: list[str] = field(default_factory=lambda: list(DTYPES))
    limit: int | None = None
    compiled: int = 2
    dynamic: bool = False
    second: bool = False


# -- the direct way ---------------------------------------------------------------------------------------------------


def op_by_op(graph_module: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    """A compiler that compiles nothing: the graph runs as it is."""
    return graph_module.forward


def of_tensors(case: Case) -> tuple[Callable[..., Any], list[torch.Tensor]]:
    """A case as a function of its tensors alone; all other arguments are part of it."""
    leaves, structure = pytree.tree_flatten((case.args, case.kwargs))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def function(*tensors):
        filled = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = tensor
        args, kwargs = pytree.tree_unflatten(filled, structure)
        return case.program(*args, **kwargs)

    return function, [leaves[place] for place in places]


def fresh(tensor: torch.Tensor) -> torch.Tensor:
    """A leaf with the same values, strides where memory allows, and memory of its own."""
    made = tensor.detach().clone()
    if tensor.layout is torch.strided and made.stride() != tensor.stride() and 0 not in tensor.stride():
        holes = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
        made = holes.copy_(made) if not torch._debug_has_internal_overlap(holes) else made
    return made.requires_grad_(tensor.requires_grad)


def observed(function: Callable[..., Any], tensors: list[torch.Tensor], second: bool) -> dict[str, Any]:
    """What calling and differentiating leaves behind; all of it dense, so that it can be compared."""
    inputs = [fresh(tensor) for tensor in tensors]
    seed_everything(0)
    result = function(*inputs)
    seen: dict[str, Any] = {"result": result}
    if second:
        seen["first derivative"] = first_derivative(result, inputs)
        error = run_backward(seen["first derivative"])
    else:
        error = run_backward(result)
    if error is not None:
        seen["backward raised"] = f"{type(error).__name__}: {error}"
    seen["random state"] = read_random_states()["torch"]
    seen["inputs"] = inputs
    seen["gradients"] = [tensor.grad for tensor in inputs]
    return pytree.tree_map_only(torch.Tensor, densified, seen)


def first_derivative(result: Any, inputs: list[torch.Tensor]) -> list[torch.Tensor | None]:
    outputs = [tensor for tensor in tensors_in(result) if tensor.requires_grad]
    wanted = [tensor for tensor in inputs if tensor.requires_grad]
    if not outputs or not wanted:
        return []
    ones = [weights(output) for output in outputs]
    return list(torch.autograd.grad(outputs, wanted, ones, create_graph=True, allow_unused=True))


def densified(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.layout is torch.strided else tensor.detach().to_dense().requires_grad_(tensor.requires_grad)


def judge_direct(case: Case, dtype: str, options: Options) -> Verdict:
    """One call through `aot_function` beside the same call in eager."""
    function, tensors = of_tensors(case)
    try:
        expected = observed(function, tensors, options.second)
    except Exception as error:
        return Verdict("skipped", f"eager raises {type(error).__name__}")
    try:
        with sweep_ops.left_to_eager() as left:
            seen = observed(ahead_of_time(function, options), tensors, options.second)
    except Exception as error:
        return judge_left_alone(function, tensors, expected, dtype, options, error_text(error))
    found = list(compared(expected, seen, dtype))
    if found:
        return Verdict("failed", re.sub(r"\s+", " ", "; ".join(found[:2])))
    return Verdict("eager", f"left to eager: {left[0]}") if left else Verdict("captured")


def ahead_of_time(function: Callable[..., Any], options: Options) -> Callable[..., Any]:
    from kiln.aot import aot_function

    return aot_function(function, fw_compiler=op_by_op, bw_compiler=op_by_op, dynamic=options.dynamic)


def judge_left_alone(
    function: Callable[..., Any], tensors: list[torch.Tensor], expected: Any, dtype: str, options: Options, reason: str
) -> Verdict:
    """After an error inside of Kiln: whether users, for whom the function is left to eager then, get its results."""
    try:
        with kiln.config.patch(raise_internal_errors=False):
            seen = observed(ahead_of_time(function, options), tensors, options.second)
    except Exception as error:
        return Verdict("failed", error_text(error))
    return Verdict("failed", reason) if list(compared(expected, seen, dtype)) else Verdict("eager", reason)


def on_one_side(expected: dict[str, Any], seen: dict[str, Any]) -> Iterator[str]:
    """What only eager has, or only Kiln."""
    for part in expected.keys() ^ seen.keys():
        yield f"{part}: {expected.get(part, 'nothing')} expected, {seen.get(part, 'nothing')} seen"


def compared(expected: dict[str, Any], seen: dict[str, Any], dtype: str) -> Iterator[str]:
    """What differs. How often the memory of a gradient was written to while it was computed is nobody's business."""
    yield from on_one_side(expected, seen)
    parts = [part for part in expected if part in seen]
    sums = ("gradients", "first derivative")
    for names, versions in (([p for p in parts if p not in sums], True), ([p for p in parts if p in sums], False)):
        values = [{name: side[name] for name in names} for side in (expected, seen)]
        yield from differences(*values, name="", versions=versions, **TOLERANCES[dtype])


def error_text(error: Exception) -> str:
    """An error in one line that is the same each time."""
    text = f"{type(error).__name__}: {error}".strip().splitlines()[0]
    return re.sub(r"0x[0-9a-f]+", "0x…", text)[:300]


# -- operators --------------------------------------------------------------------------------------------------------


def differentiable_operators() -> dict[str, Any]:
    """torch's descriptions of what has a derivative on the CPU, by name."""
    return {
        operator.formatted_name: operator
        for operator in sweep_ops.operators()
        if operator.supports_autograd and not sweep_ops.UNSTABLE.match(operator.name) and dtypes_of(operator)
    }


def dtypes_of(operator: Any) -> list[str]:
    known = operator.supported_backward_dtypes("cpu")
    return [name for name, dtype in DTYPES.items() if dtype in known]


def judge_operator(operator: Any, options: Options) -> Iterator[tuple[str, Verdict]]:
    """All verdicts on one operator, each under the name of its case."""
    for dtype in dtypes_of(operator):
        if dtype not in options.dtypes or (options.second and not operator.supports_gradgrad):
            continue
        for case in guarded(sweep_ops.cases(operator, options.limit, DTYPES[dtype], noncontiguous=True)):
            if isinstance(case, Exception):
                yield f"{operator.formatted_name} ({dtype})", Verdict("skipped", f"no samples: {error_text(case)}")
                break
            yield f"{case.name} ({dtype}, direct)", judge_direct(case, dtype, options)
        if options.second:
            continue
        for case in guarded(sweep_ops.cases(operator, options.compiled, DTYPES[dtype])):
            if isinstance(case, Exception):
                break
            dynamic = options.dynamic or None
            more = {
                **TOLERANCES[dtype],
                "compare_warnings": False,
            }  # kernels warn on stderr out of a graph of operators
            verdict = sweep_ops.judge(case, dynamic, backend="aot_eager", **more)
            yield f"{case.name} ({dtype}, compiled)", verdict


def guarded(items: Iterator[Case]) -> Iterator[Case | Exception]:
    """Items, or the error that making them raised, as the last one."""
    try:
        yield from items
    except Exception as error:
        yield error


# -- workers ----------------------------------------------------------------------------------------------------------


Judge = Callable[[Any, Any], Iterator[tuple[str, Verdict]]]


def work(options: Any, judge: Judge, described: Callable[[], dict[str, Any]] = differentiable_operators) -> None:
    """A worker: reads names of operators, writes a line of JSON for each case and an empty list after the last."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what operators print is not an answer
    operators = described()
    torch.set_num_threads(1)
    with kiln.config.patch(raise_internal_errors=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for line in sys.stdin:
            for name, verdict in judge(operators[line.strip()], options):
                print(json.dumps([name, verdict.status, verdict.reason]), file=out, flush=True)
            print("[]", file=out, flush=True)


class Worker:
    """A worker process as its owner sees it."""

    def __init__(self, options: Any, script: str):
        command = [sys.executable, script, "--worker", json.dumps(vars(options))]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )

    def judge(self, name: str) -> Iterator[tuple[str, Verdict]]:
        """The verdicts on an operator; a worker that ends or falls silent is a verdict too."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{name}\n".encode())
        self.process.stdin.flush()
        latest = "the first case"
        buffered = b""
        while True:
            ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE)
            chunk = os.read(self.process.stdout.fileno(), 65536) if ready else b""
            if not chunk:
                code = self.process.poll() if ready else None
                end = "hangs" if not ready else f"crashes (exit status {self.process.wait() if code is None else code})"
                self.close()
                yield name, Verdict("failed", f"the process {end} after {latest}")
                return
            *lines, buffered = (buffered + chunk).split(b"\n")
            for line in lines:
                answer = json.loads(line)
                if not answer:
                    return
                latest = answer[0]
                yield latest, Verdict(*answer[1:])

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def sweep(
    names: list[str],
    options: Any,
    processes: int,
    verbose: bool,
    script: str = __file__,
    seconds: float = float("inf"),
) -> dict[str, list[tuple[str, Verdict]]]:
    """All verdicts by operator; workers (the script, with `--worker`) take the next operator as they get free, until
    the time is up."""
    end = time.monotonic() + seconds
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for name in names:
        waiting.put(name)
    results: dict[str, list[tuple[str, Verdict]]] = {}

    def attend() -> None:
        worker = Worker(options, script)
        try:
            while time.monotonic() < end:
                name = waiting.get_nowait()
                if worker.process.poll() is not None:
                    worker = Worker(options, script)
                results[name] = list(worker.judge(name))
                for case, verdict in results[name] if verbose else ():
                    print(f"{case}: {verdict.status} {verdict.reason[:300]}", flush=True)
        except queue.Empty:
            return
        finally:
            worker.close()

    threads = [threading.Thread(target=attend) for _ in range(min(processes, len(names)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


# -- what is known to fail --------------------------------------------------------------------------------------------


def failures(results: dict[str, list[tuple[str, Verdict]]]) -> dict[str, str]:
    """The operators of which a case failed, with the first reason."""
    found: dict[str, str] = {}
    for name, verdicts in sorted(results.items()):
        for case, verdict in verdicts:
            if verdict.status == "failed":
                found.setdefault(name, f"{case.removeprefix(name).strip()}: {verdict.reason}")
    return found


def known_failures() -> dict[str, str]:
    """The recorded list: operator, then the reason in words."""
    lines = KNOWN_FAILURES.read_text().splitlines() if KNOWN_FAILURES.exists() else []
    entries = (line.split(None, 1) for line in lines if line.strip() and not line.startswith("#"))
    return {name: reason for name, reason in entries}


HEADER = """\
# Operators of which a sample differs from eager ahead of time, with the reason. `python tests/sweep_aot.py` compares.
"""


def write_known(found: dict[str, str]) -> None:
    """Record what fails; reasons that a person wrote stay."""
    before = known_failures()
    lines = [f"{name:40} {before.get(name, reason)}\n" for name, reason in found.items()]
    KNOWN_FAILURES.write_text(HEADER + "".join(lines))


def compare_with_known(found: dict[str, str], swept: list[str], partial: bool) -> list[str]:
    """What is wrong with the run, in words. A partial run cannot tell that an entry is out of date."""
    known = known_failures()
    wrong = [f"fails, and is not in the list: {name}: {reason}" for name, reason in found.items() if name not in known]
    if not partial:
        wrong += [f"is in the list, and does not fail: {name}" for name in known if name in swept and name not in found]
        if len(found) >= MOST_FAILURES * len(swept):
            wrong.append(f"{len(found)} of {len(swept)} operators fail: {MOST_FAILURES:.0%} or more")
    return wrong


def arguments(description: str | None) -> argparse.ArgumentParser:
    """The options of all sweeps with worker processes."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="regular expression that operator names must match")
    parser.add_argument("--shard", default="1/1", help="which part of the operators: 1/2, 2/2")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("-v", dest="verbose", action="store_true")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser


def chosen(names: Iterable[str], given: argparse.Namespace) -> list[str]:
    """The operators that are asked for."""
    part, parts = map(int, given.shard.split("/"))
    return [name for name in names if re.search(given.only, name)][part - 1 :: parts]


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--dtype", choices=DTYPES, help="one of the two")
    parser.add_argument("--limit", type=int, help="samples an operator, direct; all if not given")
    parser.add_argument("--compiled", type=int, default=2, help="samples an operator through kiln.compile")
    parser.add_argument("--dynamic", action="store_true", help="with all sizes symbolic")
    parser.add_argument("--second", action="store_true", help="second derivatives, direct only")
    parser.add_argument("--write", action="store_true", help="rewrite the list of known failures")
    given = parser.parse_args()
    if given.worker:
        work(Options(**json.loads(given.worker)), judge_operator)
        return 0
    dtypes = [given.dtype] if given.dtype else list(DTYPES)
    options = Options(dtypes, given.limit, given.compiled, given.dynamic, given.second)
    names = chosen(differentiable_operators(), given)
    began = time.perf_counter()
    results = sweep(names, options, given.processes, given.verbose)
    return report(results, names, options, given, time.perf_counter() - began)


def report(results: dict[str, Any], names: list[str], options: Options, given: Any, seconds: float) -> int:
    """Print what was found; the exit status says whether it is as recorded."""
    summary = Summary()
    for verdicts in results.values():
        for case, verdict in verdicts:
            summary.add(Case(case, lambda: None, (), {}), verdict)
    for line in summary.lines():
        print(line)
    found = failures(results)
    print(f"{len(names)} operators, {len(found)} of them with a failure, in {seconds:.0f} s")
    whole = not given.only and given.shard == "1/1" and options == Options()
    if given.write and whole:
        write_known(found)
    wrong = compare_with_known(found, names, partial=not whole)
    for text in wrong:
        print(text)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
