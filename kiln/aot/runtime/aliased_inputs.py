"""Aliased inputs: programs that change inputs which share memory, compiled as programs over that memory.

A graph over ``x`` and ``y`` that are parts of one tensor becomes a graph over that tensor, in which ``x`` and ``y`` are
views of it; a write to one is then seen in the other, by the rules for all views. The real ``x`` and ``y`` are passed
too, and returned where they are results. Which inputs share memory, and how, is known only in a call: so there is a
compiled variant for each way of aliasing that comes up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from ...platform.light_dataclass import dataclass
from ...platform.locks import new_lock
from ...platform.torch_tensors import base_of
from ...program.graph_meta import forget_input_state
from ...program.graph_modules import output_values, placeholders
from ...program.unsupported import Unsupported
from ..trace.functional_graph import storage_key

VARIANTS = 8  # more ways of aliasing than this run in eager
# Views that torch refuses to change in place are left to eager, which raises.
SEVERAL = ("Unbind", "Split", "Chunk", "UnsafeSplit", "Backward")


@dataclass(frozen=True)
class AliasGroup:
    """Inputs that are views of one tensor, which may be one of them."""

    base: torch.Tensor
    members: tuple[int, ...]


class AliasVariants:
    """A program whose inputs share memory, compiled for each way of aliasing that comes up."""

    def __init__(self, program: torch.fx.GraphModule, compile_program: Callable[..., Callable[..., list[Any]]]) -> None:
        self.program, self.compile_program = program, compile_program
        self.result_count = len(output_values(program))
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

    def compile(self, inputs: Sequence[Any], groups: list[AliasGroup]) -> Callable[..., list[Any]] | None:
        module = over_bases(self.program, inputs, groups)
        try:
            return self.compile_program(module, [*[group.base for group in groups], *inputs], groups)
        except Unsupported:
            return None


def groups_of(inputs: Sequence[Any]) -> list[AliasGroup]:
    """The inputs that share memory, each group with a tensor that they are views of."""
    by_storage: dict[int, list[int]] = {}
    for index, value in enumerate(inputs):
        if isinstance(value, torch.Tensor):
            by_storage.setdefault(storage_key(value), []).append(index)
    return [group_of(inputs, members) for members in by_storage.values() if len(members) > 1]


def group_of(inputs: Sequence[Any], members: list[int]) -> AliasGroup:
    tensors = [inputs[index] for index in members]
    bases = [tensor if (base := base_of(tensor)) is None else base for tensor in tensors]
    base = bases[0] if all(each is bases[0] for each in bases) else whole_memory(tensors)
    if base.requires_grad and torch.is_grad_enabled():
        raise Unsupported("inputs that share memory and require grad: a second run would not know them as one")
    for tensor in tensors:
        fits = tensor.dtype == base.dtype and tensor.requires_grad == base.requires_grad and not tensor.is_conj()
        if not fits or tensor.is_neg() or (tensor is not base and not may_change(tensor)):
            raise Unsupported("inputs that share memory in a way that views of one tensor do not")
    if base.storage_offset() != 0 or not base.is_contiguous():
        raise Unsupported("inputs that share memory with gaps")
    return AliasGroup(base, tuple(members))


def whole_memory(tensors: list[torch.Tensor]) -> torch.Tensor:
    """The whole memory of tensors that autograd does not know to be related."""
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


def key_of(inputs: Sequence[Any], groups: list[AliasGroup]) -> Any:
    """What a variant is compiled for."""
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    shapes = tuple([(tuple(t.shape), t.stride(), t.storage_offset(), t.requires_grad, t.is_leaf) for t in tensors])
    bases = tuple([(tuple(group.base.shape), group.members, index_of(inputs, group.base)) for group in groups])
    numbers = tuple([(type(value), value) for value in inputs if isinstance(value, (int, float))])
    return shapes, bases, numbers


def index_of(inputs: Sequence[Any], tensor: torch.Tensor) -> int:
    return next((index for index, value in enumerate(inputs) if value is tensor), -1)


def over_bases(program: torch.fx.GraphModule, inputs: Sequence[Any], groups: list[AliasGroup]) -> torch.fx.GraphModule:
    """The graph with the bases as its first inputs, and views of them in place of the inputs that share memory."""
    graph = torch.fx.Graph()
    bases = [graph.placeholder(f"base_{number}") for number in range(len(groups))]
    made: dict[torch.fx.Node, torch.fx.Node] = {}
    inputs_of_graph = placeholders(program)
    for node in inputs_of_graph:
        made[node] = graph.node_copy(node, made.__getitem__)
        forget_input_state(made[node])
    for base, group in zip(bases, groups, strict=True):
        for index in group.members:
            tensor = inputs[index]
            if tensor is group.base:
                made[inputs_of_graph[index]] = base
                continue
            layout = (list(tensor.shape), list(tensor.stride()), tensor.storage_offset())
            made[inputs_of_graph[index]] = graph.call_function(torch.as_strided, (base, *layout))
    members = [made[inputs_of_graph[index]] for group in groups for index in group.members]
    for node in program.graph.nodes:
        if node.op == "output":
            results = torch.fx.node.map_arg(node.args[0], made.__getitem__)
            graph.output((*results, *members))
        elif node.op != "placeholder":
            made[node] = graph.node_copy(node, made.__getitem__)
    return torch.fx.GraphModule(program, graph, "OverBases")
