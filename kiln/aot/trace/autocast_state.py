"""Autocast around compiled graphs: a graph is recorded below autocast, with the casts in it, and runs without it.

A backward runs under the autocast of its caller, as in eager: mostly none, whatever the forward ran under.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ...platform.torch_autograd import is_any_autocast_enabled

DEVICES = ("cpu", "cuda")
is_on: Callable[[], bool] = is_any_autocast_enabled
is_enabled, enable = torch.is_autocast_enabled, torch.set_autocast_enabled
State = tuple[tuple[str, bool, torch.dtype], ...]  # () where autocast is off


def current() -> State:
    """The autocast that is active."""
    if not is_on():
        return ()
    return tuple([(device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in DEVICES])


@contextlib.contextmanager
def applied(state: State) -> Iterator[None]:
    """In the block this autocast is active."""
    before = current()
    switch(before, state)
    try:
        yield
    finally:
        switch(state, before)


def switch(old: State, new: State) -> None:
    for device, enabled, dtype in new or [(device, False, dtype) for device, _, dtype in old]:
        torch.set_autocast_enabled(device, enabled)
        torch.set_autocast_dtype(device, dtype)


def without(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, run without autocast."""

    def run(arguments: list[Any]) -> Any:
        enabled = [device for device in DEVICES if is_enabled(device)]  # a context manager would cost microseconds
        for device in enabled:
            enable(device, False)
        try:
            return function(arguments)
        finally:
            for device in enabled:
                enable(device, True)

    return run
