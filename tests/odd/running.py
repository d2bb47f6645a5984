"""Runs odd programs in plain Python and under Kiln, in a worker process that a watchdog ends when nothing moves.

A program is the triple (ingredient, use, setting); its number is its place in the product of the three tables. A worker
reports each program before and after it runs, so that the parent knows which one hung or crashed the process.
"""

from __future__ import annotations

import json
import os
import random
import selectors
import subprocess
import sys
import textwrap
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from .ingredients import INGREDIENTS
from .uses import BODY, SETTINGS, USES

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 60.0
FINALIZERS = ("del", "finished")  # logged when an object is collected, which has no fixed time

# These have no end in plain Python either, with the objects that are iterated or counted without a limit.
UNBOUNDED = {"count"} | {"range"}
NEVER_END = {("cyclic_tuple", "tensor from"), ("ListWithLength", "tensor equal"), ("range", "match sequence")}
TAKES_ALL = {
    *"list|tuple|set size|sorted|sum|max|star call|star list|list extend|list iadd|slice assign|reversed|in".split("|"),
    *"not in|dict|dict update|double star dict|double star call|unpack|reduce|product|deque|counter".split("|"),
    *"from keys|heap|bytes|any|for else|tensor from|tensor add|tensor radd|tensor index|tensor equal".split("|"),
    *"tensor full|tensor sizes|iadd list|join|sort key|filter|or|zip strict|range|float|generator".split("|"),
}


# Results are equal; CPython asks more often for the same method: again for ``keys`` and the iterator of a pair, for a
# hint of the length between two parts of an unpacking, for ``__bases__`` and for items that it then does not use.
ONLY_MORE_CALLS = {
    *[(name, use) for name in ("IteratorOfItself", "Everything", "DunderGetattr") for use in ("dict", "dict update")],
    *[(name, "unpack") for name in ("EndlessIterator", "IteratorOfItself", "LyingLength", "LyingHint", "RaisingHint")],
    *[(name, "tensor equal") for name in ("EndlessList", "EndlessTuple", "EndlessDeque")],
    ("DunderGetattr", "issubclass"),
    ("OddClass", "tensor index"),
}


@dataclass(frozen=True)
class OddProgram:
    """One program of the product."""

    ingredient: str
    use: str
    setting: str

    @property
    def name(self) -> str:
        return f"{self.ingredient} / {self.use} / {self.setting}"

    def source(self) -> str:
        body = BODY.format(use=textwrap.indent(USES[self.use], "    "))
        return SETTINGS[self.setting].format(body=textwrap.indent(body, "    "), deeper=textwrap.indent(body, " " * 8))


@dataclass
class Findings:
    """What a run found."""

    ran: int = 0
    seconds: float = 0.0
    different: list[str] = field(default_factory=list)
    hung: list[str] = field(default_factory=list)
    crashed: list[str] = field(default_factory=list)
    report: Callable[[str], object] = lambda text: None

    def add(self, kind: str, text: str) -> None:
        getattr(self, kind).append(text)
        self.report(f"{kind}: {text}")


def all_programs() -> list[OddProgram]:
    return [
        OddProgram(ingredient, use, setting)
        for ingredient in INGREDIENTS
        for use in USES
        for setting in SETTINGS
        if not (ingredient in UNBOUNDED and use in TAKES_ALL) and (ingredient, use) not in NEVER_END
    ]


def sample(count: int, seed: int) -> list[OddProgram]:
    programs = all_programs()
    return random.Random(seed).sample(programs, min(count, len(programs)))


# -- in the worker --------------------------------------------------------------------------------------------------


def described(value: object, depth: int = 0, seen: tuple[int, ...] = ()) -> object:
    """A value as plain data, without running any method of the odd classes."""
    import torch

    kind = type(value)
    if id(value) in seen:
        return "cycle"
    seen = (*seen, id(value))
    if depth > 40:
        return "deep"
    if issubclass(kind, torch.Tensor):
        return [kind.__name__, str(value.dtype), repr(value.tolist())]  # type: ignore[attr-defined]
    if kind in (int, float, complex, str, bytes, bool, type(None), bytearray):
        return [kind.__name__, repr(value)]
    parts: list[object] = []
    for base in (list, tuple, set, frozenset, dict):
        if issubclass(kind, base):
            items = list(base.__iter__(value))  # type: ignore[attr-defined]
            parts += [described(item, depth + 1, seen) for item in items]
            if base is dict:
                parts += [described(dict.__getitem__(value, key), depth + 1, seen) for key in items]  # type: ignore[index]
            if base in (set, frozenset):
                parts = sorted(parts, key=repr)
            break
    if issubclass(kind, int | float | str):
        parts.append((int if issubclass(kind, int) else float if issubclass(kind, float) else str).__repr__(value))
    if issubclass(kind, BaseException):
        parts += [described(item, depth + 1, seen) for item in BaseException.args.__get__(value)]
    namespace = _namespace(value)
    if namespace is not None and not isinstance(value, type | types.ModuleType | types.FunctionType):
        parts += [[name, described(held, depth + 1, seen)] for name, held in namespace.items()]
    return [kind.__qualname__, *parts]


