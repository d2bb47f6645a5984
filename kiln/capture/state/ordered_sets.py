"""Sets in a given order of iteration.

Which order a set iterates in depends on its past: on the order of insertion where hashes collide, and on the size of
its table, which does not shrink when elements are discarded. A set that is made again must iterate as
the program's own would, so an order of insertion and a number of passing elements are looked for that lead there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ... import operator_functions as operator

FILLERS = tuple(-(1 << 55) - 977 * number for number in range(3000))
"""Elements that make a set's table grow, and are taken out again. (Numbers: their hashes are always the same.)"""


def make_set(items: Iterable[Any], passing: int = 0) -> set[Any]:
    """A set of these elements, inserted in this order, which has had some more for a while."""
    made = set(items)
    if passing:
        for filler in FILLERS[:passing]:
            made.add(filler)
        for filler in FILLERS[:passing]:
            made.discard(filler)
    return made


def insertion_order(items: list[Any]) -> tuple[list[Any], int] | None:
    """Arguments for :func:`make_set` with which it gives a set that iterates over these elements in this order."""
    for passing in (0, 5, 20, 80, 320, 1300, 2600):
        if passing and passing < len(items) // 2:
            continue
        for order in (items, items[::-1], sorted(items, key=hash)):
            if all(map(operator.is_, make_set(order, passing), items)):
                return order, passing
        if len(items) > 2000:
            break
    return None
