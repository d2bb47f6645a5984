"""What the nodes of a joint graph are: which are free to compute again, which are cheap, which must never run twice.

The partitioners look at nothing else. What an operator costs is in the operator table.
"""

from __future__ import annotations

import enum
import operator
from typing import Any

import torch
import torch.fx

from ...platform.torch_operators import name_of_target
from ...program.operators.operator_table import Cost, find_operator, operator_of, overloads_of
from .node_values import Node, first_argument, has_unhinted_sizes, is_tensor, named_arguments

aten = torch.ops.aten


class Kind(enum.Enum):
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


KINDS = {
    Cost.VIEW: Kind.VIEW,
    Cost.CHEAP: Kind.CHEAP,
    Cost.PASSES: Kind.PASS,
    Cost.EXPENSIVE: Kind.EXPENSIVE,
}


def operator_kind(target: Any) -> Kind:
    """The kind of all nodes that call this, before looking at their arguments."""
    called = find_operator(target)
    if called is None:
        return Kind.EXPENSIVE
    return Kind.RANDOM if called.random else KINDS[called.cost]


def has_effect(node: Node) -> bool:
    """Whether a node has to run, in its place, even if nobody reads its result: hooks, assertions, random numbers."""
    if node.op not in ("call_function", "call_module", "call_method"):
        return False
    called = find_operator(node.target)
    return called.has_effect if called is not None else node.is_impure()


def kind_of(node: Node) -> Kind:
    if node.op != "call_function":
        return {"placeholder": Kind.INPUT, "get_attr": Kind.CONSTANT}.get(node.op, Kind.EFFECT)
    called = find_operator(node.target)
    if called is not None and called.random:
        return Kind.RANDOM
    if has_effect(node):
        return Kind.EFFECT
    if node.target is operator.getitem:
        return Kind.PART
    value = node.meta.get("val")
    gives_size = called is not None and called.gives_size
    if gives_size or isinstance(value, (int, float, torch.SymInt, torch.SymFloat, torch.SymBool)):
        return Kind.NUMBER if gives_size or called is None else Kind.EXPENSIVE  # an operator reads it from data
    kind = operator_kind(node.target)
    exception = called.call_cost if called is not None else None
    return kind if exception is None else exception(node, kind)


def batch_norm_kind(node: Node, kind: Kind) -> Kind:
    """In training this form changes the running statistics without saying so."""
    given = named_arguments(node)
    return Kind.EXPENSIVE if given.get("training") and given.get("running_mean") is not None else kind


def conversion_kind(node: Node, kind: Kind) -> Kind:
    """Between devices it is a transfer; where it says that it may return its input, it converts all the same."""
    source = node.args[0]
    same = not is_tensor(source) or not is_tensor(node) or source.meta["val"].device == node.meta["val"].device
    return Kind.CHEAP if same else Kind.EXPENSIVE


def as_strided_kind(node: Node, kind: Kind) -> Kind:
    """Counts from the start of the memory, which for an input may be elsewhere than where its copy starts."""
    return Kind.EXPENSIVE if root_of(first_argument(node)).op == "placeholder" else kind


def index_kind(node: Node, kind: Kind) -> Kind:
    """By a mask, how many elements come out is known only when it runs."""
    value = node.meta.get("val")
    return Kind.EXPENSIVE if isinstance(value, torch.Tensor) and has_unhinted_sizes(value.shape) else kind


operator_of(aten.native_batch_norm.default).call_cost = batch_norm_kind
operator_of(aten.as_strided.default).call_cost = as_strided_kind
operator_of(aten.index.Tensor).call_cost = index_kind
for _overload in (*overloads_of(aten.to), *overloads_of(aten._to_copy)):
    operator_of(_overload).call_cost = conversion_kind


def is_view(node: Node) -> bool:
    """Whether a node shares the memory of its first argument; also one of several views made at once."""
    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        return is_view(first_argument(node))
    return operator_kind(node.target) is Kind.VIEW and name_of_target(node.target) != "to"


def root_of(node: Node) -> Node:
    """The node whose memory this one shows."""
    while is_view(node):
        node = first_argument(node)
    return node
