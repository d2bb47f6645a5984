"""Partitioners: a joint graph of a forward and its backward, cut in two.

``default_partition`` saves what the backward was recorded to read, as eager does. ``min_cut_partition`` saves as few
bytes as it can: it computes again, in the backward, what takes one or a few passes over memory (pointwise chains,
normalisations), and never what is expensive, random, or has effects.

The choice is a smallest cut. Every value is an edge whose capacity is its bytes; reading it costs nothing; the source
feeds what cannot be computed again without limit, and what can be with a small capacity, the price of computing it. So
one number weighs memory against work, and long chains end where they cost more than they save.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.fx
from torch.nn import Parameter

from .graph_cleanup import clean_up
from .joint_nodes import (
    BITS,
    COPY,
    PLAIN,
    JointGraph,
    Saved,
    build_backward,
    build_forward,
    key_of,
    nodes_in,
    output_values,
    plan_backward,
)
from .max_flow import SINK, SOURCE, UNBOUNDED, FlowGraph
from .recomputations import add_recipes, add_replay
from .recompute_cost import Kind, bytes_of, is_tensor, is_view, root_of

Modules = tuple[torch.fx.GraphModule, torch.fx.GraphModule]
Node = torch.fx.Node
aten = torch.ops.aten


def default_partition(
    joint_module: torch.fx.GraphModule, joint_inputs: Sequence[Any], *, num_fwd_outputs: int, **unused: Any
) -> Modules:
    """Save what the backward reads of the forward."""
    joint = JointGraph(clean_up(joint_module), num_fwd_outputs)
    return finish(joint, [form_in_eager(node, joint) for node in merge_views(read_in_backward(joint), joint)])


def min_cut_partition(
    joint_module: torch.fx.GraphModule,
    joint_inputs: Sequence[Any],
    *,
    num_fwd_outputs: int,
    recompute_random: bool = False,
    **unused: Any,
) -> Modules:
    """Save as little as possible; with `recompute_random`, states of generators rather than random numbers."""
    joint = JointGraph(clean_up(joint_module), num_fwd_outputs)
    add_recipes(joint)
    random = [node for node in joint.nodes if joint.kinds[node] is Kind.RANDOM and node not in joint.in_backward]
    states = {add_replay(joint, node) for node in random} if recompute_random else set()
    saved = merge_equal(joint, MinCut(joint, joint_inputs).choose())
    kept = {one.node for one in saved}
    joint.nodes = [node for node in joint.nodes if node not in states or node in kept]
    return finish(joint, saved)


min_cut = min_cut_rematerialization_partition = min_cut_partition


def finish(joint: JointGraph, saved: list[Saved]) -> Modules:
    plan = plan_backward(joint, saved, [], is_fixed=False)
    placeholders = [(one.node.name, one) for one in plan.in_backward_order()]
    return build_forward(joint, plan), build_backward(joint, plan, placeholders)


# -- as eager does ----------------------------------------------------------------------------------------------------


def read_in_backward(joint: JointGraph) -> list[Node]:
    """Tensors of the forward that nodes recorded in the backward read, or that are gradients themselves."""
    found: dict[Node, None] = {}
    stack, seen = joint.backward_roots(), set()
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if node in joint.in_backward:
            if joint.kinds[node] is not Kind.NUMBER or node in joint.bound:
                stack.extend(node.all_input_nodes)
        elif is_tensor(node) and joint.kinds[node] is not Kind.CONSTANT:
            found[node] = None
        elif isinstance(node.meta.get("val"), (tuple, list)):
            found.update({user: None for user in node.users if is_tensor(user)})
    return list(found)


def merge_views(nodes: list[Node], joint: JointGraph) -> list[Node]:
    """Instead of several views of one memory, that memory: it takes no more, and views are free. Inputs always."""
    readers: dict[Node, int] = {}
    for node in nodes:
        readers[root_of(node)] = readers.get(root_of(node), 0) + 1
    merged: dict[Node, None] = {}
    for node in nodes:
        root = root_of(node)
        merged[root if is_tensor(root) and (readers[root] > 1 or root.op == "placeholder") else node] = None
    return list(merged)


def form_in_eager(node: Node, joint: JointGraph) -> Saved:
    return Saved(node, COPY if root_of(node).name in joint.mutated else PLAIN)


# -- as little as possible --------------------------------------------------------------------------------------------

SCALE = 64  # capacities are bytes times this, so that prices can be fractions of them
PRICES = {Kind.CHEAP: SCALE // 16, Kind.PASS: SCALE // 4, Kind.RANDOM: SCALE // 16}  # of computing a byte again
PRICE_OF_CALLING = 512 * SCALE  # an operator again: small tensors are not worth it
PRICE_OF_MOVING = SCALE // 8  # a byte, from the backward, where it was recorded, to the forward
SPAN = 16  # how many expensive operators in sequence a value may lie before its recomputation
ZEROS_AND_ONES = frozenset({"bernoulli"})


class MinCut:
    """The flow graph of a joint graph, and what its smallest cut says."""

    def __init__(self, joint: JointGraph, joint_inputs: Sequence[Any]) -> None:
        self.joint = joint
        self.flow = FlowGraph()
        read = {root_of(node) for node in read_in_backward(joint)}
        self.free = free_inputs(joint, joint_inputs, read)
        self.kept = read.intersection(nodes_in(joint.outputs))  # by the program, most likely, and by eager
        self.ends = ends_of_chains(joint)
        self.statistics = {node for recipe in joint.recipes.values() for node in recipe.statistics}
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
        stack, seen = joint.backward_roots(), set()
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
            node in self.free or self.joint.kinds[node] in (Kind.CONSTANT, Kind.NUMBER) or self.is_saved_as_number(node)
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
        flow, size = self.flow, 0 if node in self.kept else bytes_of(node) * SCALE
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
        kind, size = self.joint.kinds[node], result_bytes(node)
        if kind is Kind.PART and node in self.joint.recipes:
            kind = Kind.CHEAP
        if node in self.joint.in_backward:
            self.flow.add_edge(computed, SINK, size * PRICE_OF_MOVING + 1)
        elif kind in PRICES:
            self.flow.add_edge(SOURCE, computed, size * PRICES[kind] + PRICE_OF_CALLING)

    def is_better_copied(self, node: Node) -> bool:
        """Views of memory that changes, or of much more memory than they show."""
        root = root_of(node)
        return is_tensor(node) and (root.name in self.joint.mutated or 2 * bytes_of(node) <= bytes_of(root))

    def is_bits(self, node: Node) -> bool:
        return getattr(node.target, "_opname", "") in ZEROS_AND_ONES and node.meta["val"].dtype != torch.bool

    def form(self, node: Node) -> str:
        if self.is_bits(node):
            return BITS
        if node.op == "placeholder":
            return COPY if node.name in self.joint.mutated else PLAIN
        return COPY if is_view(node) and self.is_better_copied(node) else PLAIN


def merge_equal(joint: JointGraph, saved: list[Saved]) -> list[Saved]:
    """Values moved to the forward that the backward recorded several times are saved once."""
    merged: dict[str, Saved] = {}
    for one in sorted(saved, key=lambda one: joint.order[one.node]):
        first = merged.setdefault(key_of(one, joint), one)
        if first is not one:
            joint.replace(one.node, first.node)
    return list(merged.values())


def result_bytes(node: Node) -> int:
    """Of all results of a node."""
    if is_tensor(node):
        return bytes_of(node)
    return sum([bytes_of(user) for user in node.users])


def free_inputs(joint: JointGraph, joint_inputs: Sequence[Any], read: set[Node]) -> set[Node]:
    """Inputs that cost no memory: those that are there anyway (parameters), and those that eager keeps as well.

    The others have their price, though they may be alive too: a program may change them after the forward where eager
    does not keep them, and would be told that it must not.
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


