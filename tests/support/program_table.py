"""Tables of small programs: most capture tests are a function under a decorator, run once by each row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from kiln.testing import check


class ProgramTable:
    """Collects programs with their arguments; ``rows`` parametrises a test, ``run`` is its body.

    Unless a row says otherwise a program must be captured whole (``fullgraph``), is called twice (the second time with
    what the first one left, through the guards), and is run again with a graph break
    at every line, so that each statement is also seen across a break and in a continuation.
    """

    def __init__(self, **defaults: Any):
        self.defaults = {"fullgraph": True, "breaks_every": (None, "line"), "calls": 2, **defaults}
        self.programs: list[Any] = []

    def __call__(self, *args: Any, name: str | None = None, **expect: Any) -> Callable:
        def register(program: Callable) -> Callable:
            self.programs.append(pytest.param(program, args, expect, id=name or program.__name__))
            return program

        return register

    def breaking(self, *args: Any, **expect: Any) -> Callable:
        """A program that may break the graph, but must be right."""
        return self(*args, fullgraph=False, **expect)

    def run(self, program: Callable, args: tuple, expect: dict[str, Any]) -> None:
        check(program, *args, **{**self.defaults, **expect})

    @property
    def rows(self) -> pytest.MarkDecorator:
        return pytest.mark.parametrize("program, args, expect", self.programs)


def tensor(*sizes: int, start: float = 0.0) -> torch.Tensor:
    """Distinct values, small enough to check by eye."""
    count = 1
    for size in sizes:
        count *= size
    return torch.arange(start, start + count).reshape(sizes) / 4


X = tensor(3, start=1.0)
Y = tensor(3, start=5.0)
M = tensor(2, 3)
