"""How much memory a piece of work takes, as torch's allocator sees it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from torch.profiler import ProfilerActivity, profile


def memory_taken(work: Callable[[], Any]) -> tuple[int, int]:
    """The most bytes that were alive at once while ``work`` ran, and those at its end (its result is), beyond what was
    before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        result = work()
    events = found.profiler.kineto_results.events()
    changes = sorted((event for event in events if event.name() == "[memory]"), key=lambda event: event.start_ns())
    alive = list(itertools.accumulate((event.nbytes() for event in changes), initial=0))
    del result
    return max(alive), alive[-1]
