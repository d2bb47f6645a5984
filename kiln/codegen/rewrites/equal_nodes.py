"""Computes what a graph computes several times only once: autocast converts an activation for each of its readers.

Nodes are merged that call the same operator with the same arguments. Those of the forward stay apart from those of the
backward, since the partitioner decides what is computed again there. Results keep memory of their own, so what is
returned, or is a view of it, is not merged. Values are not kept over many library calls for a second reader.
"""

from __future__ import annotations

import torch
import torch.fx

from ... import operator_functions as operator
from ...program.graph_modules import output_values
from ...program.operators.operator_table import find_operator
from ..program_cache import NotStored, argument, name_of

Node = torch.fx.Node
FARTHEST = 8  # library calls between two nodes that are merged


def merge_equal_nodes(module: torch.fx.GraphModule) -> None:
    """Lets readers of a node read an earlier equal one. The nodes that nothing reads then stay in the graph."""
    returned = memory_of_results(module)
    first: dict[str, tuple[Node, int]] = {}
    calls = 0
    for node in module.graph.nodes:
        called = find_operator(node.target)
        calls += called is not None and called.is_library_call
        if node in returned or not may_merge(node):
            continue
        try:
            key = f"{name_of(node.target)}{argument(node.args)}{argument(node.kwargs)}{node.meta.get('region')}"
        except NotStored:
            continue
        found = first.get(key)
        if found is None or (calls - found[1] > FARTHEST and not is_view(node)):
            first[key] = node, calls
        else:
            node.replace_all_uses_with(found[0])


def may_merge(node: Node) -> bool:
    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        return True
    called = find_operator(node.target)
    return called is not None and not (
        called.mutable or called.has_effect or called.leaves_unwritten or called.counts_from_storage
    )


def is_view(node: Node) -> bool:
    if node.target is operator.getitem:
        return True
    called = find_operator(node.target)
    return called is not None and (called.may_return_views or called.hands_memory_on)


def memory_of_results(module: torch.fx.GraphModule) -> set[Node]:
    """Results, and what they are views of."""
    found: set[Node] = set()
    for value in output_values(module):
        node = value
        while isinstance(node, Node) and node not in found:
            found.add(node)
            node = node.args[0] if node.op == "call_function" and is_view(node) and node.args else None
    return found
