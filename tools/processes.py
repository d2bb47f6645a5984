"""Runs commands with a log and a time limit."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

GRACE = 60.0  # seconds that an interrupted command has for writing its results


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    status: int
    seconds: float
    timed_out: bool
    log: Path

    def last_lines(self, count: int = 3) -> str:
        """The end of what it printed, on one line."""
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return " / ".join(lines[-count:])

    def error(self) -> str:
        """The line of its output that most likely says what went wrong."""
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if "error:" in line.lower() or line.startswith(("ERROR", "× ", "ImportError"))]
        causes = [line for line in lines if line.startswith("cause:")]  # uv's reasons
        return " / ".join([*errors[:1], *causes]) or self.last_lines(1)


class Failed(Exception):
    """A command that had to succeed did not; the message is for the table, the whole output is in the log."""


def run(
    command: Sequence[str],
    log: Path,
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    seconds: float | None = None,
) -> Outcome:
    """Run a command with its output in a log.

    After ``seconds`` it is interrupted as by Ctrl-C, so that pytest still writes its results; then all its processes
    are killed.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    timed_out = False
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=environment,
            start_new_session=True,
            preexec_fn=take_interrupts,
        )
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            timed_out = True
            process.send_signal(signal.SIGINT)
            try:
                status = process.wait(GRACE)
            except subprocess.TimeoutExpired:
                kill(process)
                status = process.wait()
        except BaseException:
            kill(process)
            process.wait()
            raise
        if timed_out:
            kill(process)
    return Outcome(status, time.monotonic() - began, timed_out, log)


def take_interrupts() -> None:
    """A shell has its background jobs ignore SIGINT, and so would what they start: pytest could not end early."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a command and the processes that it has started, as far as they are in its session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def must(outcome: Outcome, what: str) -> Outcome:
    """The outcome of a command that had to succeed."""
    if outcome.timed_out:
        raise Failed(f"{what}: no end after {outcome.seconds:.0f} s; see {outcome.log}")
    if outcome.status:
        raise Failed(f"{what}: {outcome.error()}; see {outcome.log}")
    return outcome
