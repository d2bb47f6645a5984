"""Every operator of torch through the backend ``kiln``: results and gradients as in eager, in all types and layouts.

    python tests/sweep_codegen.py                                  # all operators, types and layouts
    python tests/sweep_codegen.py --only '^nn_functional' --dtype bfloat16 -v
    python tests/sweep_codegen.py --quick --processes 16           # one sample, float32 and float64
    python tests/sweep_codegen.py --level reference                # what lowering says, computed without code
    python tests/sweep_codegen.py --device cuda --quick --processes 16 --seconds 200

Samples are those of torch's own descriptions (``op_db``), as they are and laid out otherwise: *transposed* (memory in
the reverse order), *sliced* (every second element of something bigger), *expanded* (the first row, repeated),
*channels-last*, *empty* (no rows), *one* (a single element); *in place* changes its first argument, *compiled* goes
through ``kiln.compile``, all others through `kiln.aot.aot_function` with the backend's compiler of graphs.

Values are compared with eager's. Where they differ by more than the tolerance, both are compared with what eager gives
in float64: what is as near to that as eager's own result is right. *Lowered* means that kernels did all of it, *called*
that ATen was called for some operators (which, and why, is listed), *eager* that a graph was left to eager as a whole.
What fails is compared with ``tests/codegen/known_failures.txt``, which must stay below 1% of the operators; on a GPU
with ``known_failures_cuda.txt``. ``--seconds`` ends a sweep early: operators that are not reached are counted.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # the repository takes the place of this folder: `tests` is a package
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch
import torch.utils._pytree as pytree

import kiln
from kiln.aot import aot_function
from kiln.exc import BackendError
from kiln.report import events
from kiln.testing import differences
from kiln.testing.observe import read_random_states, run_backward, seed_everything
from tests import sweep_aot, sweep_ops
from tests.sweep_aot import densified, error_text, guarded, of_tensors
from tests.sweep_ops import Case, Verdict, calling

KNOWN_FAILURES = {
    device: Path(__file__).parent / "codegen" / name
    for device, name in (("cpu", "known_failures.txt"), ("cuda", "known_failures_cuda.txt"))
}
MOST_FAILURES = 0.01  # of the operators
FLOATS = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}
HALF = {"float16": torch.float16}  # on GPUs only
WHOLE = {"int64": torch.int64, "int32": torch.int32, "uint8": torch.uint8, "bool": torch.bool}
DTYPES = FLOATS | WHOLE
ALL_DTYPES = DTYPES | HALF
TOLERANCES = {"float32": (1e-5, 1e-5), "float64": (1e-9, 1e-9), "bfloat16": (1.6e-2, 1e-2), "float16": (2e-3, 1e-3)}
FAR = 1e4  # units in the last place that eager may be away from float64 for the comparison to mean something
# How often results were written to on the way, and which memory gradients share.
HARMLESS = re.compile(r"(^\S+: version \d+ expected|\.grad: (strides and offset|expected to share storage))")
LOOKED_AT = 12  # samples, to find one with enough dimensions for layouts
LEVELS = ("reference", "scheduled", "code")


@dataclass
class Options:
    """What to sweep; the same for all workers."""

    dtypes: list[str] = field(default_factory=lambda: list(DTYPES))
    limit: int = 4
    laid_out: bool = True  # one sample in other layouts, too
    compiled: int = 1
    dynamic: bool = False
    level: str = "code"
    device: str = "cpu"


# -- layouts: the same call with tensors that lie otherwise -----------------------------------------------------------


def transposed(tensor: torch.Tensor) -> torch.Tensor:
    order = list(reversed(range(tensor.dim())))
    return tensor.permute(order).contiguous().permute(order)


def sliced(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.dim():
        return tensor
    bigger = tensor.new_zeros((*tensor.shape[:-1], 2 * tensor.shape[-1] + 1))
    bigger[..., 1::2] = tensor
    return bigger[..., 1::2]


def expanded(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[:1].clone().expand(tensor.shape) if tensor.dim() and tensor.shape[0] else tensor


def channels_last(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor


def emptied(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[:0].clone() if tensor.dim() else tensor


def narrowed(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[(slice(1),) * tensor.dim()].clone()


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transposed": transposed,
    "sliced": sliced,
    "expanded": expanded,
    "channels-last": channels_last,
    "empty": emptied,
    "one": narrowed,
}


def laid_out(case: Case, how: str) -> Case | None:
    """A call with its tensors laid out otherwise; None if that changes nothing."""
    changed = False

    def change(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal changed
        made = LAYOUTS[how](tensor.detach())
        changed |= made.shape != tensor.shape or made.stride() != tensor.stride()
        return made.requires_grad_(tensor.requires_grad)

    args, kwargs = pytree.tree_map_only(torch.Tensor, change, (case.args, case.kwargs))
    return Case(f"{case.name} {how}", case.program, args, kwargs) if changed else None


def changing(function: Callable[..., Any]) -> Callable[..., Any]:
    """The first argument is changed, and returned."""

    def program(x, *args, **kwargs):
        function(x, *args, **kwargs)
        return x, x + 1

    return program


def cases(operator: Any, dtype: str, options: Options) -> Iterator[Case]:
    """All calls of one operator in one type: the first samples, and one of them in other layouts."""
    samples = dense_samples(operator, ALL_DTYPES[dtype], max(options.limit, LOOKED_AT), options.device)
    yield from samples[: options.limit]
    if not samples or not options.laid_out:
        return
    chosen = samples[most(samples, 2)]
    for how in LAYOUTS:
        found = laid_out(samples[most(samples, 4)] if how == "channels-last" else chosen, how)
        if found is not None and found.name not in LEFT_OUT:
            yield found
    if operator.inplace_variant is not None and isinstance(chosen.args[0], torch.Tensor):
        args = (chosen.args[0].detach(), *chosen.args[1:])
        yield Case(f"{chosen.name} in place", changing(operator.inplace_variant), args, chosen.kwargs)


def dense_samples(operator: Any, dtype: torch.dtype, count: int, device: str) -> list[Case]:
    differentiable = operator.supports_autograd and dtype in operator.supported_backward_dtypes(device)
    torch.manual_seed(0)
    found = []
    for sample in operator.sample_inputs(device, dtype, requires_grad=differentiable):
        if len(found) == count:
            break
        args, kwargs = (sample.input, *sample.args), dict(sample.kwargs)
        if not sweep_ops.has_sparse((args, kwargs)):
            found.append(Case(operator.formatted_name, calling(operator.op), args, kwargs))
    return found


def most(samples: list[Case], dims: int) -> int:
    """The first sample with a tensor of so many dimensions; else the first of all."""

    def has(case: Case) -> bool:
        tensors = pytree.tree_leaves((case.args, case.kwargs))
        return any(isinstance(tensor, torch.Tensor) and tensor.dim() >= dims for tensor in tensors)

    return next((number for number, case in enumerate(samples) if has(case)), 0)


# -- running ----------------------------------------------------------------------------------------------------------


def fresh(tensor: torch.Tensor) -> torch.Tensor:
    """A leaf with the same values, laid out the same way in memory of its own."""
    memory = tensor.detach().untyped_storage().clone()
    made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    made.set_(memory, tensor.storage_offset(), tensor.shape, tensor.stride())
    return made.requires_grad_(tensor.requires_grad)


def observed(function: Callable[..., Any], tensors: list[torch.Tensor]) -> dict[str, Any]:
    """What calling and differentiating leaves behind."""
    inputs = [fresh(tensor) for tensor in tensors]
    seed_everything(0)
    seen: dict[str, Any] = {"result": function(*inputs)}
    error = run_backward(seen["result"])
    if error is not None:
        seen["backward raised"] = f"{type(error).__name__}"
    states = read_random_states()
    seen["random state"] = [states["torch"], states.get("cuda")]
    seen["inputs"] = inputs
    seen["gradients"] = [tensor.grad for tensor in inputs]
    return pytree.tree_map_only(torch.Tensor, densified, seen)


def compiler(level: str) -> Callable[..., Any]:
    """The backend's compiler of graphs, or lowering alone, evaluated with torch."""
    from kiln.codegen.graph_compiler import compile_graph
    from kiln.lower.lowering import Lowering

    if level == "code":
        return compile_graph
    from kiln.loops import reference
    from kiln.lower.schedule.scheduling import schedule

    def compile_for_reference(module: torch.fx.GraphModule, examples: Any = ()) -> Callable[..., Any]:
        lowered = Lowering(module).run()
        program = schedule(lowered) if level == "scheduled" else lowered
        return lambda *inputs: reference.run(program, inputs)

    return compile_for_reference


