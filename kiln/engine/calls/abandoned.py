"""How capture abandons the graph of a backward pass before anything has run."""

from __future__ import annotations

from typing import Any

from ...program.call_markers import calls_program


def pattern_of(results: tuple[Any, ...]) -> tuple[bool, ...]:
    return tuple(result is not None for result in results)


class CaptureAbandoned(BaseException):
    """Capture met what the graph was not traced for, and nothing has run.

    ``point`` and ``pattern``: at this bailout point, gradients come where the pattern says so. ``ran``: a function in
    C++ returned them, inside the graph. ``opaque``: Python code does what capture cannot take into a graph; a graph
    with opaque calls can call that code.
    """

    def __init__(
        self,
        point: int = 0,
        results: tuple[Any, ...] | None = None,
        ran: bool = False,
        reason: str = "hooks come or go",
        opaque: bool = False,
    ) -> None:
        what = reason if results is None else "a node gives other gradients than were predicted"
        super().__init__(f"{what} while the pass runs")
        self.point = point
        self.ran = ran
        self.opaque = opaque
        self.pattern = None if results is None else pattern_of(results)


# Marks functions that call the program's code: where that needs real tensors, the pass needs opaque calls.
calls_user = calls_program(lambda reason: CaptureAbandoned(reason=reason, opaque=True))
