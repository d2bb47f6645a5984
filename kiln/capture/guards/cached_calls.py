"""Calls of functions under ``functools.lru_cache`` that entries stand for: a check makes them, once a run.

The cache is state that Kiln cannot see, but asking it is what eager does. A check makes the calls of its program when
everything else holds, if they are hits, and holds as long as the very same objects come back. Each call counts in
``cache_info()``, so none is made twice for one run: outcomes of calls that were made for a check that did not hold, or
a capture that started over, wait in a :class:`Session` for the next who asks.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Hashable, Iterator
from dataclasses import field
from typing import Any

from ... import _native
from ...platform.light_dataclass import dataclass
from ...program.quiet import unsilenced

ABSENT = object()


@dataclass(eq=False)
class Outcome:
    """What a call gave; made outside any session, it is only good as long as the cache has not changed."""

    result: object = None
    error: Exception | None = None
    call: CachedCall | None = None
    stamp: tuple[object, int] | None = None

    @property
    def is_current(self) -> bool:
        if self.stamp is None or self.call is None:
            return True
        link, misses = self.call.stamp()
        return link is self.stamp[0] and misses == self.stamp[1]


class Session(threading.local):
    """The calls that were made for a run that is still to come, by cache and key, in order."""

    def __init__(self) -> None:
        self.depth = 0
        self.made: dict[Hashable, list[Outcome]] = {}

    def return_unused(self, call: CachedCall, outcome: Outcome) -> None:
        """A call was made, and not for the run that its check was asked about."""
        outcome.call = call
        outcome.stamp = None if self.depth else call.stamp()
        self.made.setdefault(call.place, []).insert(0, outcome)

    def forget_outdated(self) -> None:
        for place, outcomes in list(self.made.items()):
            self.made[place] = [outcome for outcome in outcomes if outcome.is_current]
            for outcome in outcomes:
                outcome.stamp = None


SESSION = Session()


@contextlib.contextmanager
def session() -> Iterator[None]:
    """While a call is captured and runs: what is left over at the end of the outermost one is of no use any more."""
    if SESSION.made and not SESSION.depth:
        SESSION.forget_outdated()
    SESSION.depth += 1
    try:
        yield
    finally:
        SESSION.depth -= 1
        if not SESSION.depth:
            SESSION.made.clear()


@dataclass(eq=False)
class CachedCall:
    """One call of a cached function in a program."""

    wrapper: Any  # an lru_cache
    args: tuple[Any, ...]
    kwargs: dict[Any, Any]
    known: dict[Any, Any]  # the cache's own dictionary
    key: Hashable
    outcome: Outcome = field(default_factory=Outcome)

    @property
    def place(self) -> Hashable:
        return id(self.wrapper), self.key

    def stamp(self) -> tuple[object, int]:
        """Changes when this key may have another result."""
        return self.known.get(self.key, ABSENT), self.wrapper.cache_info().misses

    def make(self) -> Outcome:
        """Call it for real. Dispatchers are off: what it calls runs in eager, as it is."""
        disabled = _native.set_disabled(True)
        try:
            with unsilenced():
                return Outcome(self.wrapper(*self.args, **self.kwargs))
        except Exception as error:
            return Outcome(error=error)
        finally:
            _native.set_disabled(disabled)

    def take(self) -> Outcome | None:
        """What the call gives in a check; None where it would run the function."""
        if SESSION.made:
            made = SESSION.made.get(self.place)
            while made:
                outcome = made.pop(0)
                if outcome.is_current:
                    return outcome
        return Outcome(self.wrapper(*self.args, **self.kwargs)) if self.key in self.known else None

    def is_same(self, outcome: Outcome) -> bool:
        return outcome.result is self.outcome.result and outcome.error is self.outcome.error


class CachedCalls:
    """All calls of cached functions that an entry stands for: the last thing that a check looks at."""

    def __init__(self) -> None:
        self.calls: list[CachedCall] = []

    def __call__(self) -> bool:
        taken: list[tuple[CachedCall, Outcome]] = []
        for call in self.calls:
            outcome = call.take()
            if outcome is not None:
                taken.append((call, outcome))
            if outcome is None or not call.is_same(outcome):
                for made, kept in reversed(taken):
                    SESSION.return_unused(made, kept)
                return False
        return True

    def describe(self) -> list[str]:
        names = [getattr(call.wrapper, "__qualname__", "a cached function") for call in self.calls]
        return [f"the same cached result of {name}" for name in names]
