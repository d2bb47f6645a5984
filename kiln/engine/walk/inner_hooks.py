"""Hooks inside functions that Kiln compiled, as a walk finds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ... import _native
from ...program.call_markers import fact


class InnerHook:
    """A hook on a tensor or node that has no node of its own in autograd's graph: a compiled backward calls it.

    Each is in a dictionary of its own. If it is removed from there while a backward pass runs, it does not run.
    """

    __slots__ = ("function", "key", "place")

    def __init__(self, function: Callable[..., Any], place: dict[int, Any], key: int) -> None:
        self.function, self.place, self.key = function, place, key

    @property
    @fact
    def alive(self) -> bool:
        """Whether it is still registered."""
        return self.key in self.place


_native.set_inner_hook_type(InnerHook)
