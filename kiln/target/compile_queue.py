"""Texts compiled on several threads, while the next ones are still being written."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterable

MOST_THREADS = 16


def compile_all(texts: Iterable[str], compile_one: Callable[[str], bytes]) -> list[bytes]:
    """What ``compile_one`` makes of several texts, on as many threads as there are cores and texts.

    LLVM and the driver's linker work without Python's lock, so a generator's texts are compiled while it makes the next
    ones. All threads have ended when this returns.
    """
    crew = CompileQueue(compile_one, thread_count() - 1)
    count = 0
    try:
        for text in texts:
            crew.add(count, text)
            count += 1
    except BaseException as error:
        crew.errors.append(error)
    crew.finish()
    if crew.errors:
        raise crew.errors[0]
    return [crew.found[number] for number in range(count)]


def thread_count() -> int:
    """Two at least: while this thread writes texts, another one compiles."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(MOST_THREADS, max(2, cores))


class CompileQueue:
    """Texts that wait, and their machine code. Each worker takes texts until it takes None."""

    def __init__(self, compile_one: Callable[[str], bytes], most_helpers: int) -> None:
        self.compile_one, self.most_helpers = compile_one, most_helpers
        self.queue: queue.SimpleQueue[tuple[int, str] | None] = queue.SimpleQueue()
        self.found: dict[int, bytes] = {}
        self.errors: list[BaseException] = []
        self.helpers: list[threading.Thread] = []

    def add(self, number: int, text: str) -> None:
        """Have a text compiled, by one more thread while there may be more."""
        self.queue.put((number, text))
        if len(self.helpers) < self.most_helpers:
            helper = threading.Thread(target=self.work, name="kiln-compile", daemon=True)
            try:
                helper.start()
            except RuntimeError:  # no more threads
                self.most_helpers = len(self.helpers)
            else:
                self.helpers.append(helper)

    def finish(self) -> None:
        """Compile what is left, and wait for the others."""
        for _ in (self, *self.helpers):
            self.queue.put(None)
        self.work()
        for helper in self.helpers:
            helper.join()

    def work(self) -> None:
        while (item := self.queue.get()) is not None:
            if self.errors:
                continue
            try:
                self.found[item[0]] = self.compile_one(item[1])
            except BaseException as error:  # raised in compile_all
                self.errors.append(error)
