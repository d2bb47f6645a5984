"""Inputs that share memory, some of which the program changes: compiled as a program over the memory they share.

A graph over ``x`` and ``y`` that are parts of one tensor becomes a graph over that tensor, in which ``x`` and ``y`` are
views of it; what is written to one is then seen in the other, by the rules that hold for all views. The real ``x`` and
``y`` come along unread, to be given back where they are results. Which inputs share memory, and how, is only known in a
call: so this is compiled for each way of sharing, when it comes up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from ...platform.locks import new_lock
from ...program.graph_meta import forget_input_state
from ...program.unsupported import Unsupported

VARIANTS = 8  # more ways of sharing than this run in eager
# Views that torch refuses to change in place are left to eager, which says so.
SEVERAL = ("Unbind", "Split", "Chunk", "UnsafeSplit", "Backward")


@dataclass(frozen=True)
class Group:
    """Inputs that look at one tensor, which may be one of them."""

    base: torch.Tensor
    members: tuple[int, ...]


class Sharing:
    """A program for inputs that share memory in some way, compiled for each way that comes up."""

    def __init__(self, program: Any, compile_program: Callable[..., Callable[..., list[Any]]]) -> None:
        self.program, self.compile_program = program, compile_program
        self.result_count = len(results_of(program))
        self.variants: dict[Any, Callable[..., list[Any]] | None] = {}
        self.lock = new_lock()

    def run(self, *inputs: Any) -> Any:
        try:
            groups = groups_of(inputs)
        except Unsupported:
            return self.eager(*inputs)
        key = key_of(inputs, groups)
        if key not in self.variants:
            with self.lock:
                if key not in self.variants:
                    self.variants[key] = self.compile(inputs, groups) if len(self.variants) < VARIANTS else None
        variant = self.variants[key]
        if variant is None:
            return self.eager(*inputs)
        return variant(*[group.base for group in groups], *inputs)[: self.result_count]

    def eager(self, *inputs: Any) -> Any:
        return self.program.forward(*inputs)

    def compile(self, inputs: Sequence[Any], groups: list[Group]) -> Callable[..., list[Any]] | None:
        module = over_bases(self.program, inputs, groups)
        try:
            return self.compile_program(module, [*[group.base for group in groups], *inputs], groups)
        except Unsupported:
            return None


def groups_of(inputs: Sequence[Any]) -> list[Group]:
    """The inputs that share memory, each group with a tensor that they are views of."""
    by_storage: dict[int, list[int]] = {}
    for index, value in enumerate(inputs):
        if isinstance(value, torch.Tensor):
            by_storage.setdefault(value.untyped_storage()._cdata, []).append(index)
    return [group_of(inputs, members) for members in by_storage.values() if len(members) > 1]


def group_of(inputs: Sequence[Any], members: list[int]) -> Group:
    tensors = [inputs[index] for index in members]
    bases = {id(tensor if tensor._base is None else tensor._base) for tensor in tensors}
    base = tensors[0] if tensors[0]._base is None else tensors[0]._base
    if len(bases) > 1:
        base = whole_memory(tensors)
    if base.requires_grad and torch.is_grad_enabled():
        raise Unsupported("inputs that share memory and require grad: a second run would not know them as one")
    for tensor in tensors:
        fits = tensor.dtype == base.dtype and tensor.requires_grad == base.requires_grad and not tensor.is_conj()
        if not fits or tensor.is_neg() or (tensor is not base and not may_change(tensor)):
            raise Unsupported("inputs that share memory in a way that views of one tensor do not")
    if base.storage_offset() != 0 or not base.is_contiguous():
        raise Unsupported("inputs that share memory with gaps")
    return Group(base, tuple(members))


def whole_memory(tensors: list[torch.Tensor]) -> torch.Tensor:
    """All of the memory of tensors that autograd does not know to be related."""
    first = tensors[0]
    if any(tensor.requires_grad for tensor in tensors):
        raise Unsupported("inputs that share memory unknown to autograd")
    count = first.untyped_storage().nbytes() // first.element_size()
    return first.detach().as_strided((count,), (1,), 0)


def may_change(tensor: torch.Tensor) -> bool:
    """Whether a view may be changed in place, as far as autograd is concerned."""
    if tensor.grad_fn is None:
        return True
    name = tensor.grad_fn.name()
    return name.endswith("Backward0") and name.removesuffix("Backward0") not in SEVERAL


def key_of(inputs: Sequence[Any], groups: list[Group]) -> Any:
    """What a variant is compiled for."""
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    shapes = tuple([(tuple(t.shape), t.stride(), t.storage_offset(), t.requires_grad, t.is_leaf) for t in tensors])
    bases = tuple([(tuple(group.base.shape), group.members, index_of(inputs, group.base)) for group in groups])
    numbers = tuple([(type(value), value) for value in inputs if isinstance(value, (int, float))])
    return shapes, bases, numbers


def index_of(inputs: Sequence[Any], tensor: torch.Tensor) -> int:
    return next((index for index, value in enumerate(inputs) if value is tensor), -1)


def over_bases(program: torch.fx.GraphModule, inputs: Sequence[Any], groups: list[Group]) -> torch.fx.GraphModule:
    """The graph with the bases as its first inputs, and views of them in place of the inputs that share memory."""
    graph = torch.fx.Graph()
    bases = [graph.placeholder(f"base_{number}") for number in range(len(groups))]
    made: dict[torch.fx.Node, torch.fx.Node] = {}
    placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
    for node in placeholders:
        made[node] = graph.node_copy(node, made.__getitem__)
        forget_input_state(made[node])
    for base, group in zip(bases, groups, strict=True):
        for index in group.members:
            tensor = inputs[index]
            if tensor is group.base:
                made[placeholders[index]] = base
                continue
            layout = (list(tensor.shape), list(tensor.stride()), tensor.storage_offset())
            made[placeholders[index]] = graph.call_function(torch.as_strided, (base, *layout))
    members = [made[placeholders[index]] for group in groups for index in group.members]
    for node in program.graph.nodes:
        if node.op == "output":
            results = torch.fx.node.map_arg(node.args[0], made.__getitem__)
            graph.output((*results, *members))
        elif node.op != "placeholder":
            made[node] = graph.node_copy(node, made.__getitem__)
    return torch.fx.GraphModule(program, graph, "OverBases")


def results_of(program: torch.fx.GraphModule) -> Sequence[Any]:
    return next(node for node in reversed(program.graph.nodes) if node.op == "output").args[0]  # type: ignore[return-value]
