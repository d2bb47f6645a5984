"""A tape of bytes that decides everything about a generated program.

One byte string from hypothesis is one program: drawing it costs one call instead of hundreds. A tape that has run out
answers 0, and 0 is everywhere the choice that ends things soonest, so that programs end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

Item = TypeVar("Item")


class Tape:
    """Choices read off a byte string."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._position = 0

    @property
    def is_empty(self) -> bool:
        """Whether all that follows will be zeros."""
        return self._position >= len(self._content)

    def byte(self) -> int:
        """The next byte."""
        if self._position >= len(self._content):
            return 0
        self._position += 1
        return self._content[self._position - 1]

    def below(self, bound: int) -> int:
        """A number from 0 to bound - 1."""
        return (self.byte() * bound) >> 8 if bound <= 256 else ((self.byte() << 8 | self.byte()) * bound) >> 16

    def chance(self, percent: int) -> bool:
        """True in so many cases of a hundred, and False at the end of the tape."""
        return self.byte() * 100 >= (100 - percent) * 256

    def pick(self, items: Sequence[Item]) -> Item:
        """One of several things; the first at the end of the tape."""
        return items[self.below(len(items))]
