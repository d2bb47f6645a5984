"""Stages: autograd's graph of a traced program, cut at what is visible outside.

Visible tensors may depend on each other (a loss and the logits it was computed from), or share only a part of what they
were computed from. A single node from the inputs to all of them would hide that from autograd: a hook on the logits
would miss what comes from the loss, a backward from one result would reach inputs that only another depends on, and
free what it has saved. So the nodes of autograd's graph are put together by *which visible tensors lead to them*, and
each such region is a stage. A stage's backward ends at inputs, at visible tensors, and at *hidden* places where other
stages begin. What a backward then reaches, calls and frees is what eager's does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ... import _native
from ...program.unsupported import Unsupported

Edge = tuple[Any, int]  # a node of autograd's graph and the number of its output


@dataclass(eq=False)
class Root:
    """Where gradients come into a stage: at memory, or at a place inside the graph that a later stage leads to."""

    edge: Edge
    memory: int | None
    tangent: torch.fx.Node | None = None
    value: Any = None  # the fake tangent


@dataclass(eq=False)
class Source:
    """Where gradients go out of a stage: to an input, to something visible, or to a root of an earlier stage."""

    edge: Edge
    kind: str  # "input", "reshaped", "output", "memory", "hidden"
    index: int  # of the input, output or memory; of the root for "hidden"
    stage: int = -1
    place: Edge | None = None  # where it was before the graph was cut
    gradient: torch.fx.Node | None = None


@dataclass(eq=False)
class Stage:
    roots: list[Root] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    region: set[Any] = field(default_factory=set)
    order: list[int] = field(default_factory=list)  # for each edge of its node, which source that is (order.py)


class Stages(list[Stage]):
    """The stages of a graph, those that others lead to first."""

    cuts: Any = None

    def mend(self, links: Sequence[tuple[Source, torch.Tensor]] = ()) -> None:
        """Make the graph whole again: later derivatives lead through it, or to other tensors in place of sources."""
        if self.cuts is not None:
            _native.mend_edges(self.cuts, [(*source.place, tensor) for source, tensor in links])  # type: ignore[misc]


def build_stages(
    inputs: dict[Edge, int],
    roots: Sequence[tuple[Edge, int]],
    outputs: Sequence[tuple[Edge, int]],
    tensors: Sequence[torch.Tensor],
    reshaped: Sequence[tuple[Edge, int]] = (),
    hooked: Sequence[Edge] = (),
) -> Stages:
    """Cut the graph that leads from the roots (with their memories) to the inputs.

    ``tensors`` are those at the roots; ``reshaped`` are inputs by the edge they got when their shape was changed;
    ``hooked`` are places inside with hooks: a stage begins there, so that what else happens in a backward (gradients
    that are accumulated, hooks on parameters) happens before or after the hooks as in eager.
    """
    if not roots:
        return Stages()
    visible: dict[Edge, tuple[str, int]] = {}
    for edge, index in roots:
        visible.setdefault(edge, ("memory", index))
    for edge, index in reshaped:
        visible.setdefault(edge, ("reshaped", index))
    for edge, index in outputs:
        if edge not in inputs:
            visible.setdefault(edge, ("output", index))
    inside = [edge for edge in dict.fromkeys(hooked) if edge not in visible and edge not in inputs]
    regions = Regions([edge[0] for edge, _ in roots] + [edge[0] for edge in inside])
    stages = [Stage() for _ in regions.masks]
    for edge, index in roots:
        stages[regions.of(edge[0])].roots.append(Root(edge, index))
    for edge in inside:
        stages[regions.of(edge[0])].roots.append(Root(edge, None))
    cutter = Cutter(stages, regions, inputs, visible)
    cutter.cut(tensors)
    found = without_empty(stages)
    found.cuts = cutter.done
    return found


def without_empty(stages: list[Stage]) -> Stages:
    """Without regions that are only reached through views that the runtime makes itself."""
    left = Stages(stage for stage in stages if stage.roots)
    for stage in left:
        for source in stage.sources:
            if source.kind == "hidden":
                source.stage = left.index(stages[source.stage])
    return left


Path = tuple[int, tuple[int, ...]]  # a root's number, and which edge to follow from each node


def path_to(roots: Sequence[Any], target: Any) -> Path | None:
    """How to come from one of some nodes to another."""
    known: dict[Any, Path] = {}
    pending = []
    for number, root in enumerate(roots):
        if root not in known:
            known[root] = (number, ())
            pending.append(root)
    for node in pending:  # it grows meanwhile: the shortest way comes first
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


class Cutter:
    """Finds what belongs to each stage, and ends it there."""

    def __init__(
        self, stages: list[Stage], regions: Regions, inputs: dict[Edge, int], visible: dict[Edge, tuple[str, int]]
    ) -> None:
        self.stages, self.regions, self.inputs, self.visible = stages, regions, inputs, visible
        self.cuts: list[tuple[Any, int, Any, int]] = []
        self.done: Any = None

    def cut(self, tensors: Sequence[torch.Tensor]) -> None:
        for number in reversed(range(len(self.stages))):  # later ones first: they know where earlier ones begin
            self.walk(number)
        if not self.cuts:
            return
        ends, self.done = _native.cut_edges(list(tensors), self.cuts)
        replaced = {(node, nr): (end, 0) for (_, _, node, nr), end in zip(self.cuts, ends, strict=True)}
        for stage in self.stages:
            for source in stage.sources:
                source.place = source.edge
                source.edge = replaced.get(source.edge, source.edge)

    def walk(self, number: int) -> None:
        stage = self.stages[number]
        known = set()
        pending = [root.edge[0] for root in reversed(stage.roots)]
        while pending:
            node = pending.pop()
            if node in stage.region:
                continue
            stage.region.add(node)
            for place, (following, nr) in enumerate(node.next_functions):
                if following is None:
                    continue
                edge = (following, nr)
                source = self.source_at(edge, number)
                if source is None:
                    pending.append(following)
                    continue
                if source.kind != "input":
                    self.cuts.append((node, place, following, nr))
                if edge not in known:
                    known.add(edge)
                    stage.sources.append(source)
        stage.sources.sort(key=lambda source: (source.kind != "input", source.index))

    def source_at(self, edge: Edge, number: int) -> Source | None:
        if edge in self.inputs:
            return Source(edge, "input", self.inputs[edge])
        if edge in self.visible:
            kind, index = self.visible[edge]
            return Source(edge, kind, index)
        owner = self.regions.of(edge[0])
        if owner == number:
            return None
        roots = self.stages[owner].roots
        place = next((i for i, root in enumerate(roots) if root.edge == edge), None)
        if place is None:
            place = len(roots)
            roots.append(Root(edge, None))
        return Source(edge, "hidden", place, owner)


class Regions:
    """The nodes of autograd's graph by which roots lead to them; those that more lead to come first."""

    def __init__(self, roots: Sequence[Any]) -> None:
        self.mask_of: dict[Any, int] = {}
        for place, node in enumerate(roots):
            self.mask_of[node] = self.mask_of.get(node, 0) | 1 << place
        for node in parents_first(roots):
            mask = self.mask_of[node]
            for following, _ in node.next_functions:
                if following is not None:
                    self.mask_of[following] = self.mask_of.get(following, 0) | mask
        self.masks = sorted(set(self.mask_of.values()), key=lambda mask: (-mask.bit_count(), mask))
        self.numbers = {mask: number for number, mask in enumerate(self.masks)}

    def of(self, node: Any) -> int:
        return self.numbers[self.mask_of[node]]


def parents_first(roots: Sequence[Any]) -> list[Any]:
    """All nodes that lead on from some, each before those it leads to. Without recursion: graphs are deep."""
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


def edge_of(value: Any) -> Edge | None:
    """A tensor's place in autograd's graph."""
    if not isinstance(value, torch.Tensor) or not value.requires_grad:
        return None
    try:
        return _native.gradient_edge(value)
    except RuntimeError as error:  # a view that could not follow a change of its base: torch tells whoever looks
        raise Unsupported(f"a view that torch raises an error about: {error}") from error
