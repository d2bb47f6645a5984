"""What nodes of a joint graph hold: tensors and their bytes, symbolic sizes; and which nodes lead to which."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeGuard

import torch
import torch.fx

from ... import operator_functions as operator
from ...platform import torch_symbols
from ...platform.torch_operators import schema_of
from ...platform.torch_tensors import has_symbolic_sizes

Node = torch.fx.Node
UNKNOWN_SIZE = 128  # for sizes that depend on data


def value_of(node: Node) -> Any:
    """The fake tensor, or the number, that a node gives."""
    return node.meta.get("val")


def is_tensor(value: Any) -> TypeGuard[Node]:
    """Whether an argument is a node that gives one tensor."""
    return isinstance(value, Node) and isinstance(value.meta.get("val"), torch.Tensor)


def nodes_in(values: Iterable[Any]) -> list[Node]:
    return [value for value in values if isinstance(value, Node)]


def first_argument(node: Node) -> Node:
    source = node.args[0]
    assert isinstance(source, Node)
    return source


def named_arguments(node: Node) -> dict[str, Any]:
    """The arguments of a call of an operator by the names in its schema."""
    order = [argument.name for argument in schema_of(node.target).arguments]
    return {**dict(zip(order, node.args, strict=False)), **node.kwargs}


def hint_of(value: int | torch.SymInt) -> int:
    """A size as a number: of a symbolic one, the number that it has in the traced call."""
    if isinstance(value, torch.SymInt):
        return int(torch_symbols.hint_of(value)) if torch_symbols.has_hint(value) else UNKNOWN_SIZE
    return int(value)


def has_unhinted_sizes(shape: Iterable[Any]) -> bool:
    """Whether a size depends on data."""
    return any(isinstance(size, torch.SymInt) and not torch_symbols.has_hint(size) for size in shape)


def bytes_of(node: Node) -> int:
    """The memory that a node's result takes; 0 for what is no tensor."""
    value = value_of(node)
    if not isinstance(value, torch.Tensor):
        return 0
    count = value.element_size()
    for size in value.shape:
        count *= hint_of(size)
    return count


def is_symbolic(node: Node) -> bool:
    """Whether a node gives a symbolic size, or a tensor with symbolic sizes."""
    value = value_of(node)
    if isinstance(value, torch.Tensor):
        return has_symbolic_sizes(value)
    return isinstance(value, torch.SymInt)


def expression_of(value: Any) -> Any:
    """The expression of a symbolic size; None for what is not symbolic."""
    return torch_symbols.expression_of(value) if isinstance(value, torch.SymInt) else None


def line_of(node: Node) -> str:
    """The last line of the user's stack, as `file:line, in function`, or nothing."""
    lines = [line.strip() for line in (node.meta.get("stack_trace") or "").splitlines()]
    return next((line for line in reversed(lines) if line.startswith("File")), "")


def dependents(nodes: Iterable[Node]) -> set[Node]:
    """The nodes and all that are computed from them."""
    return reachable(nodes, lambda node: node.users)


def ancestors(nodes: Iterable[Node]) -> set[Node]:
    """The nodes and all that they are computed from."""
    return reachable(nodes, lambda node: node.all_input_nodes)


def sources_of_values(nodes: Iterable[Node]) -> set[Node]:
    """The nodes and all whose values theirs depend on. In training, what batch norm gives does not depend on the
    running statistics that it is given; only their new values do."""
    return reachable(nodes, read_values)


def read_values(node: Node) -> Iterable[Node]:
    if node.target is not operator.getitem or not isinstance(node.args[0], Node):
        return node.all_input_nodes
    called, number = first_argument(node), node.args[1]
    results = RESULTS_OF_TRAINING.get(called.target)
    if results is None or number not in results or named_arguments(called).get("training", True) is not True:
        return node.all_input_nodes
    named = named_arguments(called)
    return nodes_in(value for name, value in named.items() if not name.startswith("running_"))


# The results of batch norms that do not depend on running statistics in training.
RESULTS_OF_TRAINING: dict[Any, range] = {
    torch.ops.aten._native_batch_norm_legit_functional.default: range(3),
    torch.ops.aten._batch_norm_with_update_functional.default: range(4),
}


def reachable(nodes: Iterable[Node], neighbours: Callable[[Node], Iterable[Node]]) -> set[Node]:
    """The nodes and all that are reached from them."""
    found: set[Node] = set()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack.extend(neighbours(node))
    return found
