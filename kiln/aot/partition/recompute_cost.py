"""The cost of computing nodes of a joint graph again: which are free, which are cheap, which must never run twice.

What an operator costs is in the operator table.
"""

from __future__ import annotations

import enum
from typing import Any

import torch
import torch.fx

from ... import operator_functions as operator
from ...program.operators.operator_table import Cost, find_operator, operator_of, overloads_of
from .node_values import Node, first_argument, has_unhinted_sizes, is_tensor, named_arguments

aten = torch.ops.aten


class CostClass(enum.Enum):
    """How much it takes to compute a node once more."""

    INPUT = "a placeholder"
    CONSTANT = "an attribute of the module, there in both graphs"
    NUMBER = "no tensor: a size, or arithmetic on sizes"
    VIEW = "no work: the same memory seen in another way"
    PART = "one result of an operator that has several"
    CHEAP = "one pass over memory without a sum"
    PASS = "a few passes over memory: a normalisation along rows, a lookup"
    EXPENSIVE = "all other work: products, convolutions, attention, sorting, users' operators"
    RANDOM = "draws from a generator"
    EFFECT = "does something besides computing its result"


COST_CLASSES = {
    Cost.VIEW: CostClass.VIEW,
    Cost.CHEAP: CostClass.CHEAP,
    Cost.PASSES: CostClass.PASS,
    Cost.EXPENSIVE: CostClass.EXPENSIVE,
}


def operator_cost(target: Any) -> CostClass:
    """The cost class of a call, whatever its arguments."""
    called = find_operator(target)
    if called is None:
        return CostClass.EXPENSIVE
    return CostClass.RANDOM if called.random else COST_CLASSES[called.cost]


def has_effect(node: Node) -> bool:
    """Whether a node has to run, in its place, even if its result is not read: hooks, assertions, random numbers."""
    if node.op not in ("call_function", "call_module", "call_method"):
        return False
    called = find_operator(node.target)
    return called.has_effect if called is not None else node.is_impure()


def cost_class_of(node: Node) -> CostClass:
    if node.op != "call_function":
        return {"placeholder": CostClass.INPUT, "get_attr": CostClass.CONSTANT}.get(node.op, CostClass.EFFECT)
    called = find_operator(node.target)
    if called is not None and called.random:
        return CostClass.RANDOM
    if has_effect(node):
        return CostClass.EFFECT
    if node.target is operator.getitem:
        return CostClass.PART
    value = node.meta.get("val")
    gives_size = called is not None and called.gives_size
    if gives_size or isinstance(value, (int, float, torch.SymInt, torch.SymFloat, torch.SymBool)):
        is_read_from_data = called is not None and not gives_size
        return CostClass.EXPENSIVE if is_read_from_data else CostClass.NUMBER
    cost = operator_cost(node.target)
    exception = called.call_cost if called is not None else None
    return cost if exception is None else exception(node, cost)


def batch_norm_cost(node: Node, cost: CostClass) -> CostClass:
    """In training this form changes the running statistics without saying so."""
    given = named_arguments(node)
    return CostClass.EXPENSIVE if given.get("training") and given.get("running_mean") is not None else cost


def conversion_cost(node: Node, cost: CostClass) -> CostClass:
    """Between devices it is a transfer; otherwise cheap, also the form that may return its input."""
    source = node.args[0]
    same = not is_tensor(source) or not is_tensor(node) or source.meta["val"].device == node.meta["val"].device
    return CostClass.CHEAP if same else CostClass.EXPENSIVE


def as_strided_cost(node: Node, cost: CostClass) -> CostClass:
    """Counts from the start of the memory, which for an input may be elsewhere than where its copy starts."""
    return CostClass.EXPENSIVE if root_of(first_argument(node)).op == "placeholder" else cost


def index_cost(node: Node, cost: CostClass) -> CostClass:
    """By a mask, how many elements come out is known only when it runs."""
    value = node.meta.get("val")
    return CostClass.EXPENSIVE if isinstance(value, torch.Tensor) and has_unhinted_sizes(value.shape) else cost


operator_of(aten.native_batch_norm.default).call_cost = batch_norm_cost
operator_of(aten.as_strided.default).call_cost = as_strided_cost
operator_of(aten.index.Tensor).call_cost = index_cost
for _overload in (*overloads_of(aten.to), *overloads_of(aten._to_copy)):
    operator_of(_overload).call_cost = conversion_cost


def is_view(node: Node) -> bool:
    """Whether a node shares the memory of its first argument; also one of several views made at once."""
    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        return is_view(first_argument(node))
    called = find_operator(node.target)
    if called is None or called.call_cost is conversion_cost:
        return False
    return operator_cost(node.target) is CostClass.VIEW


def root_of(node: Node) -> Node:
    """The node whose memory this one shows."""
    while is_view(node):
        node = first_argument(node)
    return node
