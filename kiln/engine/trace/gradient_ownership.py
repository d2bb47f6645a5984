"""Ownership of gradients: which accumulations may keep the memory of the gradient, instead of copying it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from ... import operator_functions as operator
from ...platform.torch_operators import OpOverload
from ...platform.torch_tensors import storage_address
from ...program import accumulation
from ..calls import checks, hook_calls, opaque_calls
from ..walk.refusal import Refused
from . import address_use
from .node_meta import NOWHERE, origin_of, value_of

if TYPE_CHECKING:
    from ..._native import Walk


def mark_gradients_to_take_over(graph: torch.fx.Graph, walk: Walk) -> None:
    """Set the flag of each accumulation that says whether the leaf may keep the gradient's memory.

    It may not if the memory is an input's, if Python code has seen it and may keep it, or if something uses it later.
    Hooks after the accumulation see the memory of ``.grad``, as in eager.
    """
    calls = walk.calls
    accumulations = {call_of(node) for node in graph.nodes if node.target in GRADIENT_PLACES}
    watched: set[int] = set()  # calls of leaves with hooks after the accumulation
    foreign: set[int] = set()
    of_inputs: set[int | None] = set()
    last_use: dict[int, torch.fx.Node] = {}
    for node in graph.nodes:
        if is_after(node) and call_of(node) in accumulations:
            watched.add(call_of(node))
            continue
        memories = {memory for one in used_by(node) if (memory := memory_of(one)) is not None}
        if node.target not in CHECKS:
            last_use.update(dict.fromkeys(memories, node))
        if is_foreign(node):
            own = memory_of(node)
            foreign |= memories | ({own} if own is not None else set())
        if node.target is operator.getitem and node.args[0].op == "placeholder":
            of_inputs.add(memory_of(node))
    for node in graph.nodes:
        place = GRADIENT_PLACES.get(node.target, 0)
        if place and isinstance(node.args[place], torch.fx.Node):
            memory = memory_of(node.args[place])
            is_last = memory is not None and last_use[memory] is node
            number = call_of(node)
            if is_last and memory in foreign - of_inputs and not calls[number].has_grad:
                if number in watched:
                    raise Refused("hooks after the accumulation of a gradient that Python code may have kept")
                if address_use.keep_addresses(walk.hooks()):
                    raise Refused("Python code notes addresses, and the gradient of a leaf may be at one of them")
            node.update_arg(place + 1, is_last and memory not in foreign)


def used_by(node: torch.fx.Node) -> Sequence[torch.fx.Node]:
    """The nodes whose values a call uses, without pending gradients."""
    if node.target not in opaque_calls.ALL:
        return node.all_input_nodes
    used: list[torch.fx.Node] = []
    torch.fx.node.map_arg([*node.args[: opaque_calls.PENDING], *node.args[opaque_calls.PENDING + 1 :]], used.append)
    return used


def is_after(node: torch.fx.Node) -> bool:
    """Whether the call is one of hooks after a node."""
    if node.target is opaque_calls.hooks:
        return "call_post_hook" in node.args
    return node.target is hook_calls.call_post_hook


def is_foreign(node: torch.fx.Node) -> bool:
    """Whether Python code may keep the arguments or results of the call."""
    if node.op != "call_function" or node.target in KEEPS_NOTHING:
        return False
    if node.target is operator.getitem:
        owner: Any = node.args[0]
        return not isinstance(owner.target, OpOverload) or has_twin(owner, node)
    return not isinstance(node.target, OpOverload)


def has_twin(owner: torch.fx.Node, item: torch.fx.Node) -> bool:
    """Whether an operator returns another tensor of the same shape: recurrent layers return one tensor twice."""
    value, results = value_of(item), value_of(owner)
    if not isinstance(value, torch.Tensor) or owner.target in SEPARATE:
        return False
    alike = [one for one in results if isinstance(one, torch.Tensor) and one.shape == value.shape]
    return len(alike) > 1


SEPARATE: set[Any] = {  # operators that allocate memory for each result
    torch.ops.aten.native_layer_norm_backward.default,
    torch.ops.aten.native_batch_norm_backward.default,
    torch.ops.aten.native_group_norm_backward.default,
}
GRADIENT_PLACES: dict[Any, int] = {  # accumulations: which argument is accumulated
    accumulation.accumulate_grad_: 1,
    opaque_calls.accumulate: 4,
}
CHECKS: set[Any] = {
    checks.check_hooks,
    checks.check_hooks_after,
    checks.check_pattern,
    opaque_calls.check_hooks,
    opaque_calls.check_hooks_after,
}
KEEPS_NOTHING: set[Any] = {*GRADIENT_PLACES, *CHECKS}


def memory_of(node: torch.fx.Node) -> int | None:
    value = value_of(node)
    return storage_address(value) if isinstance(value, torch.Tensor) else None


def call_of(node: torch.fx.Node) -> int:
    return (origin_of(node) or NOWHERE).call
