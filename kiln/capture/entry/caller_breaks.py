"""A break inside inlined calls, told by the caller to the frames it goes through.

Where capture breaks in a call that was being inlined, the caller breaks at that call, and the callee, called for real
right after, is compiled as a frame of its own: it is going to break at the same place. So it need not find that out by
tracing into *its* callees once more, and a person who counts breaks wants to see one, not one a frame.
"""

from __future__ import annotations

import contextlib
import threading
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..state.values import GraphBreak, Place

if TYPE_CHECKING:
    from ..state.values import BreakPoint


class _Latest(threading.local):
    """The break that ended the latest capture of this thread, while the call that was captured runs."""

    reason: GraphBreak | None = None


_latest = _Latest()


@contextlib.contextmanager
def during() -> Iterator[None]:
    """While a call is captured and runs. What its caller told is for its caller's other callees too."""
    before = _latest.reason
    try:
        yield
    finally:
        _latest.reason = before


def is_reported(reason: GraphBreak) -> bool:
    """Note the break that ends a frame; whether it is the one that the caller of this frame has told of."""
    before, _latest.reason = _latest.reason, reason
    if before is None or before.reason != reason.reason or not reason.places:
        return False
    if before.error is not None and reason.error is not None:  # an exception on its way out through all of them
        return True
    return len(reason.places) < len(before.places) and before.places[-len(reason.places) :] == reason.places


def break_of(code: types.CodeType) -> BreakPoint | None:
    """Where a frame of this code is going to break, if its caller knows. Which turn of a loop it does not."""
    from ..state.values import BreakPoint

    told = _latest.reason
    for number, place in enumerate(told.places[1:] if told is not None else (), 1):
        if place.code is code and told is not None:
            return None if place.looped else BreakPoint(place.index, 1, inner(told, told.places[number:]))
    return None


def inner(told: GraphBreak, places: list[Place]) -> GraphBreak:
    """The same break as the frame that is the first of these places sees it."""
    reason = GraphBreak(told.reason, told.hint, error=told.error)
    reason.places = places
    return reason
