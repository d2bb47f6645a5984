"""The two halves of a joint graph, for a given set of values that go from one to the other.

`JointGraph` says what is in the joint graph; `Saved` is one value kept between the halves, and in which form;
`plan_backward` finds out what the backward computes itself, and `build_forward` and `build_backward` write the two
modules. How to choose the values is the partitioners' business.
"""

from __future__ import annotations

import functools
import hashlib
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.fx

from ...program.graph import Graph
from ...program.graph_modules import graph_module
from ...program.shapes import shape_cache
from ...program.shapes.symbolic_kernels import symbolic_kernels
from .recompute_cost import Kind, expression_of, has_effect, is_symbolic, is_tensor, kind_of

aten = torch.ops.aten
Node = torch.fx.Node
FORWARD, BACKWARD = "forward", "backward"
SAVED_NAMES = "saved_names"


class CannotExtract(Exception):
    """A backward needs a value that is not saved and must not be computed again."""

    def __init__(self, node: Node) -> None:
        super().__init__(f"the backward reads {node.name} ({node.target}), which is not saved and cannot run twice")
        self.node = node


class Recipe(NamedTuple):
    """Another way to compute the value of a node: an operator, or a function that writes nodes (with an ``Emit``)."""

    target: Any
    args: tuple[Any, ...]
    keywords: dict[str, Any]
    statistics: tuple[Node, ...] = ()  # arguments that are never computed again: little memory, and passes over much


@dataclass
class JointGraph:
    """The joint graph, sorted."""

    module: torch.fx.GraphModule
    output_count: int  # of the forward
    primals: list[Node] = field(default_factory=list)
    tangents: list[Node] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    gradients: list[Any] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)  # that compute something
    kinds: dict[Node, Kind] = field(default_factory=dict)
    in_backward: set[Node] = field(default_factory=set)  # recorded in the backward
    bound: set[Node] = field(default_factory=set)  # can only be computed in the backward
    order: dict[Node, int] = field(default_factory=dict)
    recipes: dict[Node, Recipe] = field(default_factory=dict)  # of random nodes that may be computed again

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
                self.kinds[node] = kind_of(node)
        told = any("region" in node.meta for node in self.nodes)
        backward = (
            [node for node in self.nodes if node.meta.get("region") == BACKWARD] if told else self.guess_backward()
        )
        self.in_backward = {*backward, *self.tangents}
        self.bound = dependents([*self.tangents, *[node for node in backward if self.kinds[node] not in MOVABLE]])
        self.order = {node: index for index, node in enumerate([*self.primals, *self.nodes])}

    def guess_backward(self) -> list[Node]:
        """Graphs of others do not say what was recorded when: what reads incoming gradients, or follows all outputs."""
        late = dependents(self.tangents)
        needed = ancestors(nodes_in(self.outputs))
        last = max((index for index, node in enumerate(self.nodes) if node in needed), default=-1)
        return [node for index, node in enumerate(self.nodes) if node in late or (node not in needed and index > last)]

    @property
    def mutated(self) -> set[str]:
        """Inputs that get a new value after the forward."""
        return set(self.module.meta.get("mutated_primals", ()))

    def backward_roots(self) -> list[Node]:
        effects = [node for node in self.nodes if node in self.in_backward and has_effect(node)]
        return [*nodes_in(self.gradients), *effects]

    def replace(self, node: Node, same: Node) -> None:
        """Read another node that has the same value, instead of this one."""
        node.replace_all_uses_with(same)
        self.gradients = [same if value is node else value for value in self.gradients]

    def may_repeat(self, node: Node) -> bool:
        """Whether a node of the forward may be computed again in the backward, where its arguments are there."""
        if node in self.recipes or self.kinds[node] in REPEATABLE:
            return True
        return self.kinds[node] is Kind.PART and self.may_repeat(node.args[0])  # type: ignore[arg-type]

    def inputs_of(self, node: Node) -> list[Node]:
        """What it takes to compute a node again."""
        if node not in self.recipes:
            return node.all_input_nodes
        found: dict[Node, None] = {}
        torch.fx.node.map_arg((self.recipes[node].args, self.recipes[node].keywords), lambda arg: found.setdefault(arg))
        return list(found)


