"""Every operator of torch through Kiln: torch's own sample inputs, each variant, results and gradients as in eager.

    python tests/sweep_ops.py                    # all operators, two samples a variant
    python tests/sweep_ops.py -k '^linalg' -n 5  # some of them, more samples
    python tests/sweep_ops.py --shard 1/2        # every second one

For each operator that torch describes (``op_db``) the function, the method, the in-place variant, the operator form and
``out=`` are called in a compiled function on float32 CPU samples. *Captured* means one graph and no break, *broken*
means right with a break in the graph, *eager* that the function was left alone, *failed* that something a user could
see differs from eager.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
import types
import unittest
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # the repository takes the place of this folder: `tests` is a package
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch

import kiln
from kiln.report import events
from kiln.testing import Mismatch, check


def operators() -> list[Any]:
    """torch's descriptions of its operators. They live in torch's test utilities, which ask for ``expecttest``."""
    if "expecttest" not in sys.modules:
        try:
            import expecttest  # noqa: F401
        except ImportError:
            stand_in = types.ModuleType("expecttest")
            stand_in.TestCase = unittest.TestCase  # type: ignore[attr-defined]
            sys.modules["expecttest"] = stand_in
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal import common_methods_invocations as described
    # Random operators are described with a call that sets the seed; the comparison does that itself.
    described.wrapper_set_seed = lambda function, *args, **kwargs: function(*args, **kwargs)
    return list(described.op_db)


@dataclass
class Case:
    """One call to compare."""

    name: str
    program: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass
class Verdict:
    """How a case went: captured, broken, eager, failed, or skipped (eager itself refuses it)."""

    status: str
    reason: str = ""


@dataclass
class Summary:
    """All verdicts so far."""

    counts: Counter[str] = field(default_factory=Counter)
    reasons: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    def add(self, case: Case, verdict: Verdict) -> None:
        self.counts[verdict.status] += 1
        if verdict.status != "captured":
            self.reasons.setdefault((verdict.status, verdict.reason), []).append(case.name)

    def lines(self) -> Iterator[str]:
        for (status, reason), names in sorted(self.reasons.items()):
            distinct = list(dict.fromkeys(names))
            shown = ", ".join(distinct[:8]) + (f" and {len(distinct) - 8} more" if len(distinct) > 8 else "")
            yield f"{status:8} {len(names):4} x  {reason[:300]}\n              {shown}"
        total = sum(self.counts.values())
        parts = (f"{self.counts[name]} {name}" for name in ("captured", "broken", "eager", "failed", "skipped"))
        yield f"{total} calls: " + ", ".join(parts)


# -- programs: closures over the operator, so that each is a function of its own -------------------------------------


def calling(function: Callable[..., Any]) -> Callable[..., Any]:
    def program(*args, **kwargs):
        return function(*args, **kwargs)

    return program


def calling_method(name: str) -> Callable[..., Any]:
    """``x.name(...)`` spelled out, as the bytecode of a method call is what is being tested."""
    namespace: dict[str, Any] = {}
    exec(f"def program(x, *args, **kwargs):\n    return x.{name}(*args, **kwargs)", namespace)
    return namespace["program"]


def calling_in_place(function: Callable[..., Any]) -> Callable[..., Any]:
    def program(x, *args, **kwargs):
        made = x.clone()
        result = function(made, *args, **kwargs)
        return made, result

    return program


def calling_with_out(function: Callable[..., Any]) -> Callable[..., Any]:
    def program(out, *args, **kwargs):
        result = function(*args, out=out, **kwargs)
        return result

    return program


def best_dtype(operator: Any) -> torch.dtype | None:
    """float32 where the operator takes it."""
    return next((d for d in (torch.float32, torch.int64, torch.bool, torch.complex64) if d in operator.dtypes), None)


def cases(
    operator: Any, samples: int | None, dtype: torch.dtype | None = None, noncontiguous: bool = False
) -> Iterator[Case]:
    """The calls to make for one operator: so many samples (None: all), other variants for the first two."""
    dtype = dtype or best_dtype(operator)
    if dtype is None:
        return
    differentiable = operator.supports_autograd and dtype.is_floating_point
    title = operator.formatted_name
    torch.manual_seed(0)
    for number, sample in enumerate(operator.sample_inputs("cpu", dtype, requires_grad=differentiable)):
        if number == samples:
            return
        args, kwargs = (sample.input, *sample.args), dict(sample.kwargs)
        yield Case(title, calling(operator.op), args, kwargs)
        if number > 1:
            continue
        if noncontiguous and not has_sparse((args, kwargs)):
            spread = sample.noncontiguous()
            yield Case(f"{title} strided", calling(operator.op), (spread.input, *spread.args), dict(spread.kwargs))
        method = operator.method_variant
        if method is not None and isinstance(sample.input, torch.Tensor):
            yield Case(f"{title} method", calling_method(operator.name.rsplit(".", 1)[-1]), args, kwargs)
        if operator.inplace_variant is not None and isinstance(sample.input, torch.Tensor):
            yield Case(f"{title} in place", calling_in_place(operator.inplace_variant), args, kwargs)
        if operator.operator_variant is not None and not kwargs:
            yield Case(f"{title} operator", calling(operator.operator_variant), args, kwargs)
        if operator.supports_out:
            yield from out_case(operator, args, kwargs)


def out_case(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Case]:
    detached = tuple(detach(arg) for arg in args)
    keywords = {name: detach(value) for name, value in kwargs.items()}
    try:
        expected = operator.op(*detached, **keywords)
    except Exception:
        return
    if isinstance(expected, torch.Tensor):
        out: Any = torch.empty_like(expected)
    elif isinstance(expected, tuple | list) and all(isinstance(item, torch.Tensor) for item in expected):
        out = tuple(torch.empty_like(item) for item in expected)
    else:
        return
    yield Case(f"{operator.formatted_name} out=", calling_with_out(operator.op), (out, *detached), keywords)


def detach(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, tuple | list):
        return type(value)(detach(item) for item in value) if type(value) in (tuple, list) else value
    return value


# -- verdicts -------------------------------------------------------------------------------------------------------

UNSTABLE = re.compile(r"^(empty|new_empty|empty_strided|new_empty_strided|empty_like|empty_permuted)$")


def judge(case: Case, dynamic: bool | None = None, backend: str = "eager", **more: Any) -> Verdict:
    """Compare one call with eager."""
    if has_sparse((case.args, case.kwargs)):
        return judge_sparse(case, backend)
    before = events.counters["taken over"]
    with events.listen() as heard, left_to_eager() as left:
        try:
            report = check(case.program, *case.args, kwargs=case.kwargs, dynamic=dynamic, backend=backend, **more)
        except Mismatch as mismatch:
            found = sorted(mismatch.differences, key=lambda text: "raised" not in text)  # the error first: it explains
            return Verdict("failed", re.sub(r"\s+", " ", "; ".join(found[:2])))
        except Exception as error:
            return Verdict("failed", f"{type(error).__name__}: {error}".splitlines()[0])
    if report.eager.calls[0].raised is not None:
        return Verdict("skipped", f"eager raises {type(report.eager.calls[0].raised).__name__}")
    if events.counters["taken over"] > before:
        return Verdict("failed", "the graph raised, and eager took over")
    if left:
        return Verdict("eager", f"left to eager by the backend: {left[0]}")
    if heard.breaks:
        return Verdict("broken", heard.breaks[0].reason)
    if heard.skips:
        return Verdict("eager", heard.skips[0][1])
    return Verdict("captured")


@contextlib.contextmanager
def left_to_eager() -> Iterator[list[str]]:
    """Why graphs were left to eager by the backend in the block."""
    reasons: list[str] = []

    def watch(what: str, detail: str) -> None:
        if what == "aot eager":
            reasons.append(detail)

    events.watchers.append(watch)
    try:
        yield reasons
    finally:
        events.watchers.remove(watch)


def has_sparse(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.layout is not torch.strided
    if isinstance(value, tuple | list):
        return any(has_sparse(item) for item in value)
    return isinstance(value, dict) and has_sparse(list(value.values()))


def judge_sparse(case: Case, backend: str) -> Verdict:
    """Sparse tensors are outside graphs, and beyond deep copies: only the values are compared."""
    expected = case.program(*case.args, **case.kwargs)
    kiln.reset()
    seen = kiln.compile(case.program, backend=backend)(*case.args, **case.kwargs)
    equal = torch.equal(expected.to_dense(), seen.to_dense()) and expected.layout is seen.layout
    return Verdict("broken", "sparse arguments") if equal else Verdict("failed", "other values")


def sweep(
    pattern: str = "",
    samples: int = 2,
    shard: tuple[int, int] = (1, 1),
    dynamic: bool | None = None,
    verbose: bool = False,
) -> Summary:
    """Judge all cases of the operators whose name matches."""
    summary = Summary()
    chosen = [op for op in operators() if re.search(pattern, op.formatted_name) and not UNSTABLE.match(op.name)]
    for operator in chosen[shard[0] - 1 :: shard[1]]:
        for case in cases(operator, samples):
            verdict = judge(case, dynamic)
            summary.add(case, verdict)
            if verbose:
                print(f"{case.name}: {verdict.status} {verdict.reason[:200]}", flush=True)
    return summary


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-k", dest="pattern", default="", help="regular expression that operator names must match")
    parser.add_argument("-n", dest="samples", type=int, default=2, help="samples an operator")
    parser.add_argument("--shard", default="1/1", help="which part of the operators: 1/2, 2/2")
    parser.add_argument("--dynamic", action="store_true", default=None, help="with all sizes symbolic")
    parser.add_argument("-v", dest="verbose", action="store_true")
    options = parser.parse_args()
    shard = tuple(int(part) for part in options.shard.split("/"))
    with kiln.config.patch(raise_internal_errors=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        summary = sweep(options.pattern, options.samples, shard, options.dynamic, options.verbose)  # type: ignore[arg-type]
    for line in summary.lines():
        print(line)
    return 1 if summary.counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
