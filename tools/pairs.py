"""Pairs of a Python release and a torch release, as 3.12 with 2.15."""

from __future__ import annotations

import re
from typing import NamedTuple

PATTERN = re.compile(r"(?:py)?(3\.\d+)(?:[:+]|-torch| with )(\d+\.\d+(?:\.\d+)?)")


class Pair(NamedTuple):
    """A release of Python, and one of torch: 2.15 stands for its newest patch, 2.14.1 for itself."""

    python: str
    torch: str

    @property
    def name(self) -> str:
        """For folders and files."""
        return f"py{self.python}-torch{self.torch}"

    def __str__(self) -> str:
        return f"{self.python} with {self.torch}"

    @property
    def requirement(self) -> str:
        """What to ask the registry for."""
        return f"torch=={self.torch}" if self.torch.count(".") == 2 else f"torch=={self.torch}.*"

    @property
    def order(self) -> tuple[int, ...]:
        """For sorting: by torch, then by Python, as numbers."""
        return tuple(int(part) for part in f"{self.torch}.{self.python}".split("."))


def parse(text: str) -> Pair:
    """The pair that is written as 3.12:2.15, py3.12-torch2.15 or "3.12 with 2.15"."""
    found = PATTERN.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is no pair of Python and torch: write it as 3.12:2.15")
    return Pair(found[1], found[2])


# What docs/platforms.md shows, and what `make matrix` runs unless it is asked for others.
SHOWN = tuple(parse(text) for text in "3.11:2.11 3.11:2.13 3.12:2.13 3.13:2.13 3.12:2.15 3.13:2.15 3.14:2.15".split())