REPEATABLE = frozenset({Kind.CONSTANT, Kind.NUMBER, Kind.VIEW, Kind.CHEAP, Kind.PASS})
MOVABLE = frozenset({Kind.CONSTANT, Kind.NUMBER, Kind.VIEW, Kind.CHEAP, Kind.PART})  # from the backward to the forward


def nodes_in(values: Iterable[Any]) -> list[Node]:
    return [value for value in values if isinstance(value, Node)]


def dependents(nodes: Iterable[Node]) -> set[Node]:
    found, stack = set(), list(nodes)
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack.extend(node.users)
    return found


def ancestors(nodes: Iterable[Node], stop: Callable[[Node], bool] = lambda node: False) -> set[Node]:
    """The nodes and all that they are computed from, not looking behind those to stop at."""
    found, stack = set(), list(nodes)
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            if not stop(node):
                stack.extend(node.all_input_nodes)
    return found


# -- saved values -----------------------------------------------------------------------------------------------------

PLAIN, COPY, BITS = "plain", "copy", "bool"
STATE = "state"  # of a generator, before a random node


@dataclass(frozen=True)
class Saved:
    """A value kept for the backward: as it is, as a copy (which nobody changes), or zeros and ones as truth values."""

    node: Node
    form: str = PLAIN

    def encode(self, graph: torch.fx.Graph, value: Node) -> Node:
        if self.form == PLAIN:
            return value
        options = {"dtype": torch.bool} if self.form == BITS else {}
        return call(graph, ENCODINGS[self.form], (value,), options, value, f"saved_{value.name}")

    def decode(self, graph: torch.fx.Graph, value: Node) -> Node:
        if self.form != BITS:
            return value
        return call(
            graph, aten._to_copy.default, (value,), {"dtype": self.node.meta["val"].dtype}, value, self.node.name
        )


ENCODINGS = {COPY: aten.clone.default, BITS: aten._to_copy.default}


def call(
    graph: torch.fx.Graph, target: Any, args: tuple[Any, ...], keywords: dict[str, Any], like: Node, name: str
) -> Node:
    """A new node on a node of the graph, with a fake result."""
    made = graph.create_node("call_function", target, args, keywords, name)
    made.meta = {key: value for key, value in like.meta.items() if key in ("stack_trace", "region", "seq_nr")}
    value = like.meta.get("val")
    if isinstance(value, torch.Tensor):
        with torch.no_grad(), shape_cache.mode_of(value):
            made.meta["val"] = target(value, *args[1:], **keywords)
    return made


def key_of(saved: Saved, joint: JointGraph) -> str:
    """A name for a saved value that holds in other joint graphs with the same forward."""
    if "state_of" in saved.node.meta:
        return f"{STATE}({saved.node.meta['state_of']})"
    name = expression_text(saved.node, joint, {})
    return f"{saved.form}({name})" if saved.form in (BITS, COPY) else name


def expression_text(node: Node, joint: JointGraph, known: dict[Node, str]) -> str:
    """A node recorded in the backward by what it computes: its name there depends on what was recorded before it."""
    if node not in joint.in_backward or node.op == "placeholder":
        return node.name
    if node not in known:
        arguments = torch.fx.node.map_arg((node.args, node.kwargs), lambda arg: expression_text(arg, joint, known))
        text = f"{node.target}{arguments}"
        known[node] = text if len(text) < 200 else f"{node.target}({hashlib.sha256(text.encode()).hexdigest()})"
    return known[node]


# -- what the backward computes ---------------------------------------------------------------------------------------


@dataclass
class Plan:
    """The saved values, and what the backward computes from them."""

    saved: list[Saved]
    numbers: list[Node]  # saved too; no tensors
    computed: set[Node]  # nodes of the joint graph that the backward runs
    sizes: dict[Node, tuple[Node, int]]  # numbers that are a size of a value that is there

    def in_forward_order(self) -> list[Saved]:
        return [*self.saved, *[Saved(number) for number in self.numbers]]

    def in_backward_order(self) -> list[Saved]:
        return [*[Saved(number) for number in self.numbers], *self.saved]


