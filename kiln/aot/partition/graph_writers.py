"""Writes the forward and the backward graph of a joint graph, given what is saved between them.

`plan_backward` finds what the backward computes itself; `build_forward` and `build_backward` write the two modules. The
partitioners choose what is saved.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from ... import operator_functions as operator
from ...platform.fx_graphs import LazyGraphModule
from ...platform.light_dataclass import dataclass
from ...platform.torch_operators import OpOverload
from ...program.graph import Graph
from ...program.graph_meta import set_saved_keys
from ...program.shapes import shape_cache
from ...program.shapes.symbolic_kernels import symbolic_kernels
from .joint_nodes import JointNodes, Recomputation
from .node_values import Node, ancestors, expression_of, is_symbolic, is_tensor, nodes_in
from .recompute_cost import CostClass, has_effect
from .saved_values import Form, Saved, key_of

aten = torch.ops.aten


class CannotExtract(Exception):
    """A backward needs a value that is not saved and must not be computed again."""

    def __init__(self, node: Node) -> None:
        super().__init__(f"the backward reads {node.name} ({node.target}), which is not saved and cannot run twice")
        self.node = node


@dataclass
class Plan:
    """The saved values, and what the backward computes from them."""

    saved: list[Saved]
    numbers: list[Node]  # saved too; no tensors
    computed: set[Node]  # nodes of the joint graph that the backward runs
    sizes: dict[Node, tuple[Node, int]]  # numbers that are a size of a saved tensor


def plan_backward(joint: JointNodes, saved: Sequence[Saved], numbers: Sequence[Node], is_fixed: bool) -> Plan:
    """What the backward computes from saved values; unless they are fixed, inputs and numbers it needs are added."""
    plan = Plan(list(saved), list(numbers), set(), {})
    available = {one.node for one in plan.saved} | set(numbers)
    open_numbers: list[Node] = []
    tangents = set(joint.tangents)
    stack, seen = list(reversed(joint.backward_roots())), set()
    while stack:
        node = stack.pop()
        if node in seen or node in available or node in tangents:
            continue
        seen.add(node)
        if not is_tensor(node) and node not in joint.bound and is_number(node, joint):
            open_numbers.append(node)
        elif node.op == "placeholder":
            if is_fixed:
                raise CannotExtract(node)
            plan.saved.append(Saved(node, Form.COPY if node.name in joint.mutated else Form.PLAIN))
            available.add(node)
        elif node in joint.in_backward or joint.may_repeat(node):
            plan.computed.add(node)
            stack.extend(joint.inputs_of(node))
        else:
            raise CannotExtract(node)
    plan_numbers(joint, plan, open_numbers, is_fixed)
    if not is_fixed:
        plan.saved.sort(key=lambda one: joint.order[one.node])
        plan.numbers.sort(key=joint.order.__getitem__)
    return plan


def is_number(node: Node, joint: JointNodes) -> bool:
    """Also objects that are no tensors (the slots of hooks): they are saved as they are."""
    value, cost = node.meta.get("val"), joint.costs[node]
    if cost in (CostClass.NUMBER, CostClass.INPUT):
        return True
    return (
        cost not in (CostClass.CONSTANT, CostClass.VIEW) and value is not None and not isinstance(value, (tuple, list))
    )


def plan_numbers(joint: JointNodes, plan: Plan, numbers: list[Node], is_fixed: bool) -> None:
    """Sizes of saved tensors are read from them; other numbers are saved, or computed from those that are."""
    places: dict[Any, tuple[Node, int]] = {}
    for node in [one.node for one in plan.saved]:  # not from tangents: they may be undefined, or another stage's
        value = node.meta.get("val")
        for dim, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            places.setdefault(expression_of(size), (node, dim))
    places.pop(None, None)
    stack, available = list(numbers), set(plan.numbers)
    while stack:
        number = stack.pop()
        if number in available:
            continue
        available.add(number)
        place = places.get(expression_of(number.meta.get("val")))
        if place is not None:
            plan.sizes[number] = place
        elif not is_fixed:
            plan.numbers.append(number)
        elif joint.costs[number] is CostClass.NUMBER and not any(is_tensor(arg) for arg in number.all_input_nodes):
            plan.computed.add(number)
            stack.extend(number.all_input_nodes)
        else:
            raise CannotExtract(number)


# -- writing the graphs -----------------------------------------------------------------------------------------------


def build_forward(joint: JointNodes, plan: Plan) -> torch.fx.GraphModule:
    """forward(*primals) -> (*outputs, *saved tensors, *saved numbers)"""
    saved = [*plan.saved, *map(Saved, plan.numbers)]
    effects = [node for node in joint.nodes if node not in joint.in_backward and has_effect(node)]
    needed = ancestors([*nodes_in(joint.outputs), *[one.node for one in saved], *effects])
    forms = {one.node: one for one in saved}
    graph = Graph()
    made: dict[Node, Node] = {}
    encoded: dict[Node, Node] = {}
    for node in [*joint.primals, *joint.nodes]:
        if node in needed or node.op == "placeholder":
            made[node] = graph.node_copy(node, made.__getitem__)
            if node in forms:
                encoded[node] = forms[node].encode(graph, made[node])
    outputs = [made[value] if isinstance(value, Node) else value for value in joint.outputs]
    graph.output((*outputs, *[encoded[one.node] for one in saved]))
    module = LazyGraphModule(joint.module, graph, "Forward")
    set_saved_keys(module, tuple([key_of(one, joint) for one in saved]))
    return module


def build_backward(
    joint: JointNodes, plan: Plan, placeholders: Sequence[tuple[str, Saved | None]]
) -> torch.fx.GraphModule:
    """backward(*saved numbers, *saved tensors, *tangents) -> (*gradients)

    What was recorded in the backward runs in that order; what is computed again, right before its first reader.
    """
    writer = LateWriter(plan.computed)
    made = writer.made
    copies: list[Node] = []
    for name, saved in placeholders:
        placeholder = writer.graph.placeholder(name)
        if saved is None:
            continue
        placeholder.meta = dict(saved.node.meta)
        if saved.form is Form.BITS:
            writer.writers[saved.node] = functools.partial(saved.decode, writer.graph, placeholder)
        else:
            made[saved.node] = placeholder
        if saved.form is not Form.PLAIN:
            placeholder.meta["val"] = saved.value()
        if saved.form is Form.COPY:
            copies.append(placeholder)
    for tangent in joint.tangents:
        made[tangent] = writer.graph.node_copy(tangent, made.__getitem__)
    for number, (source, dim) in plan.sizes.items():
        writer.writers[number] = functools.partial(write_size, writer, number, source, dim)
    for node, recomputation in joint.recomputations.items():
        if node in plan.computed:
            writer.writers[node] = functools.partial(write_recomputation, writer, node, recomputation)
    for node in joint.nodes:
        if node in plan.computed and node in joint.in_backward:
            writer.write(node)
    writer.graph.output(tuple([writer.write(value) if isinstance(value, Node) else value for value in joint.gradients]))
    update_layouts(writer.graph, copies)
    return LazyGraphModule(joint.module, writer.graph, "Backward")


def value_on_fakes(node: Node) -> Any:
    """What an operator gives for the values of a node's arguments."""
    given = node.all_input_nodes
    target: Any = node.target
    args, keywords = torch.fx.node.map_arg((node.args, node.kwargs), lambda arg: arg.meta.get("val"))
    mode = shape_cache.mode_of(*(arg.meta.get("val") for arg in given))
    with torch.no_grad(), mode, symbolic_kernels(any(map(is_symbolic, given))):
        return target(*args, **keywords)


