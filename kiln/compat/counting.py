"""``torch._dynamo.utils.counters`` and ``torch._inductor.metrics``: what Kiln counts, for programs."""

from __future__ import annotations

import importlib
from collections import Counter, defaultdict

from ..report import events

counters: defaultdict[str, Counter[str]] = defaultdict(Counter)

# What Kiln counts -> the counters that follow it; the second name None stands for the reason.
FOLLOWING: dict[str, list[tuple[str, str | None]]] = {
    "frames": [("frames", "total")],
    "entries": [("frames", "ok")],
    "graphs": [("stats", "unique_graphs"), ("stats", "calls_captured")],
    "breaks": [("graph_break", None)],
    "skips": [("graph_break", None)],
    "recompiles": [("recompiles", None)],
    "engine captures": [("compiled_autograd", "captures")],
}

METRICS_MODULE = "torch._inductor.metrics"  # its counters are plain numbers, which programs assign to as well
METRICS = {"kernels": ("generated_kernel_count", "generated_cpp_vec_kernel_count")}  # all of Kiln's have vectors


def follow(what: str, detail: str) -> None:
    for group, name in FOLLOWING.get(what, ()):
        counters[group][name or detail] += 1
    for metric in METRICS.get(what, ()):
        vars(importlib.import_module(METRICS_MODULE))[metric] += 1


def reset_metrics() -> None:
    """``torch._inductor.metrics.reset``."""
    vars(importlib.import_module(METRICS_MODULE)).update(METRICS_AT_FIRST)


METRICS_AT_FIRST = dict.fromkeys([name for names in METRICS.values() for name in names], 0)
METRICS_ROWS = {**METRICS_AT_FIRST, "reset": reset_metrics}


def start() -> None:
    events.watchers.append(follow)


def stop() -> None:
    if follow in events.watchers:
        events.watchers.remove(follow)
