"""``torch.autograd.Function`` in captured code: one graph node that calls ``apply``."""

from __future__ import annotations

from .trace import Trace


def call_apply(trace: Trace, cls: type, args: tuple, kwargs: dict) -> object:
    raise trace.fail(f"the autograd function {cls.__qualname__}")
