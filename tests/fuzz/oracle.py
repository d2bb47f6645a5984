"""Whether a generated program does under Kiln what it does in plain Python, and chunks of many such programs."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from kiln.testing import Mismatch, check_source
from tests.support.devices import DEVICE

from .program import generate
from .reduce import reduce

# One program in four is also run with a graph break at every line, one in sixteen at every instruction: continuations
# and state between graphs.
_BREAKING_SHARE = 4
_SECONDS_FOR_ONE = 60
_SECONDS_FOR_REDUCED = 5  # taking a statement out of a loop can make it endless
Compiler = Callable[..., Callable[..., Any]]

_TAPES = st.binary(min_size=100, max_size=900)


@dataclass
class Failure:
    """A program that failed, and how."""

    source: str
    break_every: str | None
    message: str
    signature: str


class TooSlow(BaseException):
    """A program did not end in time. Not an Exception, so that no handler of the program or of Kiln swallows it."""


def find_failure(
    source: str, break_every: str | None = None, compile: Compiler | None = None, seconds: int = _SECONDS_FOR_ONE
) -> Failure | None:
    """Run one program both ways; None if nothing differs. `compile` stands in for `kiln.compile`."""
    try:
        with time_limit(seconds), default_device():
            check_source(source, calls_from="make_calls", breaks_every=(break_every,), compile=compile)
    except Mismatch as mismatch:
        message = "\n".join([mismatch.heading.splitlines()[-1], *mismatch.differences])
        return Failure(source, break_every, message, signature_of(mismatch.differences[0]))
    except (Exception, TooSlow) as error:  # Kiln must not fail outside the program's own call either
        return Failure(source, break_every, f"{type(error).__name__}: {error}", type(error).__name__)
    return None


def default_device() -> Any:
    """``KILN_TEST_DEVICE=cuda`` has the programs make their tensors on a GPU."""
    return nullcontext() if DEVICE.type == "cpu" else DEVICE


def signature_of(difference: str) -> str:
    """A difference without the values in it, so that a reduced program can be told to fail in the same way."""
    without_values = re.sub(r"'[^']*'|\"[^\"]*\"|\([^)]*\)|\[[^\]]*\]|[-\d.]+|<[^>]*>", "", difference)
    return without_values[:60]


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raise `TooSlow` in the main thread when a block takes longer."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: object) -> None:
        raise TooSlow(f"still running after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def reduced(
    failure: Failure,
    *,
    seconds: float = 60.0,
    compile: Compiler | None = None,
    note: Callable[[str], None] = lambda source: None,
) -> Failure:
    """The same failure with a smaller program."""

    def still_fails(source: str) -> bool:
        note(source)
        found = find_failure(source, failure.break_every, compile, _SECONDS_FOR_REDUCED)
        return found is not None and found.signature == failure.signature

    smaller = reduce(failure.source, still_fails, seconds=seconds)
    return find_failure(smaller, failure.break_every, compile) or failure


def modes_of(number: int) -> tuple[str | None, ...]:
    """The ways in which program `number` of a chunk is run."""
    if number % _BREAKING_SHARE:
        return (None,)
    return (None, "line") if number % _BREAKING_SHARE**2 else (None, "line", "instruction")


def failures_in_chunk(
    number: int,
    examples: int,
    note: Callable[[str], None] = lambda source: None,
    compile: Compiler | None = None,
) -> list[Failure]:
    """Generate so many programs from the seed `number`, run each, and collect all that fail."""
    failures: list[Failure] = []
    count = 0

    @seed(number)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(_TAPES)
    def run(tape: bytes) -> None:
        nonlocal count
        source = generate(tape)
        note(source)
        modes = modes_of(count)
        count += 1
        for break_every in modes:
            failure = find_failure(source, break_every, compile)
            if failure is not None:
                failures.append(failure)
                break

    run()
    return failures
