"""Partitioners: a joint graph of a forward and its backward, cut in two.

``default_partition`` saves what the backward was recorded to read, as eager does. ``min_cut_partition`` saves as few
bytes as it can: it computes again, in the backward, what takes one or a few passes over memory (pointwise chains,
normalisations), and never what is expensive, random, or has effects.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from .graph_cleanup import clean_up
from .graph_writers import build_backward, build_forward, plan_backward
from .joint_nodes import JointNodes
from .min_cut import MinCut
from .node_values import Node, is_tensor
from .recomputations import add_recomputations, add_replay
from .recompute_cost import CostClass, root_of
from .saved_values import Form, Saved, key_of

Modules = tuple[torch.fx.GraphModule, torch.fx.GraphModule]


def default_partition(
    joint_module: torch.fx.GraphModule, joint_inputs: Sequence[Any], *, num_fwd_outputs: int, **unused: Any
) -> Modules:
    """Save what the backward reads of the forward."""
    joint = JointNodes(clean_up(joint_module), num_fwd_outputs)
    nodes = merge_views(joint.read_in_backward())
    copied = {node for node in nodes if root_of(node).name in joint.mutated}
    return finish(joint, [Saved(node, Form.COPY if node in copied else Form.PLAIN) for node in nodes])


def min_cut_partition(
    joint_module: torch.fx.GraphModule,
    joint_inputs: Sequence[Any],
    *,
    num_fwd_outputs: int,
    recompute_random: bool = False,
    **unused: Any,
) -> Modules:
    """Save as little as possible; with `recompute_random`, states of generators rather than random numbers."""
    joint = JointNodes(clean_up(joint_module), num_fwd_outputs)
    add_recomputations(joint)
    random = [node for node in joint.nodes if joint.costs[node] is CostClass.RANDOM and node not in joint.in_backward]
    states = {add_replay(joint, node) for node in random} if recompute_random else set()
    saved = merge_equal(joint, MinCut(joint, joint_inputs).choose())
    kept = {one.node for one in saved}
    joint.nodes = [node for node in joint.nodes if node not in states or node in kept]
    return finish(joint, saved)


def finish(joint: JointNodes, saved: list[Saved]) -> Modules:
    plan = plan_backward(joint, saved, [], is_fixed=False)
    placeholders = [(one.node.name, one) for one in (*map(Saved, plan.numbers), *plan.saved)]
    return build_forward(joint, plan), build_backward(joint, plan, placeholders)


def merge_views(nodes: list[Node]) -> list[Node]:
    """Instead of several views of one memory, that memory: it takes no more, and views are free. Inputs always."""
    readers: dict[Node, int] = {}
    for node in nodes:
        readers[root_of(node)] = readers.get(root_of(node), 0) + 1
    merged: dict[Node, None] = {}
    for node in nodes:
        root = root_of(node)
        merged[root if is_tensor(root) and (readers[root] > 1 or root.op == "placeholder") else node] = None
    return list(merged)


def merge_equal(joint: JointNodes, saved: list[Saved]) -> list[Saved]:
    """Values moved to the forward that the backward recorded several times are saved once."""
    merged: dict[str, Saved] = {}
    for one in sorted(saved, key=lambda one: joint.order[one.node]):
        first = merged.setdefault(key_of(one, joint), one)
        if first is not one:
            joint.replace(one.node, first.node)
    return list(merged.values())
