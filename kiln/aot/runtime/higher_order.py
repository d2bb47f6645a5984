"""A backward by running the program again: for derivatives of any order, and for what cannot be compiled.

The node of a compiled graph holds the graph's inputs. With ``create_graph=True`` the program runs on them once more,
with autograd on, and torch differentiates that: second and third derivatives are eager's own, hooks included.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import GradientEdge

from ... import _native
from ..._native import GlobalState
from ...program.hook_slots import HookSlot
from ...program.shared_hooks import on_behalf
from ..trace.backward_stages import Edge, Source, Stage, build_stages, edge_of, follow
from ..trace.hook_calls import run_all
from ..trace.joint_tracer import Joint


@dataclass(frozen=True)
class CallContext:
    """What belongs to one call of a compiled graph, besides tensors."""

    hooks: Sequence[Any] = ()  # by registration; None for those that are outside
    random_states: Sequence[tuple[torch.Generator, torch.Tensor]] = ()  # as they were before
    numbers: Sequence[Any] = ()  # saved sizes


class Inside(HookSlot):
    """Stands for a hook when the program runs again: calls what was registered in the call at hand."""

    __slots__ = ("hooks",)

    def __init__(self, hooks: Any) -> None:
        super().__init__()
        self.hooks = hooks

    def __call__(self, *gradients: Any) -> Any:
        if len(gradients) == 1 and isinstance(gradients[0], torch.Tensor):
            return run_all(self.hooks, gradients[0]) if self.hooks else None
        result = None
        for hook in list((self.hooks or {}).values()):
            given = hook(*gradients)
            if given is not None:
                result, gradients = given, (given, *gradients[1:])
        return result


class Rerun:
    """Runs a program again and differentiates it."""

    def __init__(self, program: Callable[..., Any], joint: Joint, state: GlobalState) -> None:
        self.program, self.state = program, state
        self.changed = {memory.input for memory in joint.memories if memory.input is not None}
        self.changed |= set(joint.metadata)
        self.registrations = {r.slot: (r.number, r.place is None) for r in joint.registrations if r.slot is not None}
        self.roots = [(index, finder(joint, index)) for index, m in enumerate(joint.memories) if m.edge is not None]
        self.shape_changes = [shape_changes(joint, index) for index, _ in self.roots]
        self.reshaped = [index for index, moved in enumerate(joint.moved) if moved]
        self.hooked = joint.hooked
        self.seen = [index for index, output in enumerate(joint.outputs) if output.edge is not None]

    def __call__(
        self, number: int, defined: int, needed: int, inputs: list[Any], gradients: list[Any], context: CallContext
    ) -> list[Any]:
        create_graph = torch.is_grad_enabled()
        linked = [value[0].detach().clone() if isinstance(value, tuple) else value for value in inputs]
        with self.as_before(context):
            results, given, edges = self.run(linked, context)
        tensors = [find(results, given) for _, find in self.roots]
        roots = [
            (edge_before(tensor, changes), index)
            for tensor, changes, (index, _) in zip(tensors, self.shape_changes, self.roots, strict=True)
        ]
        seen = [(edge_of(results[index]), index) for index in self.seen]
        reshaped = [(edge_of(given[index]), index) for index in self.reshaped]
        nodes = [edge[0] for edge, _ in roots]  # type: ignore[index]
        hooked = [(follow(nodes, path), number) for path, number in self.hooked]
        stages = build_stages(edges, roots, seen, tensors, reshaped, hooked)  # type: ignore[arg-type]
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
        if create_graph:  # what an operation saved of its own result leads to the tensor that the caller has
            _native.lead_to_running(list(found), [(*root.edge, place) for place, root in enumerate(stage.roots)])
        given_out = iter(found)
        return [next(given_out) if needed >> i & 1 else None for i in range(len(stage.sources))]

    def link(
        self, stage: Stage, results: list[Any], given: list[Any], tensors: list[torch.Tensor]
    ) -> list[tuple[Source, torch.Tensor]]:
        """What this stage has from tensors that the caller sees is linked to those, which may be differentiated by."""
        by_memory = {index: tensor for tensor, (index, _) in zip(tensors, self.roots, strict=True)}
        places: dict[str, Any] = {"memory": by_memory, "output": results, "reshaped": given}
        links = []
        for number, source in enumerate(stage.sources):
            tensor = places[source.kind][source.index] if source.kind in places else None
            if tensor is not None and edge_of(tensor) == source.place:  # what has got another shape is out of reach
                _native.link_tensor(tensor, number)
                links.append((source, tensor))
        return links

    def run(self, linked: list[Any], context: CallContext) -> tuple[list[Any], list[Any], dict[Any, int]]:
        """Gives the results, the inputs as they are then, and their places in autograd's graph before."""
        given = list(linked)
        for index in self.changed:
            given[index] = given[index].clone()
        for slot, (number, inside) in self.registrations.items():
            given[slot] = Inside(context.hooks[number] if inside else {})
        edges = {edge: index for index, edge in enumerate(map(edge_of, given)) if edge is not None}
        results = self.program(*given)
        return list(results) if isinstance(results, (list, tuple)) else [results], given, edges

    @contextlib.contextmanager
    def as_before(self, context: CallContext) -> Iterator[None]:
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


def finder(joint: Joint, index: int) -> Callable[[list[Any], list[Any]], torch.Tensor]:
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
            return lambda results, given: results[place]._base
    return unfindable


def shape_changes(joint: Joint, index: int) -> int:
    """How often autograd was told that the shape of a tensor changed in place."""
    path = joint.functional.view_of(joint.memories[index].storage.first).path()
    return sum(view.step is not None and view.step.differentiable for view in path)


def edge_before(tensor: torch.Tensor, changes: int) -> Edge | None:
    """A tensor's place in autograd's graph before its shape was changed."""
    edge = edge_of(tensor)
    for _ in range(changes):
        assert edge is not None
        edge = edge[0].next_functions[0]
    return edge


def unfindable(results: list[Any], given: list[Any]) -> torch.Tensor:
    raise RuntimeError("Kiln cannot differentiate this compiled function twice: a tensor inside is out of reach.")
