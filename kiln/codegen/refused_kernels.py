"""Which nodes ATen has to run, so that a program does without kernels that its target has no code for.

A kernel is made of the writes of nodes, and of expressions that have grown from nodes before those. Each of them is
lowered alone: ATen runs those whose own kernels the target refuses. Where there are none, it is the combination that is
refused, and ATen runs all nodes that write; or, if it does already, those that they read.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.fx

from .. import operator_functions as operator
from ..loops.steps import Launch, Scheduled
from ..lower.lowering import CannotLower, Lowering
from ..lower.node_facts import getitem_arguments
from ..lower.registry import is_lowered
from ..lower.schedule.scheduling import schedule
from ..target.target import Target

Node = torch.fx.Node
MOST_NODES = 80  # that are tried for one launch


class RefusedNodes:
    """Finds the nodes of one graph that ATen is to run."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.known: dict[tuple[str, ...], bool] = {}

    def further(self, scheduled: Scheduled, refused: Mapping[str, str]) -> dict[str, str]:
        """The nodes besides those that are known to be refused, with the reason; none if all kernels are taken."""
        reasons = {kernel: self.target.refusal(kernel) for kernel in scheduled.kernels}
        found: dict[str, str] = {}
        for launch in (step for step in scheduled.steps if isinstance(step, Launch)):
            reason = reasons[launch.kernel]
            if reason is not None:
                found.update(dict.fromkeys(self.nodes_of(launch, refused), reason))
        return found

    def nodes_of(self, launch: Launch, refused: Mapping[str, str]) -> list[str]:
        rounds = [[node for node in launch.nodes if isinstance(node, Node)]]
        seen = set(rounds[0])
        while rounds[-1] and len(seen) < MOST_NODES:
            before = dict.fromkeys(one for node in rounds[-1] for one in node.all_input_nodes)
            rounds.append([one for one in before if one not in seen])
            seen.update(rounds[-1])
        candidates = [[node for node in nodes if is_lowered(node) and node.name not in refused] for nodes in rounds]
        alone = [node.name for nodes in candidates for node in nodes if self.is_refused_alone(node)]
        return alone or next(([node.name for node in nodes] for nodes in candidates if nodes), [])

    def is_refused_alone(self, node: Node) -> bool:
        inputs = [f"{one.meta.get('val')}" for one in node.all_input_nodes]
        key = (str(node.target), str(torch.fx.node.map_arg((node.args, node.kwargs), lambda one: None)), *inputs)
        if key not in self.known:
            self.known[key] = self.try_alone(node)
        return self.known[key]

    def try_alone(self, node: Node) -> bool:
        try:
            scheduled = schedule(Lowering(graph_of(node)).run(), self.target.device.type)
        except CannotLower:
            return False
        return any(self.target.refusal(kernel) is not None for kernel in scheduled.kernels)


def graph_of(node: Node) -> torch.fx.GraphModule:
    """The graph of one node: what it reads are inputs, all its results are outputs."""
    graph = torch.fx.Graph()
    given: dict[Node, Node] = {}
    for one in node.all_input_nodes:
        given[one] = graph.placeholder(one.name)
        given[one].meta["val"] = one.meta.get("val")
    copy = graph.node_copy(node, given.__getitem__)
    results = [copy]
    if isinstance(node.meta.get("val"), (list, tuple)):
        results = []
        for user in node.users:
            if user.target is operator.getitem:
                results.append(graph.call_function(operator.getitem, (copy, getitem_arguments(user)[1])))
                results[-1].meta["val"] = user.meta.get("val")
    graph.output(results)
    return torch.fx.GraphModule({}, graph)
