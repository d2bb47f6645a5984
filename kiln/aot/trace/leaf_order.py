"""The order in which a compiled backward gives gradients to leaves: that of eager's engine.

Hooks of parameters show it. The engine takes what is ready from a heap, by sequence number, and all leaves have the
same one, the largest. A compiled node makes all its leaves ready at once, so which comes first depends on how the heap
orders equals. It is the heap of the C++ standard library, which is deterministic.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from .autograd_edges import is_leaf_edge
from .backward_stages import Stage


@contextlib.contextmanager
def record_leaf_order(stage: Stage) -> Iterator[None]:
    """In the block a backward pass over the trace runs: notes the order in which it comes to the leaves."""
    seen: list[int] = []

    def noting(place: int) -> Callable[[Any], None]:
        return lambda gradient: seen.append(place)

    leaves = [(place, source) for place, source in enumerate(stage.sources) if is_leaf_edge(source.edge)]
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
    for place, source in zip(heap_order([1] * len(wanted) + [0] * len(others)), wanted, strict=False):
        order[place] = source
    return order


def heap_order(priorities: list[int]) -> list[int]:
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
