"""Autocast around compiled graphs: a graph is what autocast made of a program, and runs without it.

A backward runs under the autocast of whoever calls it, in eager too: mostly none, whatever the forward ran under.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

DEVICES = ("cpu", "cuda")
State = tuple[tuple[str, bool, torch.dtype], ...]  # () where autocast is off

is_on: Callable[[], bool] = torch._C._is_any_autocast_enabled


def current() -> State:
    """The autocast that is active."""
    if not is_on():
        return ()
    return tuple([(device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in DEVICES])


@contextlib.contextmanager
def under(state: State) -> Iterator[None]:
    """As if this autocast were active."""
    before = current()
    put(before, state)
    try:
        yield
    finally:
        put(state, before)


def put(old: State, new: State) -> None:
    for device, enabled, dtype in new or [(device, False, dtype) for device, _, dtype in old]:
        torch.set_autocast_enabled(device, enabled)
        torch.set_autocast_dtype(device, dtype)


def without(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, run without autocast."""

    def run(arguments: list[Any]) -> Any:
        with under(()):
            return function(arguments)

    return run
