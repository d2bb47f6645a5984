"""What the nodes of a joint graph are: which are free to compute again, which are cheap, which must never run twice.

The partitioners look at nothing else. What an operator costs is in the operator table.
"""

from __future__ import annotations

import enum
import operator
from collections.abc import Iterable
from typing import Any

import torch
import torch.fx

from ...program.operators.operator_table import Cost, find_operator

aten = torch.ops.aten
Node = torch.fx.Node


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
NUMBER_FUNCTIONS = frozenset(
    {aten.sym_size.int, aten.sym_stride.int, aten.sym_storage_offset.default, aten.sym_numel.default}
)


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
    has_one = called.has_effect if called is not None else node.is_impure()
    return has_one or bool(node.meta.get("effect"))


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
    if node.target in NUMBER_FUNCTIONS or isinstance(value, (int, float, torch.SymInt, torch.SymFloat, torch.SymBool)):
        is_read_from_data = called is not None and node.target not in NUMBER_FUNCTIONS
        return Kind.EXPENSIVE if is_read_from_data else Kind.NUMBER
    kind = operator_kind(node.target)
    exception = EXCEPTIONS.get(called.name) if called is not None else None
    return kind if exception is None else exception(node, kind)


def named_arguments(node: Node) -> dict[str, Any]:
    order = [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]
    return {**dict(zip(order, node.args, strict=False)), **node.kwargs}


def batch_norm_kind(node: Node, kind: Kind) -> Kind:
    """In training this form changes the running statistics without saying so."""
    given = named_arguments(node)
    return Kind.EXPENSIVE if given.get("training") and given.get("running_mean") is not None else kind


def conversion_kind(node: Node, kind: Kind) -> Kind:
    """Between devices it is a transfer; where it says that it may return its input, it converts all the same."""
    source, value = node.args[0].meta.get("val"), node.meta.get("val")  # type: ignore[union-attr]
    same = not isinstance(source, torch.Tensor) or not isinstance(value, torch.Tensor) or source.device == value.device
    return Kind.CHEAP if same else Kind.EXPENSIVE


def as_strided_kind(node: Node, kind: Kind) -> Kind:
    """Counts from the start of the memory, which for an input may be elsewhere than where its copy starts."""
    return Kind.EXPENSIVE if root_of(node.args[0]).op == "placeholder" else kind  # type: ignore[arg-type]


def index_kind(node: Node, kind: Kind) -> Kind:
    """By a mask, how many elements come out is known only when it runs."""
    value = node.meta.get("val")
    return Kind.EXPENSIVE if isinstance(value, torch.Tensor) and has_free_numbers(value.shape) else kind


EXCEPTIONS = {
    "native_batch_norm": batch_norm_kind,
    "_to_copy": conversion_kind,
    "to": conversion_kind,
    "as_strided": as_strided_kind,
    "index": index_kind,
}


def is_view(node: Node) -> bool:
    """Whether a node shares the memory of its first argument; also one of several views made at once."""
    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        return is_view(node.args[0])  # type: ignore[arg-type]
    return operator_kind(node.target) is Kind.VIEW and getattr(node.target, "_opname", "") != "to"


def root_of(node: Node) -> Node:
    """The node whose memory this one shows."""
    while is_view(node):
        node = node.args[0]  # type: ignore[assignment]
    return node


# -- sizes ------------------------------------------------------------------------------------------------------------


def hint_of(value: Any, fallback: int = 128) -> int:
    """A size as a number: of a symbolic one its example; one that only the data tell counts as some."""
    if isinstance(value, torch.SymInt):
        return int(value.node.hint) if value.node.has_hint() else fallback
    return int(value)


def has_free_numbers(shape: Iterable[Any]) -> bool:
    return any(isinstance(size, torch.SymInt) and not size.node.has_hint() for size in shape)


def bytes_of(node: Node) -> int:
    """The memory that a node's result takes; 0 for what is no tensor."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return 0
    count = value.element_size()
    for size in value.shape:
        count *= hint_of(size)
    return count


def is_tensor(node: Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def is_symbolic(node: Node) -> bool:
    """Whether a number is symbolic, or one of those that say how a tensor lies."""
    value = node.meta.get("val")
    return value._has_symbolic_sizes_strides if is_tensor(node) else isinstance(value, torch.SymInt)


def expression_of(value: Any) -> Any:
    """What a symbolic size is, to find it again elsewhere; None for what is not symbolic."""
    return value.node.expr if isinstance(value, torch.SymInt) else None
