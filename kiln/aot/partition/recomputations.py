"""Other ways to compute again what nodes gave: from what is saved anyway, or from the generator's state.

A normalization is a reduction to a few statistics, which are saved as in eager, and then one pass over elements: only
that is done again.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from ...program.graph_meta import normalizes_by_formula
from .joint_nodes import Emit, JointGraph, Recipe
from .random_replay import capture_state, replay
from .recompute_cost import Kind, named_arguments

aten = torch.ops.aten
Node = torch.fx.Node
Parts = dict[int, Node]  # the results of a node that somebody reads


def add_recipes(joint: JointGraph) -> None:
    for node in joint.nodes:
        rule = RULES.get(getattr(node.target, "_opname", ""))
        if (
            rule is None
            or node in joint.in_backward
            or (rule is normalization and not normalizes_by_formula(joint.module))
        ):
            continue
        parts: Any = {user.args[1]: user for user in node.users if joint.kinds[user] is Kind.PART}
        recipe = rule(node, parts, named_arguments(node)) if 0 in parts else None
        if recipe is not None:
            joint.recipes[parts[0]] = recipe


def dropout(node: Node, parts: Parts, given: dict[str, Any]) -> Recipe | None:
    """The result of a dropout is its input where its mask says so, scaled: it can be had again without drawing."""
    probability = given["p"]
    if 1 not in parts or not isinstance(probability, float) or given["train"] is False:
        return None
    scale = 0.0 if probability == 1 else 1 / (1 - probability)
    return Recipe(aten.native_dropout_backward.default, (given["input"], parts[1], scale), {})


def normalization(node: Node, parts: Parts, given: dict[str, Any]) -> Recipe | None:
    """What comes after the result are the statistics: mean and inverse deviation, or only the latter."""
    places = [place for place in (1, 2) if place < len(node.meta["val"])]
    data = given["input"]
    if any(place not in parts for place in places) or not given.get("training", True):
        return None
    if not lies_as(data.meta["val"], parts[0].meta["val"]):
        return None
    axes = 0 if "normalized_shape" in given else data.meta["val"].dim() - 2
    statistics = tuple(parts[place] for place in places)
    keywords = {"weight": given.get("weight"), "bias": given.get("bias"), "axes": axes}
    return Recipe(normalized, (data, *statistics), keywords, statistics)


def lies_as(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype is other.dtype and list(map(str, one.stride())) == list(map(str, other.stride()))


def normalized(emit: Emit, data: Node, *statistics: Node, weight: Node | None, bias: Node | None, axes: int) -> Node:
    """As lowered code computes it, bit for bit; values of channels are followed by so many axes."""
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


RULES = {
    "native_dropout": dropout,
    "native_layer_norm": normalization,
    "_fused_rms_norm": normalization,
    "native_batch_norm": normalization,
    "_native_batch_norm_legit": normalization,
    "_native_batch_norm_legit_functional": normalization,
    "_batch_norm_with_update_functional": normalization,
}


def add_replay(joint: JointGraph, node: Node) -> Node:
    """Let a random node of the forward run again from the generator's state; gives the node that takes the state."""
    state = capture_state(node)
    state.meta["state_of"] = node.name
    joint.recipes[node] = Recipe(replay, (state, node.target, *node.args), dict(node.kwargs))
    joint.kinds[state] = Kind.EFFECT
    joint.nodes.insert(joint.nodes.index(node), state)
    joint.order = {known: index for index, known in enumerate([*joint.primals, *joint.nodes])}
    return state
