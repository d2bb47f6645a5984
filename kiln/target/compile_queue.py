"""Texts compiled on two threads, while the next ones are still being written."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable


def compile_all(texts: Iterable[str], compile_one: Callable[[str], bytes]) -> list[bytes]:
    """What ``compile_one`` makes of several texts, on two threads.

    LLVM works without Python's lock, so a generator's texts are compiled while it makes the next ones.
    """
    crew = CompileQueue(compile_one)
    helper = threading.Thread(target=crew.work, name="kiln-compile", daemon=True)
    helpers = [helper]
    try:
        helper.start()
    except RuntimeError:  # no more threads: this one does it all
        helpers.clear()
    count = 0
    try:
        for text in texts:
            crew.queue.put((count, text))
            count += 1
    except BaseException as error:
        crew.errors.append(error)
    for _ in (crew, *helpers):
        crew.queue.put(None)
    crew.work()
    for helper in helpers:
        helper.join()
    if crew.errors:
        raise crew.errors[0]
    return [crew.found[number] for number in range(count)]


class CompileQueue:
    """Texts that wait, and their machine code. Each worker takes texts until it takes None."""

    def __init__(self, compile_one: Callable[[str], bytes]) -> None:
        self.compile_one = compile_one
        self.queue: queue.SimpleQueue[tuple[int, str] | None] = queue.SimpleQueue()
        self.found: dict[int, bytes] = {}
        self.errors: list[BaseException] = []

    def work(self) -> None:
        while (item := self.queue.get()) is not None:
            if self.errors:
                continue
            try:
                self.found[item[0]] = self.compile_one(item[1])
            except BaseException as error:  # raised in compile_all
                self.errors.append(error)
