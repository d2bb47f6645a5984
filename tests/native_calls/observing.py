"""What builtins do with their arguments in eager: which special methods they call, what they change and keep."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from .entries import Entry
from .judging import Drawer, Hang, quiet, time_limit
from .outcomes import Snapshot
from .values import LOG

Names = frozenset[str]


@dataclass
class Observed:
    """What was seen in some calls of an entry."""

    argument_methods: set[str] = field(default_factory=set)
    element_methods: set[str] = field(default_factory=set)
    mutates: bool = False  # an argument is another after the call
    keeps: bool = False  # an argument, or an element of one, is in the result or in another argument afterwards
    succeeded: int = 0


def observe(entry: Entry, drawer: Drawer, calls: int) -> Observed:
    """Call an entry natively with drawn arguments."""
    seen = Observed()
    x = torch.arange(3.0)
    for _ in range(calls):
        makers, order = drawer.arguments(entry)
        with quiet(), contextlib.suppress(Exception, Hang), time_limit(2):
            made = [maker(0, x) for maker in makers]
            arguments = [made[index] for index in order]
            before = described(made)
            LOG.clear()
            try:
                result = entry.function(*arguments)  # type: ignore[operator]
                seen.succeeded += 1
            except Exception:
                result = None
            for name in LOG:
                place, _, method = name.rpartition(" ")
                if method.startswith("__") or method == "keys":
                    (seen.element_methods if place == "element" else seen.argument_methods).add(method)
            seen.mutates |= described(made) != before
            seen.keeps |= result is not None and bool(held(result) & {key for value in made for key in held(value)})
    return seen


def described(made: list[object]) -> object:
    snapshot = Snapshot()
    return repr([snapshot.describe(value) for value in made if type(value).__name__ != "Only"])  # these move on


def held(value: object) -> set[int]:
    """The identities of an object and of what is in it, one level deep, as far as identity can be seen."""
    return {id(part) for part in parts(value) if isinstance(part, list | dict | set) or type(part).__name__ == "Only"}


def parts(value: object) -> Iterator[object]:
    yield value
    if type(value) in (list, tuple):
        yield from value  # type: ignore[misc]
    elif type(value) is dict:
        yield from value.values()  # type: ignore[attr-defined]
