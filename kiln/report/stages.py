"""Stages: what a call went through while it was compiled, with sizes and times.

Each stage of the compiler runs in a ``with stage("name")`` block. If stages are recorded, the block makes a `Stage`
record: ``KILN_LOG=stages`` prints them, and ``kiln.explain`` takes its times from them. Otherwise it does nothing.
Stages nest. An outermost one is the compilation of a frame or of a backward graph, or a backward pass of the engine.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import field

from ..config import config
from ..platform.light_dataclass import dataclass
from .log import log


@dataclass(eq=False, slots=True)
class Stage:
    """One stage: ``sizes`` count nodes, guards, kernels, bytes …; ``inner`` are the stages inside it, in order."""

    name: str
    subject: str = ""  # a function, a graph, a backend
    sizes: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    inner: list[Stage] = field(default_factory=list)

    def completed(self) -> Iterator[Stage]:
        """This stage and all inside it, in the order in which they ended."""
        for stage in self.inner:
            yield from stage.completed()
        yield self

    def lines(self, depth: int = 0) -> Iterator[str]:
        """The stage and those inside it, a line each."""
        title = f"{self.name} {self.subject}".rstrip()
        sizes = ", ".join(f"{count} {what}" for what, count in self.sizes.items())
        yield f"{self.seconds * 1e3:9.1f} ms  {'  ' * depth}{title}{f': {sizes}' if sizes else ''}"
        for stage in self.inner:
            yield from stage.lines(depth + 1)


class _Thread(threading.local):
    def __init__(self) -> None:
        self.open: list[Stage] = []
        self.collections: list[list[Stage]] = []


_thread = _Thread()
_OFF: AbstractContextManager[None] = contextlib.nullcontext()


def is_on() -> bool:
    """Whether stages are recorded in this thread."""
    return bool(config.log) or bool(_thread.collections)


def stage(name: str, subject: str = "") -> AbstractContextManager[Stage | None]:
    """A block that is a stage; gives the record, to note sizes in, or None if stages are not recorded."""
    return _recorded(Stage(name, subject)) if is_on() else _OFF


@contextlib.contextmanager
def _recorded(record: Stage) -> Iterator[Stage]:
    outer = _thread.open[-1] if _thread.open else None
    _thread.open.append(record)
    start = time.perf_counter()
    try:
        yield record
    finally:
        record.seconds = time.perf_counter() - start
        _thread.open.remove(record)
        if outer is not None:
            outer.inner.append(record)
        else:
            _finished(record)


def _finished(record: Stage) -> None:
    for collection in _thread.collections:
        collection.append(record)
    if "stages" in config.log:
        log("stages", "\n".join([f"{record.name} {record.subject}".rstrip(), *record.lines()]))


@contextlib.contextmanager
def collected() -> Iterator[list[Stage]]:
    """The outermost stages of this thread that end in the block."""
    found: list[Stage] = []
    _thread.collections.append(found)
    try:
        yield found
    finally:
        _thread.collections = [one for one in _thread.collections if one is not found]
