"""Other ways to compute again what random nodes gave: from what is saved anyway, or from the generator's state."""

from __future__ import annotations

import torch
import torch.fx

from .halves import JointGraph, Recipe
from .kinds import Kind
from .random import capture_state, replay

aten = torch.ops.aten
Node = torch.fx.Node


def add_recipes(joint: JointGraph) -> None:
    """The result of a dropout is its input where its mask says so, scaled: it can be had again without drawing."""
    for node in joint.nodes:
        if node.target is not aten.native_dropout.default or node in joint.in_backward:
            continue
        tensor, probability, is_training = node.args
        parts = {user.args[1]: user for user in node.users if joint.kinds[user] is Kind.PART}
        if len(parts) == 2 and isinstance(probability, float) and is_training is not False:
            scale = 0.0 if probability == 1 else 1 / (1 - probability)
            joint.recipes[parts[0]] = Recipe(aten.native_dropout_backward.default, (tensor, parts[1], scale), {})


def add_replay(joint: JointGraph, node: Node) -> Node:
    """Let a random node of the forward run again from the generator's state; gives the node that takes the state."""
    state = capture_state(node)
    state.meta["state_of"] = node.name
    joint.recipes[node] = Recipe(replay, (state, node.target, *node.args), dict(node.kwargs))
    joint.kinds[state] = Kind.EFFECT
    joint.nodes.insert(joint.nodes.index(node), state)
    joint.order = {known: index for index, known in enumerate([*joint.primals, *joint.nodes])}
    return state
