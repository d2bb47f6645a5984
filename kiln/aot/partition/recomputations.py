"""Cheaper ways to compute values again: from statistics or masks that are saved anyway, or from a generator's state.

A normalization is a reduction to a few statistics, which are saved as in eager, and then one pass over elements: only
the latter is computed again.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from ...program.graph_meta import normalizes_by_formula
from ...program.operators.operator_table import find_operator, operator_of
from .graph_writers import Emit
from .joint_nodes import JointNodes, Recomputation
from .node_values import Node, named_arguments
from .random_replay import capture_state, replay
from .recompute_cost import CostClass

aten = torch.ops.aten
Parts = dict[int, Node]  # the results of a node that are read


def add_recomputations(joint: JointNodes) -> None:
    by_formula = normalizes_by_formula(joint.module)
    for node in joint.nodes:
        called = find_operator(node.target)
        rule = called.recomputation if called is not None else None
        if rule is None or node in joint.in_backward or (rule is normalization and not by_formula):
            continue
        parts: Any = {user.args[1]: user for user in node.users if joint.costs[user] is CostClass.PART}
        found = rule(node, parts, named_arguments(node)) if 0 in parts else None
        if found is not None:
            joint.recomputations[parts[0]] = found


def dropout(node: Node, parts: Parts, given: dict[str, Any]) -> Recomputation | None:
    """The result of a dropout is its input where the mask is set, scaled: no numbers are drawn again."""
    probability = given["p"]
    if 1 not in parts or not isinstance(probability, float) or given["train"] is False:
        return None
    scale = 0.0 if probability == 1 else 1 / (1 - probability)
    return Recomputation(aten.native_dropout_backward.default, (given["input"], parts[1], scale), {})


def normalization(node: Node, parts: Parts, given: dict[str, Any]) -> Recomputation | None:
    """What comes after the result are the statistics: mean and inverse deviation, or only the latter."""
    places = [place for place in (1, 2) if place < len(node.meta["val"])]
    data = given["input"]
    if any(place not in parts for place in places) or not given.get("training", True):
        return None
    if not has_same_layout(data.meta["val"], parts[0].meta["val"]):
        return None
    axes = 0 if "normalized_shape" in given else data.meta["val"].dim() - 2
    statistics = tuple(parts[place] for place in places)
    keywords = {"weight": given.get("weight"), "bias": given.get("bias"), "axes": axes}
    return Recomputation(normalized, (data, *statistics), keywords, statistics)


def has_same_layout(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype is other.dtype and list(map(str, one.stride())) == list(map(str, other.stride()))


def normalized(emit: Emit, data: Node, *statistics: Node, weight: Node | None, bias: Node | None, axes: int) -> Node:
    """The formula that lowered code computes, bit for bit; statistics of channels are followed by so many axes."""
    dtype = data.meta["val"].dtype
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype

    def cast(value: Node, dtype: torch.dtype) -> Node:
        return value if value.meta["val"].dtype is dtype else emit(aten._to_copy.default, value, dtype=dtype)

    def over(value: Node) -> Node:
        value = cast(value, wide)
        for _ in range(axes):
            value = emit(aten.unsqueeze.default, value, -1)
        return value

    result = cast(data, wide)
    if len(statistics) == 2:
        result = emit(aten.sub.Tensor, result, over(statistics[0]))
    result = emit(aten.mul.Tensor, result, over(statistics[-1]))
    if weight is not None:
        result = emit(aten.mul.Tensor, result, over(weight))
    if bias is not None:
        result = emit(aten.add.Tensor, result, over(bias))
    return cast(result, dtype)


operator_of(aten.native_dropout.default).recomputation = dropout
for _overload in (
    aten.native_layer_norm.default,
    aten._fused_rms_norm.default,
    aten.native_batch_norm.default,
    aten._native_batch_norm_legit.default,
    aten._native_batch_norm_legit.no_stats,
    aten._native_batch_norm_legit_functional.default,
    aten._batch_norm_with_update_functional.default,
):
    operator_of(_overload).recomputation = normalization


def add_replay(joint: JointNodes, node: Node) -> Node:
    """Let a random node of the forward run again from the generator's state; gives the node that takes the state."""
    state = capture_state(node)
    joint.states[state] = node
    joint.recomputations[node] = Recomputation(replay, (state, node.target, *node.args), dict(node.kwargs))
    joint.costs[state] = CostClass.EFFECT
    joint.nodes.insert(joint.nodes.index(node), state)
    joint.order = {known: index for index, known in enumerate([*joint.primals, *joint.nodes])}
    return state
