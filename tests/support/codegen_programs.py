"""What tests of lowering share: a function as a lowered and scheduled graph, and its results through the reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from kiln.loops import reference
from kiln.loops.steps import Call, Launch, Lowered, Scheduled
from kiln.lower import ops  # noqa: F401  (fills the table of lowerings)
from kiln.lower.lowering import Lowering
from kiln.lower.schedule.scheduling import schedule


def graph_of(function: Callable[..., Any], inputs: Sequence[Any], mode: str = "fake") -> torch.fx.GraphModule:
    def listed(*args: Any) -> list[Any]:
        found = function(*args)
        return list(found) if isinstance(found, (list, tuple)) else [found]

    with torch.no_grad():
        return make_fx(listed, tracing_mode=mode)(*inputs)


def lowered_of(function: Callable[..., Any], inputs: Sequence[Any], mode: str = "fake") -> Lowered:
    return Lowering(graph_of(function, inputs, mode)).run()


def scheduled_of(function: Callable[..., Any], inputs: Sequence[Any], mode: str = "fake") -> Scheduled:
    return schedule(lowered_of(function, inputs, mode))


def launches(scheduled: Scheduled) -> list[Launch]:
    return [step for step in scheduled.steps if isinstance(step, Launch)]


def calls(scheduled: Scheduled) -> list[str]:
    return [str(step.target) for step in scheduled.steps if isinstance(step, Call)]


def check_meaning(function: Callable[..., Any], inputs: Sequence[Any], mode: str = "fake") -> Scheduled:
    """Lowering and fusion keep the meaning: the reference gives what eager gives, before and after fusion."""
    expected = function(*inputs)
    expected = list(expected) if isinstance(expected, (list, tuple)) else [expected]
    lowered = lowered_of(function, inputs, mode)
    scheduled = schedule(lowered)
    for form in (lowered, scheduled):
        for found, wanted in zip(reference.run(form, inputs), expected, strict=True):
            torch.testing.assert_close(found, wanted, equal_nan=True)
            assert found.stride() == wanted.stride()
    return scheduled
