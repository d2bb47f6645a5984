"""``torch._dynamo.utils.counters``: what Kiln counts, under the names that programs look at."""

from __future__ import annotations

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


def follow(what: str, detail: str) -> None:
    for group, name in FOLLOWING.get(what, ()):
        counters[group][name or detail] += 1


def start() -> None:
    events.watchers.append(follow)


def stop() -> None:
    if follow in events.watchers:
        events.watchers.remove(follow)
