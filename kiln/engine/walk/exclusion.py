"""Mutual exclusion of traces and passes of torch's engine.

A graph that is kept (``retain_graph=True``) may be walked by several threads at once. A trace swaps what nodes saved
for fake tensors and runs Python code meanwhile, so that other threads run, too. Passes of torch's engine and walks wait
for the end of a trace, which always comes, as a trace runs none of the program's code. A trace waits only a moment for
passes of torch's engine in other threads, and then refuses: their hooks may be waiting for this very thread.

Only passes that Kiln sees count: not those that were under way when the first `kiln.compiled_autograd` scope began.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

from ...platform.locks import new_lock
from .refusal import Busy

TIMEOUT = 0.05  # seconds


class TraceExclusion:
    """Admits one trace, or any number of passes of torch's engine."""

    def __init__(self) -> None:
        self.lock: Any = new_lock()
        self.pass_ended = threading.Condition(self.lock)
        self.passes: Counter[int] = Counter()  # of torch's engine under way, by thread

    def other_threads_in_passes(self) -> bool:
        own = threading.get_ident()
        return any(thread != own for thread in self.passes)

    @contextlib.contextmanager
    def tracing(self) -> Iterator[None]:
        """Nodes hold fakes in this block. Raises `Busy` if another thread stays in a pass of torch's engine."""
        with self.lock:
            if not self.pass_ended.wait_for(lambda: not self.other_threads_in_passes(), TIMEOUT):
                raise Busy("another thread's pass is under way, and may be in the same graph")
            yield

    @contextlib.contextmanager
    def torch_pass(self) -> Iterator[None]:
        """Torch's engine calls nodes in this block."""
        own = threading.get_ident()
        with self.lock:
            self.passes[own] += 1
        try:
            yield
        finally:
            with self.lock:
                self.passes[own] -= 1
                if not self.passes[own]:
                    del self.passes[own]
                self.pass_ended.notify_all()

    def forget_other_threads(self) -> None:
        """In a forked process there are no other threads."""
        own = threading.get_ident()
        self.passes = Counter({own: self.passes[own]} if own in self.passes else {})
        self.pass_ended = threading.Condition(self.lock)


exclusion = TraceExclusion()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=exclusion.forget_other_threads)
