"""In which order a compiled backward hands gradients to leaves: that in which eager's engine comes to them.

Hooks of parameters show it. The engine takes what is ready from a heap, by sequence number, and all leaves have the
same one, the largest. A compiled node makes all its leaves ready at once, so which comes first is a matter of how the
heap treats equals. It is the heap of the C++ library, and does the same every time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from .backward_stages import Stage


def is_leaf(edge: Any) -> bool:
    return hasattr(edge[0], "variable")


@contextlib.contextmanager
def observed(stage: Stage) -> Iterator[None]:
    """Notes in which order a backward pass over the trace comes to the leaves."""
    seen: list[int] = []

    def noting(place: int) -> Any:
        return lambda gradient: seen.append(place)

    leaves = [(place, source) for place, source in enumerate(stage.sources) if is_leaf(source.edge)]
    handles = [source.edge[0].variable.register_hook(noting(place)) for place, source in leaves]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
    stage.order = edge_order([place for place, _ in leaves], seen, len(stage.sources))


def edge_order(leaves: list[int], seen: list[int], count: int) -> list[int]:
    """For each edge of the node which source it is, so that leaves are taken in the order in which they were seen."""
    wanted = [*dict.fromkeys(seen), *(place for place in leaves if place not in seen)]
    others = [place for place in range(count) if place not in wanted]
    order = [*wanted, *others]
    for place, source in zip(taken([1] * len(wanted) + [0] * len(others)), wanted, strict=False):
        order[place] = source
    return order


def taken(priorities: list[int]) -> list[int]:
    """The order in which a heap gives back what was put into it, by place."""
    heap: list[int] = []
    for place in range(len(priorities)):
        heap.append(place)
        sift_up(heap, priorities, len(heap) - 1, place)
    found = []
    while heap:
        found.append(heap[0])
        last = heap.pop()
        if heap:
            sift_down(heap, priorities, last)
    return found


def sift_up(heap: list[int], priorities: list[int], hole: int, value: int) -> None:
    while hole > 0 and priorities[heap[(hole - 1) // 2]] < priorities[value]:
        heap[hole] = heap[(hole - 1) // 2]
        hole = (hole - 1) // 2
    heap[hole] = value


def sift_down(heap: list[int], priorities: list[int], value: int) -> None:
    """Move the larger child up until there is none, of equals the right one; then bring the value up from there."""
    hole, count = 0, len(heap)
    while 2 * hole + 1 < count:
        child = 2 * hole + 2
        if child == count or priorities[heap[child]] < priorities[heap[child - 1]]:
            child -= 1
        heap[hole] = heap[child]
        hole = child
    sift_up(heap, priorities, hole, value)
