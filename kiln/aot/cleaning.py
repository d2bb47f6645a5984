"""Small clean-ups of graphs: dead code, and nodes that give back what they get."""

from __future__ import annotations

import torch
import torch.fx

from .kinds import has_effect, is_tensor

aten = torch.ops.aten
Node = torch.fx.Node

SAME = frozenset({aten.detach.default, aten.alias.default})
OWN_INVERSES = frozenset({aten.t.default, aten.transpose.int, aten._conj.default, aten._neg_view.default})


def eliminate_dead(graph: torch.fx.Graph) -> None:
    """Remove what nobody reads and what has no effect besides its result."""
    for node in reversed(graph.nodes):
        if not node.users and node.op not in ("placeholder", "output") and not has_effect(node):
            graph.erase_node(node)


def clean_up(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Read through nodes that give back what they get, and through transposes of transposes; then remove dead code.

    A node that is itself a result stays, for who returns an input means its alias. The module's code is not renewed.
    """
    graph = module.graph
    for node in graph.nodes:
        replacement = read_through(node)
        if replacement is not None:
            node.replace_all_uses_with(replacement, delete_user_cb=lambda user: user.op != "output")
    eliminate_dead(graph)
    return module


def read_through(node: Node) -> Node | None:
    if node.op != "call_function":
        return None
    if node.target in SAME:
        return node.args[0]  # type: ignore[return-value]
    if node.target in OWN_INVERSES:
        inner = node.args[0]
        if isinstance(inner, Node) and inner.target is node.target and sorted_rest(inner) == sorted_rest(node):
            return inner.args[0]  # type: ignore[return-value]
    return None


def sorted_rest(node: Node) -> list[int]:
    """The dimensions that a transpose swaps, counted from the front."""
    rank = node.meta["val"].dim() if is_tensor(node) else 0
    return sorted([dim % rank if rank and isinstance(dim, int) else id(dim) for dim in node.args[1:]])
