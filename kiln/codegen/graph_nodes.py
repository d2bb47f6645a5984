"""New nodes in graphs, with the (fake) values that they give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.fx

from ..platform.torch_pytree import tree_leaves
from ..program.shapes import shape_cache

Node = torch.fx.Node
KEPT = ("stack_trace", "region", "seq_nr")


def add_call(like: Node, target: Any, *args: Any, name: str | None = None, **kwargs: Any) -> Node:
    """A call of an operator where the graph is inserted to, for a node whose place in the program it shares.

    In joint graphs it needs a name that does not depend on what else the graph has: another backward of the same
    forward finds saved values by the names of their nodes.
    """
    made = like.graph.create_node("call_function", target, args, kwargs, name)
    made.meta = {key: like.meta[key] for key in KEPT if key in like.meta} | {"val": value_of(target, args, kwargs)}
    return made


def value_of(target: Any, args: Any, kwargs: Any, known: Mapping[Node, Any] | None = None) -> Any:
    """What an operator gives for the values of these arguments; ``known`` has those of nodes that are to change."""
    instead = known or {}
    values = torch.fx.node.map_arg((args, kwargs), lambda node: instead[node] if node in instead else node.meta["val"])
    fakes = [value for value in tree_leaves(values) if isinstance(value, torch.Tensor)]
    with torch.no_grad(), shape_cache.mode_of(*fakes):
        return target(*values[0], **values[1])