def ends_of_chains(joint: JointGraph) -> set[Node]:
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
            depths[node] = depth + 1 if joint.kinds[node] is not Kind.PART else depth
            oldest[node] = depths[node]
            continue
        size = bytes_of(node)
        begins = [oldest.get(arg) for arg in args if 2 * bytes_of(arg) >= size]
        begin = min([begin for begin in begins if begin is not None], default=None)
        if begin is not None and depth - begin > SPAN and is_tensor(node) and not is_view(node):
            ends.add(node)
            begin = depth
        depths[node], oldest[node] = depth, begin
    return ends


# -- reports ----------------------------------------------------------------------------------------------------------


class SavedTensor(NamedTuple):
    """A value that a forward keeps for its backward."""

    name: str
    shape: tuple[Any, ...]
    dtype: torch.dtype
    bytes: int
    where: str  # the line of the program that computes it
    is_input: bool  # kept by others as well


class SavedReport(NamedTuple):
    tensors: list[SavedTensor]
    total_bytes: int  # of all memory kept, counted once
    activation_bytes: int  # without inputs of the graph


def saved_bytes(forward_module: torch.fx.GraphModule, num_fwd_outputs: int) -> SavedReport:
    """What a forward saves, and how much memory that is; several views of one memory count once."""
    rows: list[SavedTensor] = []
    sizes: dict[Node, int] = {}
    for node in output_values(forward_module)[num_fwd_outputs:]:
        if isinstance(node, Node) and is_tensor(node):
            root, value = root_of(node), node.meta["val"]
            is_input = root.op == "placeholder"
            rows.append(
                SavedTensor(node.name, tuple(value.shape), value.dtype, bytes_of(node), line_of(node), is_input)
            )
            sizes[root] = max(bytes_of(root), sizes.get(root, 0))
    total = sum(sizes.values())
    return SavedReport(rows, total, total - sum([size for root, size in sizes.items() if root.op == "placeholder"]))


def line_of(node: Node) -> str:
    """The last line of the user's stack, as `file:line, in function`, or nothing."""
    lines = [
        line.strip() for line in (node.meta.get("stack_trace") or "").splitlines() if line.strip().startswith("File")
    ]
    return lines[-1] if lines else ""
