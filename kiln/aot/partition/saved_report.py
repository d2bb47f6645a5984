"""What a forward graph saves for its backward, in bytes, for reports and tests."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.fx

from ...program.graph_modules import output_values
from .node_values import Node, bytes_of, is_tensor, line_of
from .recompute_cost import root_of


class SavedTensor(NamedTuple):
    """A value that a forward keeps for its backward."""

    name: str
    shape: tuple[Any, ...]
    dtype: torch.dtype
    bytes: int
    where: str  # the line of the program that computes it
    is_input: bool  # kept by others as well


class SavedReport(NamedTuple):
    tensors: list[SavedTensor]
    total_bytes: int  # of all memory kept, counted once
    activation_bytes: int  # without inputs of the graph


def saved_bytes(forward_module: torch.fx.GraphModule, num_fwd_outputs: int) -> SavedReport:
    """What a forward saves, and how much memory that is; several views of one memory count once."""
    rows: list[SavedTensor] = []
    sizes: dict[Node, int] = {}
    for node in output_values(forward_module)[num_fwd_outputs:]:
        if isinstance(node, Node) and is_tensor(node):
            root, value = root_of(node), node.meta["val"]
            is_input = root.op == "placeholder"
            rows.append(
                SavedTensor(node.name, tuple(value.shape), value.dtype, bytes_of(node), line_of(node), is_input)
            )
            sizes[root] = max(bytes_of(root), sizes.get(root, 0))
    total = sum(sizes.values())
    return SavedReport(rows, total, total - sum([size for root, size in sizes.items() if root.op == "placeholder"]))