class Lowerings:
    """What became of the graphs lowered in this process: operators called from ATen, graphs left to eager."""

    def __init__(self) -> None:
        self.called: Counter[tuple[str, str]] = Counter()
        self.left: list[str] = []
        self.graphs = 0

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        from kiln.lower.lowering import Lowering

        run = Lowering.run

        @functools.wraps(run)
        def noted(lowering: Any) -> Any:
            lowered = run(lowering)
            self.graphs += 1
            targets = {node.name: str(node.target) for node in lowering.module.graph.nodes}
            self.called.update((targets.get(name, name), reason) for name, reason in lowered.called.items())
            return lowered

        def watch(what: str, detail: str) -> None:
            if what in ("aot eager", "codegen eager"):
                self.left.append(detail)

        Lowering.run = noted  # type: ignore[method-assign]
        events.watchers.append(watch)
        try:
            yield
        finally:
            events.watchers.remove(watch)
            Lowering.run = run  # type: ignore[method-assign]

    def verdict(self) -> Verdict:
        if self.left:
            return Verdict("eager", self.left[0][:200])
        if self.called:
            return Verdict("called", ", ".join(sorted({name for name, _ in self.called})))
        return Verdict("lowered")


# -- judging ----------------------------------------------------------------------------------------------------------


def judge_direct(case: Case, dtype: str, options: Options, seen: Lowerings) -> Verdict:
    """One call through the backend's compiler of graphs beside the same call in eager."""
    function, tensors = of_tensors(case)
    try:
        expected = observed(function, tensors)
    except Exception as error:
        return Verdict("skipped", f"eager raises {type(error).__name__}")
    try:
        with seen.watching():
            found = observed(ahead_of_time(function, options), tensors)
    except BackendError as error:
        return Verdict("failed", error_text(error))
    except Exception as error:
        return judge_left_alone(function, tensors, expected, dtype, options, error_text(error))
    wrong = list(compared(expected, found, dtype, identity=options.level == "code"))
    if wrong and wide_enough(expected, found, case, dtype):
        wrong = []
    if wrong and any(list(compared(expected, observed(function, tensors), dtype, identity=True)) for _ in range(3)):
        return Verdict("skipped", "eager gives something else each time")
    return Verdict("failed", re.sub(r"\s+", " ", "; ".join(wrong[:2]))) if wrong else seen.verdict()


