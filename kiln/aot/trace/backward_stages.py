"""Stages: autograd's graph of a traced program, cut at what is visible outside.

Visible tensors may depend on each other (a loss and the logits it was computed from), or share only a part of what they
were computed from. A single node from the inputs to all of them would hide that from autograd: a hook on the logits
would miss what comes from the loss, a backward from one result would reach inputs that only another depends on, and
free what it has saved. So the nodes of autograd's graph are grouped by *which visible tensors lead to them*, and each
such region is a stage, with one compiled autograd node. A stage's backward ends at inputs, at visible tensors, and at
*hidden* places where other stages begin. So a backward reaches, calls and frees what it does in eager.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any, Literal

import torch
import torch.fx

from ... import _native
from ...platform.light_dataclass import dataclass
from .autograd_edges import Edge, parents_first

Place = tuple[Literal["input", "reshaped", "output", "memory"], int]  # something visible outside, and its number


@dataclass(eq=False)
class Root:
    """Where gradients come into a stage: at memory, or at a place inside the graph that a later stage leads to."""

    edge: Edge
    memory: int | None
    tangent: torch.fx.Node | None = None
    value: Any = None  # the fake tangent


@dataclass(eq=False)
class Source:
    """Where gradients go out of a stage: to something visible, or to a root of an earlier stage."""

    edge: Edge
    kind: Literal["input", "reshaped", "output", "memory", "hidden"]
    index: int  # of the input, output or memory; of the root for "hidden"
    stage: int = -1
    original_edge: Edge | None = None  # before the graph was cut
    gradient: torch.fx.Node | None = None


@dataclass(eq=False)
class Stage:
    """A region of autograd's graph that one compiled node stands for."""

    roots: list[Root] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    region: set[Any] = field(default_factory=set)
    order: list[int] = field(default_factory=list)  # for each edge of its node, which source that is (leaf_order.py)


class Stages(list[Stage]):
    """The stages of a graph, those that others lead to first."""

    cuts: Any = None

    def mend(self, links: Sequence[tuple[Source, torch.Tensor]] = ()) -> None:
        """Undo the cuts: later derivatives lead through the graph, or to other tensors in place of sources."""
        if self.cuts is not None:
            edges = [(source.original_edge, tensor) for source, tensor in links if source.original_edge is not None]
            _native.mend_edges(self.cuts, [(*edge, tensor) for edge, tensor in edges])


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
    ``hooked`` are inner places with hooks: a stage begins there, so that accumulation and hooks on parameters happen
    before or after these hooks as in eager.
    """
    if not roots:
        return Stages()
    visible: dict[Edge, Place] = {}
    for edge, index in roots:
        visible.setdefault(edge, ("memory", index))
    for edge, index in reshaped:
        visible.setdefault(edge, ("reshaped", index))
    for edge, index in outputs:
        if edge not in inputs:
            visible.setdefault(edge, ("output", index))
    inner = [edge for edge in dict.fromkeys(hooked) if edge not in visible and edge not in inputs]
    regions = Regions([edge[0] for edge, _ in roots] + [edge[0] for edge in inner])
    stages = [Stage() for _ in regions.masks]
    for edge, index in roots:
        stages[regions.of(edge[0])].roots.append(Root(edge, index))
    for edge in inner:
        stages[regions.of(edge[0])].roots.append(Root(edge, None))
    cutter = Cutter(stages, regions, inputs, visible)
    cutter.cut(tensors)
    found = without_empty(stages)
    found.cuts = cutter.undo
    return found


def without_empty(stages: list[Stage]) -> Stages:
    """Without regions that are reached only through views that the runtime makes."""
    left = Stages(stage for stage in stages if stage.roots)
    for stage in left:
        for source in stage.sources:
            if source.kind == "hidden":
                source.stage = left.index(stages[source.stage])
    return left


class Cutter:
    """Finds the region and the sources of each stage, and cuts the graph between stages."""

    def __init__(
        self, stages: list[Stage], regions: Regions, inputs: dict[Edge, int], visible: dict[Edge, Place]
    ) -> None:
        self.stages, self.regions, self.inputs, self.visible = stages, regions, inputs, visible
        self.cuts: list[tuple[Any, int, Any, int]] = []
        self.undo: Any = None

    def cut(self, tensors: Sequence[torch.Tensor]) -> None:
        for number in reversed(range(len(self.stages))):  # later ones first: they know where earlier ones begin
            self.walk(number)
        if not self.cuts:
            return
        ends, self.undo = _native.cut_edges(list(tensors), self.cuts)
        replaced = {(node, nr): (end, 0) for (_, _, node, nr), end in zip(self.cuts, ends, strict=True)}
        for stage in self.stages:
            for source in stage.sources:
                source.original_edge = source.edge
                source.edge = replaced.get(source.edge, source.edge)

    def walk(self, number: int) -> None:
        stage = self.stages[number]
        known: set[Edge] = set()
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
    """The nodes of autograd's graph by the set of roots that lead to them; larger sets come first."""

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
