"""The choice of what to save as a minimum cut.

Every value is an edge whose capacity is the price of saving it; reading it costs nothing. The source feeds what cannot
be computed again without limit, and what can be with the price of computing it. So one number weighs memory against
work, and long chains end where they cost more than they save. The prices are in prices.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import Parameter

from ...program.operators.operator_table import find_operator
from .joint_nodes import JointNodes
from .max_flow import SINK, SOURCE, UNBOUNDED, FlowGraph
from .node_values import Node, bytes_of, is_tensor, nodes_in
from .prices import prices_of, result_bytes
from .recompute_cost import CostClass, is_view, root_of
from .saved_values import Form, Saved


class MinCut:
    """The flow graph of a joint graph, and the values at its minimum cut."""

    def __init__(self, joint: JointNodes, joint_inputs: Sequence[Any]) -> None:
        self.joint = joint
        self.flow = FlowGraph()
        self.prices = prices_of(joint)
        read = {root_of(node) for node in joint.read_in_backward()}
        self.free = free_inputs(joint, joint_inputs, read)
        self.kept = read.intersection(nodes_in(joint.outputs))  # by the program, most likely, and by eager
        self.ends = ends_of_chains(joint, self.prices.span)
        self.statistics = {node for again in joint.recomputations.values() for node in again.statistics}
        self.saved_edges: dict[Node, tuple[int, int]] = {}  # the two ends of the edge that is a value
        self.vertices: dict[Node, int | None] = {}  # where readers of a value are attached; None: it is there for free

    def choose(self) -> list[Saved]:
        for node in self.read_by_bound():
            vertex = self.attach(node)
            if vertex is not None:
                self.flow.add_edge(vertex, SINK, UNBOUNDED)
        on_sink_side = self.flow.sink_side()
        return [
            Saved(node, self.form(node))
            for node, (before, after) in self.saved_edges.items()
            if on_sink_side[after] and not on_sink_side[before]
        ]

    def read_by_bound(self) -> list[Node]:
        """What the nodes that have to be in the backward read, and what is a gradient without being one of them."""
        joint = self.joint
        found: dict[Node, None] = {}
        stack = joint.backward_roots()
        seen: set[Node] = set()
        while stack:
            node = stack.pop()
            if node not in seen:
                seen.add(node)
                if node in joint.bound:
                    stack.extend(node.all_input_nodes)
                else:
                    found[node] = None
        return sorted(found, key=joint.order.__getitem__)

    def attach(self, wanted: Node) -> int | None:
        """The vertex that readers of a node are attached to; without recursion, for chains are long."""
        stack = [wanted]
        while stack:
            node = stack[-1]
            if node in self.vertices:
                stack.pop()
                continue
            missing = [arg for arg in self.sources(node) if arg not in self.vertices]
            if missing:
                stack.extend(missing)
            else:
                self.vertices[stack.pop()] = self.vertex(node)
        return self.vertices[wanted]

    def is_free(self, node: Node) -> bool:
        return (
            node in self.free
            or self.joint.costs[node] in (CostClass.CONSTANT, CostClass.NUMBER)
            or self.is_saved_as_number(node)
        )

    def is_saved_as_number(self, node: Node) -> bool:
        value = node.meta.get("val")
        return not is_tensor(node) and value is not None and not isinstance(value, (tuple, list))

    def is_source(self, node: Node) -> bool:
        """Whether a value can only be saved."""
        fixed = node in self.ends or node in self.statistics
        return fixed or node.op == "placeholder" or not self.joint.may_repeat(node)

    def sources(self, node: Node) -> list[Node]:
        return [] if self.is_free(node) or self.is_source(node) else self.joint.inputs_of(node)

    def vertex(self, node: Node) -> int | None:
        """Add a node to the flow graph, behind what it reads."""
        if self.is_free(node):
            return None
        flow, size = self.flow, 0 if node in self.kept else self.prices.of_saving(node)
        if self.is_source(node):
            if not is_tensor(node):
                return SOURCE  # several results; each of them can be saved
            return self.value(node, SOURCE, size + 1)
        before = [vertex for vertex in (self.vertices[arg] for arg in self.joint.inputs_of(node)) if vertex is not None]
        if is_view(node) and not self.is_better_copied(node):
            return before[0] if before else None
        computed = flow.add_vertex()
        for vertex in before:
            flow.add_edge(vertex, computed, UNBOUNDED)
        self.add_price(node, computed)
        return self.value(node, computed, size + 1) if is_tensor(node) else computed

    def value(self, node: Node, computed: int, capacity: int) -> int:
        after = self.flow.add_vertex()
        self.flow.add_edge(
            computed, after, capacity // node.meta["val"].element_size() if self.is_bits(node) else capacity
        )
        self.saved_edges[node] = computed, after
        return after

    def add_price(self, node: Node, computed: int) -> None:
        cost = self.joint.costs[node]
        if cost is CostClass.PART and node in self.joint.recomputations:
            cost = CostClass.CHEAP
        if node in self.joint.in_backward:
            self.flow.add_edge(computed, SINK, result_bytes(node) * self.prices.moving + 1)
        elif (price := self.prices.of_computing_again(node, cost)) is not None:
            self.flow.add_edge(SOURCE, computed, price)

    def is_better_copied(self, node: Node) -> bool:
        """Views of memory that changes, or of much more memory than they show."""
        root = root_of(node)
        return is_tensor(node) and (root.name in self.joint.mutated or 2 * bytes_of(node) <= bytes_of(root))

    def is_bits(self, node: Node) -> bool:
        called = find_operator(node.target)
        return called is not None and called.gives_bits and node.meta["val"].dtype != torch.bool

    def form(self, node: Node) -> Form:
        if self.is_bits(node):
            return Form.BITS
        if node.op == "placeholder":
            return Form.COPY if node.name in self.joint.mutated else Form.PLAIN
        return Form.COPY if is_view(node) and self.is_better_copied(node) else Form.PLAIN


def free_inputs(joint: JointNodes, joint_inputs: Sequence[Any], read: set[Node]) -> set[Node]:
    """Inputs that cost no memory: those that are there anyway (parameters), and those that eager keeps as well.

    The others have their price, though they may be alive too: a program may change an input after the forward where
    eager does not save it; saved here, that would be an error.
    """
    given = list(joint_inputs)
    if len(given) == 2 and isinstance(given[0], (list, tuple)):  # (primals, tangents)
        given = list(given[0])
    free = set()
    for index, node in enumerate(joint.primals):
        values = [node.meta.get("val"), given[index] if index < len(given) else None]
        is_parameter = any(isinstance(value, Parameter) for value in values)
        if node.name not in joint.mutated and (is_parameter or node in read):
            free.add(node)
    return free


def ends_of_chains(joint: JointNodes, span: int) -> set[Node]:
    """Nodes where recomputation ends: what they come from was computed so much earlier that all would come at once.

    The sum of all layers' results that runs through a model is an example: computed again from its parts, all of it is
    in memory at the start of the backward.
    """
    depths: dict[Node, int] = {}
    oldest: dict[Node, int | None] = {}
    ends = set()
    for node in [*joint.primals, *joint.nodes]:
        if node in joint.in_backward:
            continue
        args = node.all_input_nodes
        depth = max([depths.get(arg, 0) for arg in args], default=0)
        if node.op != "placeholder" and not joint.may_repeat(node):
            depths[node] = depth + 1 if joint.costs[node] is not CostClass.PART else depth
            oldest[node] = depths[node]
            continue
        size = bytes_of(node)
        begins = [oldest.get(arg) for arg in args if 2 * bytes_of(arg) >= size]
        begin = min([begin for begin in begins if begin is not None], default=None)
        if begin is not None and depth - begin > span and is_tensor(node) and not is_view(node):
            ends.add(node)
            begin = depth
        depths[node], oldest[node] = depth, begin
    return ends
