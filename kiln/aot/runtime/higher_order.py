"""Backward by running the program again: for derivatives of higher order, and for what cannot be compiled.

The node of a compiled graph holds the graph's inputs. With ``create_graph=True`` the program runs on them once more,
with autograd on, and torch differentiates that: higher derivatives are eager's own, hooks included.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.autograd.graph import GradientEdge

from ... import _native
from ..._native import GlobalState
from ...platform.light_dataclass import dataclass
from ...platform.torch_tensors import base_of
from ...program.hook_slots import HookSlot
from ...program.shared_hooks import on_behalf
from ..trace.autograd_edges import Edge, edge_of, follow
from ..trace.backward_stages import Source, Stage, build_stages
from ..trace.hook_calls import Hooks, run_all
from ..trace.joint_graph import JointGraph


@dataclass(frozen=True)
class CallContext:
    """What belongs to one call of a compiled graph, besides tensors."""

    hooks: Sequence[Hooks | None] = ()  # by registration; None for those that autograd calls
    random_states: Sequence[tuple[torch.Generator, torch.Tensor]] = ()  # as they were before
    numbers: Sequence[Any] = ()  # saved sizes


class RerunSlot(HookSlot):
    """The slot of a hook when the program runs again: calls what the first run registered."""

    __slots__ = ("hooks",)

    def __init__(self, hooks: Hooks | None) -> None:
        super().__init__()
        self.hooks = hooks

    def __call__(self, *gradients: Any) -> Any:
        if len(gradients) == 1 and isinstance(gradients[0], torch.Tensor):
            return run_all(self.hooks, gradients[0]) if self.hooks else None
        result = None
        for hook in list(self.hooks.values()) if self.hooks else ():
            given = hook(*gradients)
            if given is not None:
                result, gradients = given, (given, *gradients[1:])
        return result


class HigherOrderBackward:
    """Runs a program again and differentiates it."""

    def __init__(self, program: Callable[..., Any], joint: JointGraph, state: GlobalState) -> None:
        self.program, self.state = program, state
        self.changed = {*joint.changed_inputs, *joint.reshaped}
        self.registrations = {r.slot: (r.number, r.is_inner) for r in joint.registrations if r.slot is not None}
        self.roots = [(index, finder(joint, index)) for index, m in enumerate(joint.memories) if m.edge is not None]
        self.shape_changes = [shape_changes(joint, index) for index, _ in self.roots]
        self.moved = [index for index, moved in enumerate(joint.has_new_edge) if moved]
        self.hooked_paths = joint.hooked_paths
        self.seen = [index for index, output in enumerate(joint.outputs) if output.edge is not None]

    def __call__(
        self, number: int, defined: int, needed: int, inputs: list[Any], gradients: list[Any], context: CallContext
    ) -> list[Any]:
        create_graph = torch.is_grad_enabled()
        linked = [value[0].detach().clone() if isinstance(value, tuple) else value for value in inputs]
        with self.original_state(context):
            results, given, edges = self.run(linked, context)
        tensors = [find(results, given) for _, find in self.roots]
        roots = [
            (edge_before(tensor, changes), index)
            for tensor, changes, (index, _) in zip(tensors, self.shape_changes, self.roots, strict=True)
        ]
        seen = edges_with_numbers(results, self.seen)
        reshaped = edges_with_numbers(given, self.moved)
        nodes = [edge[0] for edge, _ in roots]
        hooked = [(follow(nodes, path), number) for path, number in self.hooked_paths]
        stages = build_stages(edges, roots, seen, tensors, reshaped, hooked)
        stage = stages[number]
        links = self.link(stage, results, given, tensors) if create_graph else []
        incoming = [(root, gradients[i]) for i, root in enumerate(stage.roots) if defined >> i & 1]
        wanted = [source for i, source in enumerate(stage.sources) if needed >> i & 1]
        with on_behalf([hook for hooks in context.hooks for hook in (hooks or {}).values()]):
            found = torch.autograd.grad(
                [GradientEdge(*root.edge) for root, _ in incoming],
                [GradientEdge(*source.edge) for source in wanted],
                [gradient for _, gradient in incoming],
                create_graph=create_graph,
                allow_unused=True,
            )
        stages.mend(links)
        if create_graph:  # results that operations saved lead to the caller's tensors
            _native.lead_to_running(list(found), [(*root.edge, place) for place, root in enumerate(stage.roots)])
        given_out = iter(found)
        return [next(given_out) if needed >> i & 1 else None for i in range(len(stage.sources))]

    def link(
        self, stage: Stage, results: list[Any], given: list[Any], tensors: list[torch.Tensor]
    ) -> list[tuple[Source, torch.Tensor]]:
        """Link sources of this stage to the tensors that the caller has, so that it can differentiate by those."""
        by_memory = {index: tensor for tensor, (index, _) in zip(tensors, self.roots, strict=True)}
        places: dict[str, Any] = {"memory": by_memory, "output": results, "reshaped": given}
        links = []
        for number, source in enumerate(stage.sources):
            tensor = places[source.kind][source.index] if source.kind in places else None
            if tensor is not None and edge_of(tensor) == source.original_edge:  # not once it has another shape
                _native.link_tensor(tensor, number)
                links.append((source, tensor))
        return links

    def run(self, linked: list[Any], context: CallContext) -> tuple[list[Any], list[Any], dict[Any, int]]:
        """Gives the results, the inputs as they are then, and their places in autograd's graph before."""
        given = list(linked)
        for index in self.changed:
            given[index] = given[index].clone()
        for slot, (number, is_inner) in self.registrations.items():
            given[slot] = RerunSlot(context.hooks[number] if is_inner else None)
        edges = {edge: index for index, edge in enumerate(map(edge_of, given)) if edge is not None}
        results = self.program(*given)
        return list(results) if isinstance(results, (list, tuple)) else [results], given, edges

    @contextlib.contextmanager
    def original_state(self, context: CallContext) -> Iterator[None]:
        """The state of torch, and of its random numbers, in which the program ran first."""
        now, numbers = GlobalState(), [(generator, generator.get_state()) for generator, _ in context.random_states]
        for generator, before in context.random_states:
            generator.set_state(before)
        self.state.restore()
        try:
            with torch.enable_grad():
                yield
        finally:
            now.restore()
            for generator, after in numbers:
                generator.set_state(after)


