"""Facts about a graph's nodes that need no lowering: views, random operators, numbers out of range."""

from __future__ import annotations

import math
from typing import Any

import sympy
import torch
import torch.fx

from .. import operator_functions as operator
from ..loops.tensor_layouts import FLOAT8_TYPES
from ..loops.tensor_views import DynamicFloat
from ..platform.torch_operators import Argument
from ..platform.torch_pytree import tree_leaves
from ..program.operators.operator_table import Operator, find_operator
from .registry import rule_for

aten = torch.ops.aten
Node = torch.fx.Node
COPIES = frozenset((aten._to_copy.default, aten.clone.default, aten.copy.default, aten.cat.default))
NUMBERS = (int, float, sympy.Expr, DynamicFloat)
SCALARS = ("number", "Optional[number]", "List[number]", "Tensor")  # types of arguments that numbers are given for


def fits_type(node: Node, argument: Argument, given: Any) -> bool:
    """Whether numbers among an operator's arguments are within the range of the type that it computes in. Dynamic
    numbers are, if the type holds every int64. The ``other`` operand of floats need not be: it becomes infinite."""
    numbers = [one for one in (given if type(given) is list else [given]) if isinstance(one, NUMBERS)]
    if not numbers or str(argument.type) not in SCALARS:
        return True
    tensors = [one for one in tree_leaves(node.meta["val"]) if isinstance(one, torch.Tensor)]
    if tensors[0].dtype is torch.bool:
        tensors = [one.meta["val"] for one in node.all_input_nodes if isinstance(one.meta.get("val"), torch.Tensor)]
    dtype = tensors[0].dtype if tensors else torch.bool
    if dtype is torch.bool or (dtype.is_floating_point and argument.name == "other"):
        return True
    limits = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)

    def holds(number: Any) -> bool:
        if isinstance(number, (sympy.Expr, DynamicFloat)):
            return bool(limits.max >= torch.iinfo(torch.int64).max)
        return bool(limits.min <= number <= limits.max) or (dtype.is_floating_point and not math.isfinite(number))

    return all(map(holds, numbers))


def computes_on_float8(node: Node) -> bool:
    """Whether an operator computes on float8, for which eager has copies and casts only, and raises an error."""
    if node.target in COPIES:
        return False
    given = [one.meta.get("val") for one in node.all_input_nodes]
    tensors = (one for one in tree_leaves([node.meta.get("val"), given]) if isinstance(one, torch.Tensor))
    return any(one.dtype in FLOAT8_TYPES for one in tensors)


def changes_values_of_graph(node: Node, called: Operator) -> bool:
    """Whether an operator that changes running statistics without saying so (cuDNN's batch norm) may change what the
    graph computes or reads elsewhere. An input that it alone reads may change where it is."""
    names = [argument.name for argument in called.arguments]
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    statistics = [one for name, one in given.items() if name.startswith("running_") and isinstance(one, Node)]
    if not given.get("training", True):
        return False
    return any(
        one.op != "placeholder" or any(user is not node and user.op != "output" for user in one.users)
        for one in statistics
    )


def getitem_arguments(node: Node) -> tuple[Node, Any]:
    """The node that a getitem node takes an item of, and the item's index."""
    source, index = node.args
    assert isinstance(source, Node)
    return source, index


def first_argument(node: Node) -> Node:
    source = node.args[0]
    assert isinstance(source, Node)
    return source


def is_view_node(node: Node) -> bool:
    """Whether a node is a view of its first argument, or one of several such views."""
    if node.target is operator.getitem:
        node = first_argument(node)
    called = find_operator(node.target)
    return called is not None and called.is_view


def may_be_kernel(node: Node) -> bool:
    """Whether kernels may compute a node: it has a lowering. Random numbers are ATen's on the CPU."""
    called = find_operator(node.target)
    if called is None or rule_for(node, called) is None:
        return False
    values = tree_leaves(node.meta.get("val")) if called.random else ()
    return not any(isinstance(value, torch.Tensor) and value.device.type == "cpu" for value in values)


def is_needed_in_memory(node: Node) -> bool:
    """Whether a node, or a view of it, is an argument of a call or a result of the graph."""
    for user in node.users:
        if user.op == "output" or (not may_be_kernel(user) and not is_view_node(user)):
            return True
        if is_view_node(user) and is_needed_in_memory(user):
            return True
    return False


def storage_of(node: Node) -> tuple[Node, Any]:
    """The node whose memory a value is in, and which of its results that is."""
    while is_view_node(node):
        node = first_argument(node)
    if node.target is operator.getitem:
        return getitem_arguments(node)
    return node, None
