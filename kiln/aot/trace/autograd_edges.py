"""Places in autograd's graph: the edge of a tensor, and paths between nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ... import _native
from ...program.unsupported import Unsupported

Edge = tuple[Any, int]  # a node of autograd's graph and the number of its output


def edge_of(value: Any) -> Edge | None:
    """A tensor's place in autograd's graph."""
    if not isinstance(value, torch.Tensor) or not value.requires_grad:
        return None
    try:
        return _native.gradient_edge(value)
    except RuntimeError as error:  # a view of a base that was changed in a way that the view cannot follow
        raise Unsupported(f"a view that torch raises an error about: {error}") from error


def is_leaf_edge(edge: Edge) -> bool:
    """Whether gradients there are accumulated into a leaf."""
    name: str = edge[0].name()
    return name == "torch::autograd::AccumulateGrad"


Path = tuple[int, tuple[int, ...]]  # a root's number, and which edge to follow from each node


def path_to(roots: Sequence[Any], target: Any) -> Path | None:
    """The shortest path from one of some nodes to another; None if there is none."""
    known: dict[Any, Path] = {}
    pending = []
    for number, root in enumerate(roots):
        if root not in known:
            known[root] = (number, ())
            pending.append(root)
    for node in pending:  # grows: the shortest path is found first
        if node is target:
            return known[node]
        number, places = known[node]
        for place, (following, _) in enumerate(node.next_functions):
            if following is not None and following not in known:
                known[following] = (number, (*places, place))
                pending.append(following)
    return None


def follow(roots: Sequence[Any], path: Path) -> Any:
    """The node at the end of a path, in another graph of the same form."""
    number, places = path
    node = roots[number]
    for place in places:
        node = node.next_functions[place][0]
    return node


def parents_first(roots: Sequence[Any]) -> list[Any]:
    """All nodes that can be reached from some, each before those it leads to. Without recursion: graphs are deep."""
    order: list[Any] = []
    done: set[Any] = set()
    pending = [(node, False) for node in roots]
    while pending:
        node, finished = pending.pop()
        if finished:
            order.append(node)
        elif node not in done:
            done.add(node)
            pending.append((node, True))
            pending += [(following, False) for following, _ in node.next_functions if following is not None]
    return order[::-1]
