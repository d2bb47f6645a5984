"""More backwards for a compiled forward: for other gradients from the same saved values, or in stages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.fx

from ...platform.fx_graphs import LazyGraphModule
from ...platform.light_dataclass import dataclass
from ...program import graph_meta
from ...program.graph_modules import output_values
from .graph_cleanup import clean_up
from .graph_writers import CannotExtract, LateWriter, build_backward, plan_backward
from .joint_nodes import JointNodes
from .node_values import Node, ancestors, dependents, is_tensor, nodes_in
from .recomputations import add_recomputations, add_replay
from .recompute_cost import has_effect
from .saved_values import Form, Saved, expression_text, parse_key


def saved_keys(forward_module: torch.fx.GraphModule, num_fwd_outputs: int) -> tuple[str, ...]:
    """What a forward saves, as `extract_backward` takes it; of any partitioner."""
    known = graph_meta.saved_keys(forward_module)
    return known or tuple([node.name for node in output_values(forward_module)[num_fwd_outputs:]])


def extract_backward(
    joint_module: torch.fx.GraphModule, saved_keys: Sequence[str], num_fwd_outputs: int
) -> torch.fx.GraphModule:
    """Another backward for a compiled forward: from exactly the values that it saves, in its order.

    The joint graph has the same forward (names included) and another backward. What is not saved is computed again
    where that is allowed at all, else `CannotExtract` is raised.
    """
    joint = JointNodes(clean_up(joint_module), num_fwd_outputs)
    add_recomputations(joint)
    by_key = find_saved(joint, saved_keys)
    entries: list[tuple[str, Saved | None]] = []
    for key in saved_keys:
        saved = by_key.get(key)
        entries.append((saved.node.name if saved else f"unused_{len(entries)}", saved))
    entries.sort(key=lambda entry: entry[1] is None or is_tensor(entry[1].node))  # numbers first
    available = [saved for _, saved in entries if saved is not None]
    numbers = [saved.node for saved in available if not is_tensor(saved.node)]
    plan = plan_backward(joint, [saved for saved in available if is_tensor(saved.node)], numbers, is_fixed=True)
    return build_backward(joint, plan, entries)


def find_saved(joint: JointNodes, keys: Sequence[str]) -> dict[str, Saved]:
    """What these keys (`saved_values.key_of`) mean in a joint graph; not all need be there."""
    known: dict[Node, str] = {}
    parsed = {key: parse_key(key) for key in keys}
    wanted = {text if form is Form.COPY else key for key, (form, _, text) in parsed.items()}
    by_text: dict[str, Node] = {}
    for node in [*joint.primals, *joint.nodes]:
        first = by_text.setdefault(expression_text(node, joint, known), node)
        if first is not node and known[node] in wanted:
            joint.replace(node, first)  # the forward computes it once for all of them
    found = {}
    for key, (form, is_state, text) in parsed.items():
        node_named = by_text.get(text)
        if node_named is not None:
            found[key] = Saved(add_replay(joint, node_named) if is_state else node_named, form)
    return found


@dataclass(frozen=True)
class StageModule:
    """A part of a backward: its module, and which of the backward's saved inputs it takes, before its tangents."""

    module: torch.fx.GraphModule
    saved: tuple[int, ...]


def split_stages(
    backward_module: torch.fx.GraphModule, groups: Sequence[tuple[Sequence[str], Sequence[int]]]
) -> list[StageModule]:
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
    stages: list[StageModule] = []
    run: set[Node] = set()
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
) -> StageModule:
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
    return StageModule(LazyGraphModule(module, writer.graph, "Backward"), tuple(used))
