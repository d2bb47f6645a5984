"""Warnings of a program: recorded while it is traced, issued in each call of what was compiled."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch


@contextlib.contextmanager
def recorded_warnings() -> Iterator[list[warnings.WarningMessage]]:
    """In the block warnings go to a list. They do not count as issued for the filter that shows each only once."""
    always = torch.is_warn_always_enabled()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        torch.set_warn_always(True)
        try:
            yield found
        finally:
            torch.set_warn_always(always)


def with_warnings(found: list[warnings.WarningMessage], run: Callable[..., Any]) -> Callable[..., Any]:
    """A function that issues recorded warnings in each call."""

    def warn_and_run(*inputs: Any) -> Any:
        for warning in found:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
        return run(*inputs)

    return warn_and_run
