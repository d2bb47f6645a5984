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
    return begin_all(texts, compile_one)()


def begin_all(texts: Iterable[str], compile_one: Callable[[str], bytes]) -> Callable[[], list[bytes]]:
    """The same, not waited for: what is given waits, and raises what went wrong. It need not be called."""
    crew = CompileQueue(compile_one, thread_count() - 1)
    try:
        for text in texts:
            crew.add(text)
    except BaseException as error:
        crew.errors.append(error)
    finally:
        crew.close()
    return crew.results


def thread_count() -> int:
    """Two at least: while this thread writes texts, another one compiles."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(MOST_THREADS, max(2, cores))


class CompileQueue:
    """Texts that wait, and their machine code. Each worker takes texts until it takes None."""

    def __init__(self, compile_one: Callable[[str], bytes], most_helpers: int) -> None:
        self.compile_one, self.most_helpers = compile_one, most_helpers
        self.queue: queue.SimpleQueue[tuple[int, str] | None] = queue.SimpleQueue()
        self.count = 0
        self.found: dict[int, bytes] = {}
        self.errors: list[BaseException] = []
        self.helpers: list[threading.Thread] = []

    def add(self, text: str) -> None:
        """Have a text compiled, by one more thread while there may be more."""
        self.queue.put((self.count, text))
        self.count += 1
        if len(self.helpers) < self.most_helpers:
            # A process waits for it at its end: it may be in LLVM, whose memory is freed then.
            helper = threading.Thread(target=self.work, name="kiln-compile", daemon=False)
            try:
                helper.start()
            except RuntimeError:  # no more threads
                self.most_helpers = len(self.helpers)
            else:
                self.helpers.append(helper)

    def close(self) -> None:
        """There are no more texts: the helpers end when all are compiled."""
        for _ in self.helpers:
            self.queue.put(None)

    def results(self) -> list[bytes]:
        """Compile what is left, and wait for the others."""
        self.queue.put(None)
        self.work()
        for helper in self.helpers:
            helper.join()
        if self.errors:
            raise self.errors[0]
        return [self.found[number] for number in range(self.count)]

    def work(self) -> None:
        while (item := self.queue.get()) is not None:
            if self.errors:
                continue
            try:
                self.found[item[0]] = self.compile_one(item[1])
            except BaseException as error:  # raised in `results`
                self.errors.append(error)