def plan_backward(joint: JointGraph, saved: Sequence[Saved], numbers: Sequence[Node], is_fixed: bool) -> Plan:
    """What the backward computes from saved values; unless they are fixed, inputs and numbers it needs are added."""
    plan = Plan(list(saved), list(numbers), set(), {})
    there = {one.node for one in plan.saved} | set(numbers)
    open_numbers: list[Node] = []
    tangents = set(joint.tangents)
    stack, seen = list(reversed(joint.backward_roots())), set()
    while stack:
        node = stack.pop()
        if node in seen or node in there or node in tangents:
            continue
        seen.add(node)
        if not is_tensor(node) and node not in joint.bound and is_number(node, joint):
            open_numbers.append(node)
        elif node.op == "placeholder":
            if is_fixed:
                raise CannotExtract(node)
            plan.saved.append(Saved(node, COPY if node.name in joint.mutated else PLAIN))
            there.add(node)
        elif node in joint.in_backward or joint.may_repeat(node):
            plan.computed.add(node)
            stack.extend(joint.inputs_of(node))
        else:
            raise CannotExtract(node)
    settle_numbers(joint, plan, open_numbers, is_fixed)
    if not is_fixed:
        plan.saved.sort(key=lambda one: joint.order[one.node])
        plan.numbers.sort(key=joint.order.__getitem__)
    return plan


def is_number(node: Node, joint: JointGraph) -> bool:
    """Also objects that are no tensors (the slots of hooks): handed over as they are."""
    value = node.meta.get("val")
    if joint.kinds[node] in (Kind.NUMBER, Kind.INPUT):
        return True
    return (
        joint.kinds[node] not in (Kind.CONSTANT, Kind.VIEW)
        and value is not None
        and not isinstance(value, (tuple, list))
    )


def settle_numbers(joint: JointGraph, plan: Plan, numbers: list[Node], is_fixed: bool) -> None:
    """Numbers that are a size of what is there are read from it; others are saved, or made from those that are."""
    places: dict[Any, tuple[Node, int]] = {}
    for node in [one.node for one in plan.saved]:  # incoming gradients may be undefined, or another stage's
        value = node.meta.get("val")
        for dim, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            places.setdefault(expression_of(size), (node, dim))
    places.pop(None, None)
    stack, there = list(numbers), set(plan.numbers)
    while stack:
        number = stack.pop()
        if number in there:
            continue
        there.add(number)
        place = places.get(expression_of(number.meta.get("val")))
        if place is not None:
            plan.sizes[number] = place
        elif not is_fixed:
            plan.numbers.append(number)
        elif joint.kinds[number] is Kind.NUMBER and not any(is_tensor(arg) for arg in number.all_input_nodes):
            plan.computed.add(number)
            stack.extend(number.all_input_nodes)
        else:
            raise CannotExtract(number)


# -- writing the graphs -----------------------------------------------------------------------------------------------


def build_forward(joint: JointGraph, plan: Plan) -> torch.fx.GraphModule:
    """forward(*primals) -> (*outputs, *saved tensors, *saved numbers)"""
    kept = plan.in_forward_order()
    effects = [node for node in joint.nodes if node not in joint.in_backward and has_effect(node)]
    needed = ancestors([*nodes_in(joint.outputs), *[one.node for one in kept], *effects])
    forms = {one.node: one for one in kept}
    graph = Graph()
    made: dict[Node, Node] = {}
    encoded: dict[Node, Node] = {}
    for node in [*joint.primals, *joint.nodes]:
        if node in needed or node.op == "placeholder":
            made[node] = graph.node_copy(node, made.__getitem__)
            if node in forms:
                encoded[node] = forms[node].encode(graph, made[node])
    outputs = [made[value] if isinstance(value, Node) else value for value in joint.outputs]
    graph.output((*outputs, *[encoded[one.node] for one in kept]))
    module = graph_module(joint.module, graph, "Forward")
    module.meta[SAVED_NAMES] = tuple([key_of(one, joint) for one in kept])
    return module


