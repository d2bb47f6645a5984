"""The table of imperative autograd behaviours: each program in eager and in each way of using Kiln.

python tests/engine/imperative.py            print the table
python tests/engine/imperative.py --write    write it to docs/imperative.md
python tests/engine/imperative.py --why X    say what differs in the programs whose name contains X
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # the repository takes the place of this folder: `tests` is a package
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import kiln
from tests.engine import imperative_hooks, imperative_training
from tests.engine.observing import compare, engine, observe, whole, with_breaks

PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs", "imperative.md")
TOLERANCE = 1e-6  # of backends that compute gradients ahead of time, whose sums may be in another order


def _programs() -> dict[str, Callable[..., Any]]:
    found = {}
    for module in (imperative_hooks, imperative_training):
        for name, value in vars(module).items():
            if isinstance(value, types.FunctionType) and value.__module__ == module.__name__ and name[0] != "_":
                found[name] = value
    return found


PROGRAMS = _programs()


@contextlib.contextmanager
def _fresh() -> Iterator[None]:
    kiln.reset()
    yield


@contextlib.contextmanager
def _engine_on() -> Iterator[None]:
    """Every backward, those outside compiled functions too."""
    with kiln.config.patch(compiled_autograd=True), engine(with_breaks):
        yield


# name -> (title, what is on around the program, how it compiles)
WAYS: dict[str, tuple[str, Callable[[], Any], Callable[[Any], Any]]] = {
    "default": ("`kiln.compile`", _fresh, lambda f: kiln.compile(f)),
    "aot": ('`backend="aot_eager"`', _fresh, lambda f: kiln.compile(f, backend="aot_eager")),
    "engine": ("the engine on", _engine_on, lambda f: kiln.compile(f, backend="aot_eager")),
    "fullgraph": ("`fullgraph=True`", _fresh, lambda f: kiln.compile(f, fullgraph=True)),
    "whole": ("`fullgraph=True`, engine too", lambda: engine(whole), lambda f: kiln.compile(f, fullgraph=True)),
}


@functools.cache
def judge(name: str, way: str) -> tuple[str, list[str]]:
    """How a program fares: "right", "wrong", "unsupported" or "error", and what differs from eager."""
    program = PROGRAMS[name]
    expected = observe(program, lambda function: function)
    _, around, compile = WAYS[way]
    with kiln.config.patch(raise_internal_errors=True), around():
        seen = observe(program, compile)
    _drop_traces(expected), _drop_traces(seen)
    if isinstance(seen.raised, kiln.exc.Unsupported):
        return "unsupported", [str(seen.raised)]
    found = compare(expected, seen, tolerance=TOLERANCE)
    if seen.raised is not None and found:
        return "error", [f"{type(seen.raised).__name__}: {seen.raised}", *found]
    return ("wrong" if found else "right"), found


def _drop_traces(outcome: Any) -> None:
    """Anomaly mode warns with the name of a node, which may be Kiln's, and where it was made, through Kiln's frames."""
    outcome.warnings = [(category, text.partition(" in ")[0]) for category, text in outcome.warnings]


MARKS = {"right": "✓", "wrong": "**wrong**", "error": "**error**", "unsupported": "–"}


def table() -> str:
    """The page: one row a program, one column a way."""
    rows = {name: [judge(name, way)[0] for way in WAYS] for name in PROGRAMS}
    counts = [[row[column] for row in rows.values()].count("right") for column in range(len(WAYS))]
    lines = [
        "# Imperative autograd",
        "",
        f"{len(rows)} programs that use autograd as eager code does. Each runs in eager and in each of these ways,",
        "and is compared in all a program can see: values, gradients, which object `.grad` is, the order of hooks,",
        "warnings, errors. Written by `python tests/engine/imperative.py --write`; the programs are in",
        "`tests/engine/imperative_hooks.py` and `imperative_training.py`, and `tests/engine/test_imperative.py` checks",
        "this page.",
        "",
        "✓: as in eager. –: `kiln.exc.Unsupported`, under `fullgraph=True` only: more than one graph is needed, or",
        "plain Python between graphs. In the last column the backward pass is one graph too, unless the engine leaves",
        "it to torch's engine (double backward, anomaly mode, saved tensors that hooks unpack).",
        "",
        "| program | eager | " + " | ".join(title for title, *_ in WAYS.values()) + " |",
        "| --- | --- | " + " | ".join("---" for _ in WAYS) + " |",
    ]
    for name, row in rows.items():
        lines.append(f"| {PROGRAMS[name].__doc__} | ✓ | " + " | ".join(MARKS[mark] for mark in row) + " |")
    lines.append(f"| **right** | {len(rows)} | " + " | ".join(map(str, counts)) + " |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Print the table, write it, or explain."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--why")
    parser.add_argument("--ways", default=",".join(WAYS))
    chosen = parser.parse_args()
    if chosen.why is not None:
        for name in PROGRAMS:
            for way in chosen.ways.split(","):
                if chosen.why in name:
                    verdict, found = judge(name, way)
                    print(name, way, verdict, *(f"\n    {line}" for line in found), flush=True)
        return 0
    page = table()
    print(page)
    if chosen.write:
        with open(PAGE, "w", encoding="utf-8") as file:
            file.write(page)
    return int("**" in page.replace("**right**", ""))


if __name__ == "__main__":
    sys.exit(main())