def ahead_of_time(function: Callable[..., Any], options: Options) -> Callable[..., Any]:
    compile_graph = compiler(options.level)
    return aot_function(function, fw_compiler=compile_graph, bw_compiler=compile_graph, dynamic=options.dynamic)


def judge_left_alone(
    function: Callable[..., Any], tensors: list[torch.Tensor], expected: Any, dtype: str, options: Options, reason: str
) -> Verdict:
    """After an error while the call was traced: whether users, for whom it is left to eager, get its results."""
    try:
        with kiln.config.patch(raise_internal_errors=False):
            found = observed(ahead_of_time(function, options), tensors)
    except Exception as error:
        return Verdict("failed", error_text(error))
    wrong = list(compared(expected, found, dtype, identity=True))
    return Verdict("failed", reason) if wrong else Verdict("eager", reason)


def compared(expected: dict[str, Any], found: dict[str, Any], dtype: str, identity: bool) -> Iterator[str]:
    """What differs; also in which tensors share memory. How often memory was written to on the way is not compared."""
    yield from sweep_aot.on_one_side(expected, found)
    parts = [part for part in expected if part in found]
    sides = [{part: side[part] for part in ("inputs", *parts)} for side in (expected, found)]
    rtol, atol = TOLERANCES.get(dtype, (1e-5, 1e-5))
    more = {"name": "", "versions": False, "strides": False, "gradients": False, "rtol": rtol, "atol": atol}
    gradients = [side.pop("gradients") for side in sides]
    yield from differences(*sides, identity=identity, **more)
    yield from differences(*gradients, identity=False, **more | {"name": "gradients"})
    yield from other_strides(*sides)
    yield from other_strides(*gradients)


def other_strides(expected: Any, found: Any) -> Iterator[str]:
    """Strides that differ where they mean something: along more than one element."""
    leaves = [pytree.tree_leaves_with_path(side) for side in (expected, found)]
    for (path, one), (_, other) in zip(*leaves, strict=False):
        if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and one.numel() > 1:
            strides = [[s for s, n in zip(t.stride(), one.shape, strict=True) if n > 1] for t in (one, other)]
            if one.shape == other.shape and strides[0] != strides[1]:
                yield f"{pytree.keystr(path)}: strides {one.stride()} expected, {other.stride()} seen"