def update_layouts(graph: torch.fx.Graph, copies: list[Node]) -> None:
    """Compute the values of nodes that depend on copies anew: a copy of a view is contiguous where the view is not."""
    changed = set(copies)
    for node in graph.nodes if changed else ():
        if changed.isdisjoint(node.all_input_nodes):
            continue
        if type(node.target) is not OpOverload and node.target is not operator.getitem:
            continue  # a hook, or another function with effects: not to be called for its shape
        before = node.meta.get("val")
        if not isinstance(before, (torch.Tensor, tuple, list)):
            continue  # sizes do not depend on the layout
        after = value_on_fakes(node)
        node.meta["val"] = after
        if not isinstance(before, torch.Tensor) or after.stride() != before.stride():
            changed.add(node)


class LateWriter:
    """Copies nodes into a new graph, each behind what it reads, which is written when it is first read."""

    def __init__(self, allowed: set[Node]) -> None:
        self.graph = Graph()
        self.made: dict[Node, Node] = {}
        self.allowed = allowed
        self.writers: dict[Node, Callable[[], Node]] = {}  # of nodes that are not copied

    def write(self, wanted: Node) -> Node:
        stack = [wanted]
        while stack:
            node = stack[-1]
            if node in self.made:
                stack.pop()
            elif node in self.writers:
                stack.pop()
                self.made[node] = self.writers[node]()
            elif node not in self.allowed:
                raise CannotExtract(node)
            elif missing := [arg for arg in node.all_input_nodes if arg not in self.made]:
                stack.extend(reversed(missing))
            else:
                self.made[stack.pop()] = self.graph.node_copy(node, self.made.__getitem__)
        return self.made[wanted]


def write_size(writer: LateWriter, number: Node, source: Node, dim: int) -> Node:
    made = writer.graph.create_node("call_function", aten.sym_size.int, (writer.write(source), dim), {}, number.name)
    made.meta = dict(number.meta)
    return made


@dataclass
class Emit:
    """Writes nodes that compute what a node of the joint graph gave."""

    graph: torch.fx.Graph
    node: Node

    def __call__(self, target: Any, *args: Any, **keywords: Any) -> Node:
        made = self.graph.create_node("call_function", target, args, keywords)
        made.meta = {**self.node.meta, "val": value_on_fakes(made)}
        return made


def write_recomputation(writer: LateWriter, node: Node, recomputation: Recomputation) -> Node:
    args, keywords = torch.fx.node.map_arg((recomputation.args, recomputation.keywords), writer.write)
    if recomputation.statistics:
        written: Node = recomputation.target(Emit(writer.graph, node), *args, **keywords)
        return written
    made = writer.graph.create_node("call_function", recomputation.target, args, keywords, node.name)
    made.meta = dict(node.meta)
    return made
