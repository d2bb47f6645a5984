"""More backwards for a forward that is there already: other gradients from the same saved values, or one in stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from ...program.graph_modules import graph_module
from .graph_cleanup import clean_up
from .joint_nodes import (
    BITS,
    COPY,
    PLAIN,
    SAVED_NAMES,
    STATE,
    CannotExtract,
    JointGraph,
    LateWriter,
    Saved,
    ancestors,
    build_backward,
    dependents,
    expression_text,
    nodes_in,
    output_values,
    plan_backward,
)
from .recomputations import add_recipes, add_replay
from .recompute_cost import has_effect, is_tensor

Node = torch.fx.Node


def saved_names(forward_module: torch.fx.GraphModule, num_fwd_outputs: int) -> tuple[str, ...]:
    """What a forward saves, as `extract_backward` takes it; of anybody's partitioner."""
    if SAVED_NAMES in forward_module.meta:
        return tuple(forward_module.meta[SAVED_NAMES])
    return tuple([node.name for node in output_values(forward_module)[num_fwd_outputs:]])


def extract_backward(
    joint_module: torch.fx.GraphModule, saved_names: Sequence[str], num_fwd_outputs: int
) -> torch.fx.GraphModule:
    """Another backward for a forward that is there already: from exactly the values that it saves, in its order.

    The joint graph has the same forward (names included) and another backward. What is not saved is computed again
    where that is allowed at all, else `CannotExtract` is raised.
    """
    joint = JointGraph(clean_up(joint_module), num_fwd_outputs)
    add_recipes(joint)
    by_key = keys_of(joint, saved_names)
    entries: list[tuple[str, Saved | None]] = []
    for key in saved_names:
        saved = by_key.get(key)
        entries.append((saved.node.name if saved else f"unused_{len(entries)}", saved))
    entries.sort(key=lambda entry: entry[1] is None or is_tensor(entry[1].node))  # numbers first
    there = [saved for _, saved in entries if saved is not None]
    numbers = [saved.node for saved in there if not is_tensor(saved.node)]
    plan = plan_backward(joint, [saved for saved in there if is_tensor(saved.node)], numbers, is_fixed=True)
    return build_backward(joint, plan, entries)


def keys_of(joint: JointGraph, keys: Sequence[str]) -> dict[str, Saved]:
    """What these keys (`halves.key_of`) mean in a joint graph; not all need be there."""
    known: dict[Node, str] = {}
    wanted = {key.removeprefix(f"{COPY}(")[:-1] if key.startswith(f"{COPY}(") else key for key in keys}
    by_text: dict[str, Node] = {}
    for node in [*joint.primals, *joint.nodes]:
        first = by_text.setdefault(expression_text(node, joint, known), node)
        if first is not node and known[node] in wanted:
            joint.replace(node, first)  # the forward computes it once for all of them
    found = {}
    for key in keys:
        form, _, inner = key.partition("(")
        named = by_text.get(inner[:-1] if form in (BITS, COPY, STATE) else key)
        if named is not None:
            named = add_replay(joint, named) if form == STATE else named
            found[key] = Saved(named, form if form in (BITS, COPY) else PLAIN)
    return found


@dataclass(frozen=True)
class Stage:
    """A part of a backward: its module, and which of the backward's saved inputs it takes, before its tangents."""

    module: torch.fx.GraphModule
    saved: tuple[int, ...]


def split_stages(
    backward_module: torch.fx.GraphModule, groups: Sequence[tuple[Sequence[str], Sequence[int]]]
) -> list[Stage]:
    """One module for each group of incoming gradients (by name) and the gradients (by position) computed from them.

    A node with effects goes with the incoming gradients it reads, or else with the first group that needs it.
    """
    nodes = list(backward_module.graph.nodes)
    by_name = {node.name: node for node in nodes if node.op == "placeholder"}
    tangent_names = {name for names, _ in groups for name in names}
    saved = [node for node in by_name.values() if node.name not in tangent_names]
    gradients = output_values(backward_module)
    reached = [dependents([by_name[name] for name in names]) for names, _ in groups]
    effects = [node for node in nodes if node.op != "placeholder" and node.op != "output" and has_effect(node)]
    stages, run = [], set()
    for index, (names, positions) in enumerate(groups):
        own = [
            node for node in effects if node in reached[index] or (index == 0 and not any(node in r for r in reached))
        ]
        needed = ancestors([*nodes_in([gradients[position] for position in positions]), *own])
        for node in needed:
            if any(node in other for other in reached if other is not reached[index]) or node in run:
                raise CannotExtract(node)
        run |= {node for node in needed if node in effects}
        stages.append(
            build_stage(backward_module, needed, saved, names, [gradients[position] for position in positions])
        )
    return stages


def build_stage(
    module: torch.fx.GraphModule, needed: set[Node], saved: list[Node], tangents: Sequence[str], gradients: list[Any]
) -> Stage:
    writer = LateWriter(needed)
    used = [index for index, node in enumerate(saved) if node in needed]
    by_name = {node.name: node for node in module.graph.nodes if node.op == "placeholder"}
    for node in [*[saved[index] for index in used], *[by_name[name] for name in tangents]]:
        writer.made[node] = writer.graph.node_copy(node, writer.made.__getitem__)
    late = dependents([by_name[name] for name in tangents])
    for node in module.graph.nodes:
        if node in needed and (node in late or has_effect(node)):
            writer.write(node)
    writer.graph.output(tuple([writer.write(value) if isinstance(value, Node) else value for value in gradients]))
    return Stage(graph_module(module, writer.graph, "Backward"), tuple(used))