def _namespace(value: object) -> dict | None:
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return found if type(found) is dict else None


def outcome(program: OddProgram, compiled: bool) -> list[object]:
    """What one run of a program gives: results of two calls, what became of the value, and the log of calls."""
    import torch

    import kiln

    from . import ingredients

    namespace = vars(types.ModuleType("odd_program"))
    namespace.update({name: getattr(ingredients, name) for name in ingredients.__all__})
    namespace.update(torch=torch, kiln=kiln, copy=__import__("copy"), heapq=__import__("heapq"))
    exec(f"def make_value():\n    return {INGREDIENTS[program.ingredient]}\n", namespace)
    exec(compile(program.source(), f"<{program.name}>", "exec"), namespace)
    function = namespace["program"]
    if compiled:
        function = kiln.compile(function, backend="eager")
    seen: list[object] = []
    for _ in range(2):
        ingredients.LOG.clear()
        value = namespace["make_value"]()
        try:
            x, result = function(torch.ones(2), value)
            seen.append([described(x), described(result), described(value)])
            del x, result
        except Exception as error:  # a RecursionError out of describing, or what a program leaks
            seen.append(["escaped", type(error).__name__, str(error)[:200]])
        del value
        seen.append([entry for entry in ingredients.LOG if entry not in FINALIZERS])
    return seen


def work(numbers: list[int]) -> None:
    """Run these programs, a line before and a line after each."""
    import kiln

    kiln.config.raise_internal_errors = True
    programs = all_programs()
    for number in numbers:
        print(json.dumps({"start": number}), flush=True)
        plain = outcome(programs[number], compiled=False)
        print(json.dumps({"plain": number}), flush=True)
        found = outcome(programs[number], compiled=True)
        kiln.reset()
        program = programs[number]
        if (program.ingredient, program.use) in ONLY_MORE_CALLS:
            plain, found = plain[::2], found[::2]  # without the logs
        same = repr(plain) == repr(found)
        print(
            json.dumps({"done": number, "same": same, "plain": repr(plain)[:900], "kiln": repr(found)[:900]}),
            flush=True,
        )


# -- the watchdog ---------------------------------------------------------------------------------------------------


def run(
    programs: list[OddProgram], seconds: float = SECONDS, report: Callable[[str], object] = lambda text: None
) -> Findings:
    """Run programs in workers; one that is silent for so long, or dies, is noted, and the rest goes on in another."""
    index = {program: number for number, program in enumerate(all_programs())}
    left = [index[program] for program in programs]
    names = {index[program]: program.name for program in programs}
    findings, began = Findings(report=report), time.monotonic()
    while left:
        stage, number, ended = "start", left[0], ""
        for line in worker_lines(left, seconds):
            if line is None:
                ended = "hung"
                break
            told = json.loads(line)
            stage = next(iter(told))
            number = told[stage]
            if stage == "done":
                left.remove(number)
                findings.ran += 1
                if not told["same"]:
                    findings.add("different", f"{names[number]}\n    plain: {told['plain']}\n    kiln:  {told['kiln']}")
        if left and stage != "done":
            left.remove(number)
            if stage == "start":  # plain Python has no end: nothing to compare with
                findings.add("different", f"{names[number]}: did not end in plain Python")
            else:
                findings.add("hung" if ended else "crashed", names[number])
        elif left and not ended:
            findings.add("crashed", f"the worker ended after {names[number]}")
            break
    findings.seconds = time.monotonic() - began
    return findings


def worker_lines(numbers: list[int], seconds: float) -> Iterator[str | None]:
    """Lines of a worker process; None if it was silent for too long."""
    code = "import json, sys; from tests.odd.running import work; work(json.load(sys.stdin))"
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-W", "ignore", "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(json.dumps(numbers).encode())
    process.stdin.close()
    selector = selectors.DefaultSelector()
    selector.register(process.stdout, selectors.EVENT_READ)
    buffer = b""
    try:
        while True:
            if not selector.select(seconds):
                yield None
                return
            chunk = os.read(process.stdout.fileno(), 1 << 16)
            if not chunk:
                return
            buffer += chunk
            *lines, buffer = buffer.split(b"\n")
            for line in lines:
                yield line.decode()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
