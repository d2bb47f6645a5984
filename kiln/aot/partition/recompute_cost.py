"""What the nodes of a joint graph are: which are free to compute again, which are cheap, which must never run twice.

The partitioners look at nothing else, so a new operator is a new line in a table here. An operator nobody knows (a
user's own) is expensive: it is never run twice.
"""

from __future__ import annotations

import enum
import functools
import operator
from collections.abc import Iterable
from typing import Any

import torch
import torch.fx

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


def names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Moves data or fills memory; what has the tag `pointwise` need not be here.
CHEAP_NAMES = names(
    "_to_copy to cat stack constant_pad_nd flip roll repeat tril triu copy fill full full_like zeros zeros_like ones "
    "ones_like new_zeros new_ones new_full arange eye scalar_tensor linspace slice_scatter select_scatter "
    "diagonal_scatter as_strided_scatter lift_fresh_copy glu hardswish log_sigmoid_forward _prelu_kernel floor_divide "
    "empty empty_like empty_strided empty_permuted new_empty "
    "complex polar expand_copy view_copy permute_copy convert_element_type iota broadcast_tensors"
)
PASS_NAMES = names(
    "native_layer_norm native_group_norm _fused_rms_norm _softmax _log_softmax native_batch_norm "
    "_native_batch_norm_legit _native_batch_norm_legit_functional _native_batch_norm_legit_no_training "
    "embedding index index_select gather reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d "
    "replication_pad2d replication_pad3d upsample_nearest1d upsample_nearest2d upsample_nearest3d "
    "digamma lgamma polygamma igamma igammac mvlgamma erfinv"
)
KNOWN_NAMESPACES = ("aten", "prims")
VIEW_NAMES = names("_unsafe_view _reshape_alias reshape contiguous")  # as views, whatever the schema says
NUMBER_FUNCTIONS = frozenset(
    {aten.sym_size.int, aten.sym_stride.int, aten.sym_storage_offset.default, aten.sym_numel.default}
)


@functools.cache
def operator_kind(target: Any) -> Kind:
    """The kind of all nodes that call this, before looking at their arguments."""
    if not isinstance(target, torch._ops.OpOverload):
        return Kind.EXPENSIVE
    if torch.Tag.nondeterministic_seeded in target.tags:
        return Kind.RANDOM
    if target.namespace not in KNOWN_NAMESPACES:
        return Kind.EXPENSIVE
    name, schema = target._schema.name.rpartition("::")[2], target._schema
    if name in VIEW_NAMES or (schema.returns and schema.returns[0].alias_info is not None):
        return Kind.VIEW
    if name in PASS_NAMES or name.startswith("special_"):
        return Kind.PASS
    return Kind.CHEAP if name in CHEAP_NAMES or torch.Tag.pointwise in target.tags else Kind.EXPENSIVE


@functools.cache
def operator_has_effect(target: torch._ops.OpOverload) -> bool:
    """Operators that change an argument, draw random numbers, or raise; of users' own one cannot tell."""
    named = target._opname.startswith("_assert") or target.namespace not in KNOWN_NAMESPACES
    return (
        named or torch.Tag.nondeterministic_seeded in target.tags or torch.fx.Graph().call_function(target).is_impure()
    )


def has_effect(node: Node) -> bool:
    """Whether a node has to run, in its place, even if nobody reads its result: hooks, assertions, random numbers."""
    if node.op not in ("call_function", "call_module", "call_method"):
        return False
    if isinstance(node.target, torch._ops.OpOverload):
        return operator_has_effect(node.target) or bool(node.meta.get("effect"))
    return node.is_impure() or bool(node.meta.get("effect"))


def is_random(node: Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags


def kind_of(node: Node) -> Kind:
    if node.op != "call_function":
        return {"placeholder": Kind.INPUT, "get_attr": Kind.CONSTANT}.get(node.op, Kind.EFFECT)
    if is_random(node):
        return Kind.RANDOM
    if has_effect(node):
        return Kind.EFFECT
    if node.target is operator.getitem:
        return Kind.PART
    value = node.meta.get("val")
    if node.target in NUMBER_FUNCTIONS or isinstance(value, (int, float, torch.SymInt, torch.SymFloat, torch.SymBool)):
        is_read_from_data = isinstance(node.target, torch._ops.OpOverload) and node.target not in NUMBER_FUNCTIONS
        return Kind.EXPENSIVE if is_read_from_data else Kind.NUMBER
    return EXCEPTIONS.get(getattr(node.target, "_opname", ""), lambda _node, kind: kind)(
        node, operator_kind(node.target)
    )


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
