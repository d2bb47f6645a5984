"""Stages: autograd's graph of a traced program, cut at what is visible outside.

Visible tensors may depend on each other: a loss and the logits it was computed from. Then a single node that goes from
the inputs to all of them would hide that from autograd: a hook on the logits would miss what comes from the loss. So
the tensors that depend on no other visible one make the first stage, those that depend on them the next, and so on. A
stage's backward ends at inputs, at visible tensors of earlier stages, and at *hidden* places of an earlier stage that
both need.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .. import _native

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
    gradient: torch.fx.Node | None = None


@dataclass(eq=False)
class Stage:
    roots: list[Root] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    region: set[Any] = field(default_factory=set)


def build_stages(
    inputs: dict[Edge, int],
    roots: Sequence[tuple[Edge, int]],
    outputs: Sequence[tuple[Edge, int]],
    tensors: Sequence[torch.Tensor],
    reshaped: Sequence[tuple[Edge, int]] = (),
) -> list[Stage]:
    """Cut the graph that leads from the roots (with their memories) to the inputs.

    ``tensors`` are those at the roots; ``reshaped`` are inputs by the edge they got when their shape was changed.
    """
    if not roots:
        return []
    visible: dict[Edge, tuple[str, int]] = {}
    for edge, index in roots:
        visible.setdefault(edge, ("memory", index))
    for edge, index in reshaped:
        visible.setdefault(edge, ("reshaped", index))
    for edge, index in outputs:
        if edge not in inputs:
            visible.setdefault(edge, ("output", index))
    depths = Depths(visible)
    stages = []
    for level in sorted({depths.below(edge[0]) for edge, _ in roots}):
        members = [(edge, index) for edge, index in roots if depths.below(edge[0]) == level]
        stages.append(Stage([Root(edge, index) for edge, index in members]))
    Cutter(stages, inputs, visible).cut(tensors)
    return stages


class Cutter:
    """Finds what belongs to each stage, and ends it there."""

    def __init__(self, stages: list[Stage], inputs: dict[Edge, int], visible: dict[Edge, tuple[str, int]]) -> None:
        self.stages, self.inputs, self.visible = stages, inputs, visible
        self.cuts: list[tuple[Any, int, Any, int]] = []

    def cut(self, tensors: Sequence[torch.Tensor]) -> None:
        for number in range(len(self.stages)):
            self.walk(number)
        if not self.cuts:
            return
        ends = _native.cut_edges(list(tensors), self.cuts)
        replaced = {(node, nr): (end, 0) for (_, _, node, nr), end in zip(self.cuts, ends, strict=True)}
        for stage in self.stages:
            for source in stage.sources:
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
        for earlier in range(number):
            stage = self.stages[earlier]
            if edge[0] in stage.region:
                place = next((i for i, root in enumerate(stage.roots) if root.edge == edge), None)
                if place is None:
                    place = len(stage.roots)
                    stage.roots.append(Root(edge, None))
                return Source(edge, "hidden", place, earlier)
        return None


class Depths:
    """How many visible things lie one behind the other below an edge."""

    def __init__(self, visible: dict[Edge, Any]) -> None:
        self.visible = visible
        self.by_node: dict[Any, int] = {}

    def below(self, node: Any) -> int:
        """0 where nothing visible comes before it. Children first and without recursion: graphs are deep."""
        pending = [node]
        while pending:
            top = pending[-1]
            if top in self.by_node:
                pending.pop()
                continue
            following = [(child, nr) for child, nr in top.next_functions if child is not None]
            open_children = [child for child, _ in following if child not in self.by_node]
            if open_children:
                pending += open_children
                continue
            self.by_node[top] = max(
                (self.by_node[child] + ((child, nr) in self.visible) for child, nr in following), default=0
            )
            pending.pop()
        return self.by_node[node]


def edge_of(value: Any) -> Edge | None:
    """A tensor's place in autograd's graph."""
    if not isinstance(value, torch.Tensor) or not value.requires_grad:
        return None
    if value.grad_fn is not None:
        return value.grad_fn, value.output_nr
    with torch.enable_grad(), torch._C._DisableTorchDispatch():  # a leaf: only its views tell; no shapes are needed
        return torch.ops.aten.alias.default(value).grad_fn.next_functions[0]