def finder(joint: JointGraph, index: int) -> Callable[[list[Any], list[Any]], torch.Tensor]:
    """How to find the tensor at a root when the program has run again."""
    memory = joint.memories[index]
    if memory.input is not None:
        owner = memory.input
        return lambda results, given: given[owner]
    for place, output in enumerate(joint.outputs):
        if output.kind == "memory" and output.index == index:
            if output.view is None:
                return lambda results, given: results[place]
    for place, output in enumerate(joint.outputs):
        if output.kind == "memory" and output.index == index and output.edge is not None:
            return functools.partial(base_at, place)
    return unfindable


def base_at(place: int, results: list[Any], given: list[Any]) -> torch.Tensor:
    base = base_of(results[place])
    assert base is not None
    return base


def shape_changes(joint: JointGraph, index: int) -> int:
    """How many changes of a tensor's shape in place autograd recorded."""
    path = joint.functional.view_of(joint.memories[index].storage.first).path()
    return sum(view.step is not None and view.step.differentiable for view in path)


def edge_before(tensor: torch.Tensor, changes: int) -> Edge:
    """A tensor's place in autograd's graph before its shape was changed."""
    edge = edge_of(tensor)
    assert edge is not None
    for _ in range(changes):
        edge = edge[0].next_functions[0]
        assert edge is not None
    return edge


def edges_with_numbers(values: list[Any], indices: Sequence[int]) -> list[tuple[Edge, int]]:
    """The edges of the values at these indices, without those that have none."""
    edges = [(edge_of(values[index]), index) for index in indices]
    return [(edge, index) for edge, index in edges if edge is not None]


def unfindable(results: list[Any], given: list[Any]) -> torch.Tensor:
    raise RuntimeError("Kiln cannot differentiate this compiled function twice: a tensor inside is out of reach.")
