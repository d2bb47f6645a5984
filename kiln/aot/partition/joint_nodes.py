"""The nodes of a joint graph, sorted: inputs and results of both passes, and which nodes may run in which pass."""

from __future__ import annotations

from dataclasses import field
from typing import Any, NamedTuple

import torch
import torch.fx

from ...platform.light_dataclass import dataclass
from ...program.graph_meta import mutated_primals
from .node_values import Node, ancestors, dependents, is_tensor, nodes_in
from .recompute_cost import CostClass, cost_class_of, has_effect

REPEATABLE = frozenset({CostClass.CONSTANT, CostClass.NUMBER, CostClass.VIEW, CostClass.CHEAP, CostClass.PASS})
MOVABLE = frozenset(
    {CostClass.CONSTANT, CostClass.NUMBER, CostClass.VIEW, CostClass.CHEAP, CostClass.PART}
)  # from the backward to the forward


class Recomputation(NamedTuple):
    """Another call that gives the value of a node.

    The target is an operator; where there are statistics, it is a function that writes nodes and takes an `Emit` first.
    """

    target: Any
    args: tuple[Any, ...]
    keywords: dict[str, Any]
    statistics: tuple[Node, ...] = ()  # arguments that are always saved: small results of passes over large tensors


@dataclass
class JointNodes:
    """The nodes of a joint graph, sorted."""

    module: torch.fx.GraphModule
    output_count: int  # of the forward
    primals: list[Node] = field(default_factory=list)
    tangents: list[Node] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    gradients: list[Any] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)  # that compute something
    costs: dict[Node, CostClass] = field(default_factory=dict)
    in_backward: set[Node] = field(default_factory=set)  # recorded in the backward
    bound: set[Node] = field(default_factory=set)  # can only be computed in the backward
    order: dict[Node, int] = field(default_factory=dict)
    recomputations: dict[Node, Recomputation] = field(default_factory=dict)
    states: dict[Node, Node] = field(default_factory=dict)  # of generators: the random node that follows

    def __post_init__(self) -> None:
        for node in self.module.graph.nodes:
            if node.op == "placeholder":
                (self.tangents if node.name.startswith("tangents") else self.primals).append(node)
            elif node.op == "output":
                values = list(node.args[0]) if isinstance(node.args[0], (list, tuple)) else [node.args[0]]
                self.outputs, self.gradients = values[: self.output_count], values[self.output_count :]
            else:
                self.nodes.append(node)
            if node.op != "output":
                self.costs[node] = cost_class_of(node)
        if any("region" in node.meta for node in self.nodes):
            backward = [node for node in self.nodes if node.meta.get("region") == "backward"]
        else:
            backward = self.guess_backward()
        self.in_backward = {*backward, *self.tangents}
        self.bound = dependents([*self.tangents, *[node for node in backward if self.costs[node] not in MOVABLE]])
        self.order = {node: index for index, node in enumerate([*self.primals, *self.nodes])}

    def guess_backward(self) -> list[Node]:
        """For graphs of other tracers, without regions: what reads incoming gradients, or follows all outputs."""
        late = dependents(self.tangents)
        needed = ancestors(nodes_in(self.outputs))
        last = max((index for index, node in enumerate(self.nodes) if node in needed), default=-1)
        return [node for index, node in enumerate(self.nodes) if node in late or (node not in needed and index > last)]

    @property
    def mutated(self) -> frozenset[str]:
        """Inputs that get a new value after the forward."""
        return mutated_primals(self.module)

    def backward_roots(self) -> list[Node]:
        effects = [node for node in self.nodes if node in self.in_backward and has_effect(node)]
        return [*nodes_in(self.gradients), *effects]

    def read_in_backward(self) -> list[Node]:
        """Tensors of the forward that nodes recorded in the backward read, or that are gradients themselves."""
        found: dict[Node, None] = {}
        stack = self.backward_roots()
        seen: set[Node] = set()
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            if node in self.in_backward:
                if self.costs[node] is not CostClass.NUMBER or node in self.bound:
                    stack.extend(node.all_input_nodes)
            elif is_tensor(node) and self.costs[node] is not CostClass.CONSTANT:
                found[node] = None
            elif isinstance(node.meta.get("val"), (tuple, list)):
                found.update({user: None for user in node.users if is_tensor(user)})
        return list(found)

    def replace(self, node: Node, same: Node) -> None:
        """Read another node that has the same value, instead of this one."""
        node.replace_all_uses_with(same)
        self.gradients = [same if value is node else value for value in self.gradients]

    def may_repeat(self, node: Node) -> bool:
        """Whether the backward may compute a node of the forward again, where it has the arguments."""
        if node in self.recomputations or self.costs[node] in REPEATABLE:
            return True
        source = node.args[0] if self.costs[node] is CostClass.PART else None
        return isinstance(source, Node) and self.may_repeat(source)

    def inputs_of(self, node: Node) -> list[Node]:
        """What is read to compute a node again."""
        if node not in self.recomputations:
            return node.all_input_nodes
        found: dict[Node, None] = {}
        again = self.recomputations[node]
        torch.fx.node.map_arg((again.args, again.keywords), lambda arg: found.setdefault(arg))
        return list(found)