def build_backward(
    joint: JointGraph, plan: Plan, placeholders: Sequence[tuple[str, Saved | None]]
) -> torch.fx.GraphModule:
    """backward(*saved numbers, *saved tensors, *tangents) -> (*gradients)

    What was recorded in the backward runs in that order; what is computed again, right before its first reader.
    """
    writer = LateWriter(plan.computed)
    made = writer.made
    copies: list[Node] = []
    for name, saved in placeholders:
        if saved is None:
            writer.graph.placeholder(name)
            continue
        there = writer.graph.placeholder(name)
        there.meta = dict(saved.node.meta)
        if saved.form == BITS:
            with torch.no_grad(), shape_cache.mode_of(saved.node.meta["val"]):
                there.meta["val"] = saved.node.meta["val"].to(torch.bool)
            writer.recipes[saved.node] = functools.partial(saved.decode, writer.graph, there)
        else:
            made[saved.node] = there
            if saved.form == COPY:
                with torch.no_grad(), shape_cache.mode_of(saved.node.meta["val"]):
                    there.meta["val"] = saved.node.meta["val"].clone()
                copies.append(there)
    for tangent in joint.tangents:
        made[tangent] = writer.graph.node_copy(tangent, made.__getitem__)
    for number, (source, dim) in plan.sizes.items():
        writer.recipes[number] = functools.partial(size_node, writer, number, source, dim)
    for node, recipe in joint.recipes.items():
        if node in plan.computed:
            writer.recipes[node] = functools.partial(recipe_node, writer, node, recipe)
    for node in joint.nodes:
        if node in plan.computed and node in joint.in_backward:
            writer.write(node)
    writer.graph.output(tuple([writer.write(value) if isinstance(value, Node) else value for value in joint.gradients]))
    tell_layouts(writer.graph, copies)
    return graph_module(joint.module, writer.graph, "Backward")


def value_on_fakes(node: Node) -> Any:
    """What an operator gives for the values of a node's arguments."""
    given = node.all_input_nodes
    args, keywords = torch.fx.node.map_arg((node.args, node.kwargs), lambda arg: arg.meta.get("val"))
    mode = shape_cache.mode_of(*(arg.meta.get("val") for arg in given))
    with torch.no_grad(), mode, symbolic_kernels(any(map(is_symbolic, given))):
        return node.target(*args, **keywords)  # type: ignore[operator]


def tell_layouts(graph: torch.fx.Graph, copies: list[Node]) -> None:
    """Have the nodes know how values lie that come of copies: a copy of a view has no holes."""
    changed = set(copies)
    for node in graph.nodes if changed else ():
        if changed.isdisjoint(node.all_input_nodes):
            continue
        if type(node.target) is not torch._ops.OpOverload and node.target is not operator.getitem:
            continue  # a hook of the program's, or another function with effects: it is not called to learn of shapes
        before = node.meta.get("val")
        if not isinstance(before, (torch.Tensor, tuple, list)):
            continue  # a size, which stays; and what it makes (zeros of that size) is not made of the copy
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
        self.recipes: dict[Node, Callable[[], Node]] = {}  # how else to make a node

    def write(self, wanted: Node) -> Node:
        stack = [wanted]
        while stack:
            node = stack[-1]
            if node in self.made:
                stack.pop()
            elif node in self.recipes:
                stack.pop()
                self.made[node] = self.recipes[node]()
            elif node not in self.allowed:
                raise CannotExtract(node)
            elif missing := [arg for arg in node.all_input_nodes if arg not in self.made]:
                stack.extend(reversed(missing))
            else:
                self.made[stack.pop()] = self.graph.node_copy(node, self.made.__getitem__)
        return self.made[wanted]


def size_node(writer: LateWriter, number: Node, source: Node, dim: int) -> Node:
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


def recipe_node(writer: LateWriter, node: Node, recipe: Recipe) -> Node:
    args, keywords = torch.fx.node.map_arg((recipe.args, recipe.keywords), writer.write)
    if recipe.statistics:
        return recipe.target(Emit(writer.graph, node), *args, **keywords)  # type: ignore[no-any-return]
    made = writer.graph.create_node("call_function", recipe.target, args, keywords, node.name)
    made.meta = dict(node.meta)
    return made


def output_values(module: torch.fx.GraphModule) -> list[Any]:
    return list(next(node for node in reversed(module.graph.nodes) if node.op == "output").args[0])