def wide_enough(expected: dict[str, Any], found: dict[str, Any], case: Case, dtype: str) -> bool:
    """Whether all that differs is values, and they are as near to float64's as eager's are."""
    if dtype not in ("float32", "float16", "bfloat16") or any(shape_differs(expected, found)):
        return False
    function, tensors = of_tensors(widened(case))
    try:
        exact = observed(function, tensors)
    except Exception:
        return False
    leaves = [
        pytree.tree_leaves((each["result"], each["inputs"], each["gradients"])) for each in (exact, expected, found)
    ]
    if len({len(each) for each in leaves}) > 1:
        return False
    sizes = [
        leaf[leaf.isfinite()].abs() for leaf in leaves[0] if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
    ]
    largest = max((size.max().item() for size in sizes if size.numel()), default=0.0)
    return all(as_near(*each, largest) for each in zip(*leaves, strict=True) if isinstance(each[1], torch.Tensor))


def widened(case: Case) -> Case:
    def widen(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.dtype.is_floating_point:
            return tensor
        return fresh(tensor).detach().double().requires_grad_(tensor.requires_grad)

    args, kwargs = pytree.tree_map_only(torch.Tensor, widen, (case.args, case.kwargs))
    return Case(case.name, case.program, args, kwargs)


def shape_differs(expected: dict[str, Any], found: dict[str, Any]) -> Iterator[str]:
    """What is wrong apart from values."""

    def blank(tensor: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(tensor) if tensor.dtype.is_floating_point else tensor

    for part in ("result", "inputs", "gradients", "random state", "backward raised"):
        sides = [pytree.tree_map_only(torch.Tensor, blank, side.get(part)) for side in (expected, found)]
        yield from differences(*sides, name=part, identity=False, gradients=False, requires_grad=False, strides=False)
    yield from other_strides(expected, found)


def as_near(exact: torch.Tensor, expected: torch.Tensor, found: torch.Tensor, largest: float) -> bool:
    """Whether what was found is about as far from what is exact as eager's own, at most.

    ``largest``: of all numbers around. Where they cancel out, nothing but their rounding is left.
    """
    if not expected.dtype.is_floating_point or not expected.numel():
        return True
    if exact.dtype is not torch.float64 or exact.shape != expected.shape:
        return False
    with torch.no_grad():
        wide, eager, kiln = exact, expected.double(), found.double()
        unsure = ~(wide.isfinite() & eager.isfinite())  # overflow: there both must say the same
        if not torch.equal(eager[unsure].nan_to_num(), kiln[unsure].nan_to_num()):
            return False
        errors = [(side - wide)[~unsure].abs() for side in (eager, kiln)]
        if not errors[0].numel():
            return True
        unit, size = torch.finfo(expected.dtype).eps, wide[~unsure].abs()
        if errors[0].max() > FAR * unit * largest:
            return False  # rounding alone does not do that: float64 computes something else
        return bool((errors[1] <= 2 * errors[0].max() + 4 * unit * size).all())


def judge_compiled(case: Case, dtype: str, options: Options, seen: Lowerings) -> Verdict:
    """The same through ``kiln.compile``, and everything that `kiln.testing.check` sees."""
    rtol, atol = TOLERANCES.get(dtype, (1e-5, 1e-5))
    more = {"rtol": rtol, "atol": atol, "compare_warnings": False}
    with seen.watching():
        verdict = sweep_ops.judge(case, options.dynamic or None, backend="kiln", **more)
    harmless = verdict.status == "failed" and all(map(HARMLESS.search, verdict.reason.split("; ")))
    return seen.verdict() if verdict.status == "captured" or harmless else verdict


def judge_operator(operator: Any, options: Options) -> Iterator[tuple[str, Verdict]]:
    """All verdicts on one operator, each under the name of its case; last, what lowering did with its graphs."""
    called: Counter[tuple[str, str]] = Counter()
    graphs = 0
    for dtype in options.dtypes:
        if ALL_DTYPES[dtype] not in operator.supported_dtypes(options.device):
            continue
        compiled = 0
        for case in guarded(cases(operator, dtype, options)):
            if isinstance(case, Exception):
                yield f"{operator.formatted_name} ({dtype})", Verdict("skipped", f"no samples: {error_text(case)}")
                break
            seen = Lowerings()
            yield f"{case.name} ({dtype})", judge_direct(case, dtype, options, seen)
            stop_if_broken(options.device)
            called, graphs = called + seen.called, graphs + seen.graphs
            if compiled < options.compiled and dtype == "float32" and options.level == "code":
                compiled += 1
                yield f"{case.name} ({dtype}, compiled)", judge_compiled(case, dtype, options, Lowerings())
    facts = {"graphs": graphs, "called": [[name, why, count] for (name, why), count in called.items()]}
    yield operator.formatted_name, Verdict("facts", json.dumps(facts))


def stop_if_broken(device: str) -> None:
    """Ends a worker whose GPU can no longer be used, as after an index out of range: it is replaced."""
    if device == "cuda":
        try:
            torch.cuda.synchronize()
        except Exception:
            sys.exit(3)


UNDEFINED = ("resize_", "resize_as_")  # results have elements that nobody wrote
LEFT_OUT = ("nn_functional_pdist empty", "nn_functional_multi_margin_loss empty")  # eager crashes; is undefined


def all_operators(device: str = "cpu") -> dict[str, Any]:
    """torch's descriptions of what it does on a device in a type that is swept, by name."""
    return {
        operator.formatted_name: operator
        for operator in sweep_ops.operators()
        if not sweep_ops.UNSTABLE.match(operator.name)
        and operator.name not in UNDEFINED
        and set(DTYPES.values()) & set(operator.supported_dtypes(device))
    }


# -- the report -------------------------------------------------------------------------------------------------------


def known_failures(device: str = "cpu") -> dict[str, str]:
    """Operators that fail, with reasons, as the file has them: ``name: reason``."""
    lines = (line for line in KNOWN_FAILURES[device].read_text().splitlines() if line and not line.startswith("#"))
    return dict(line.split(": ", 1) for line in lines)  # type: ignore[arg-type]


def report(results: dict[str, list[tuple[str, Verdict]]], seconds: float, device: str, missed: int) -> int:
    """Print what was found; the exit status says whether there are failures that are not known."""
    counts: Counter[str] = Counter()
    called: Counter[tuple[str, str]] = Counter()
    left: dict[str, Counter[str]] = {}
    failed: dict[str, list[tuple[str, str]]] = {}
    graphs = 0
    for name, verdicts in sorted(results.items()):
        for case, verdict in verdicts:
            if verdict.status == "facts":
                facts = json.loads(verdict.reason)
                graphs += facts["graphs"]
                called.update({(target, why): count for target, why, count in facts["called"]})
                continue
            counts[verdict.status] += 1
            if verdict.status == "eager":
                left.setdefault(verdict.reason, Counter())[name] += 1
            if verdict.status == "failed":
                failed.setdefault(name, []).append((case, verdict.reason))
    for (target, why), count in called.most_common():
        print(f"called {count:5} x  {target}: {why[:160]}")
    for reason, names in sorted(left.items(), key=lambda item: -item[1].total()):
        told_of = ", ".join(name for name, _ in names.most_common(4))
        print(f"eager  {names.total():5} x  {reason.splitlines()[0][:160]} ({told_of}{' …' if len(names) > 4 else ''})")
    known = known_failures(device)
    for name, found in failed.items():
        print(f"FAILED {name}{' (known)' if name in known else ''}: {len(found)} calls")
        print(*(f"       {case}: {reason[:300]}" for case, reason in found[:4]), sep="\n")
    print(f"{counts.total()} calls: " + ", ".join(f"{count} {status}" for status, count in counts.most_common()))
    print(f"{graphs} graphs lowered; {len(results)} operators, {len(failed)} with a failure, in {seconds:.0f} s")
    if missed:
        print(f"{missed} operators were not reached in the time")
    return 1 if set(failed) - set(known) else 0


def main() -> int:
    parser = sweep_aot.arguments(__doc__)
    parser.add_argument("--dtype", action="append", choices=ALL_DTYPES, help="one of the types (may be given again)")
    parser.add_argument("--limit", type=int, default=4, help="samples an operator and type")
    parser.add_argument("--quick", action="store_true", help="one sample, float32 and float64, no kiln.compile")
    parser.add_argument("--dynamic", action="store_true", help="with all sizes symbolic")
    parser.add_argument("--level", choices=LEVELS, default="code", help="how far the backend goes")
    parser.add_argument("--device", choices=KNOWN_FAILURES, default="cpu")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="take no more operators after this time")
    given = parser.parse_args()
    if given.worker:
        options = Options(**json.loads(given.worker))
        sweep_aot.work(options, judge_operator, functools.partial(all_operators, options.device))
        return 0
    dtypes = given.dtype or list(ALL_DTYPES if given.device == "cuda" else DTYPES)
    options = Options(dtypes, given.limit, dynamic=given.dynamic, level=given.level, device=given.device)
    if given.quick:
        dtypes = given.dtype or ["float32", "float64"]
        options = Options(dtypes, 1, False, 0, given.dynamic, given.level, given.device)
    names = sweep_aot.chosen(all_operators(given.device), given)
    began = time.perf_counter()
    results = sweep_aot.sweep(names, options, given.processes, given.verbose, __file__, given.seconds)
    return report(results, time.perf_counter() - began, given.device, len(names) - len(results))


if __name__ == "__main__":
    sys.exit(main())
