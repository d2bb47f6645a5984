"""A joint graph in two parts, as any partitioner returns them, and what is saved between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.fx

from ...platform.light_dataclass import dataclass
from ...program.graph import count_operations
from ...program.graph_modules import output_values, placeholders
from ...report.stages import stage
from .backward_extraction import saved_keys
from .node_values import is_tensor
from .saved_report import saved_bytes


@dataclass(frozen=True)
class PartitionedGraph:
    """``forward(*primals) -> (*outputs, *saved tensors, *saved numbers)`` and
    ``backward(*saved numbers, *saved tensors, *tangents) -> gradients``."""

    forward: torch.fx.GraphModule
    backward: torch.fx.GraphModule
    output_count: int  # of the forward, without what it saves
    saved_keys: tuple[str, ...]  # as `extract_backward` takes them
    saved_tensors: int
    saved_numbers: int


def partition_graph(
    joint: torch.fx.GraphModule, output_count: int, partitioner: Callable[..., Any]
) -> PartitionedGraph:
    inputs = [node.meta.get("val") for node in placeholders(joint)]
    with stage("partition") as record:
        forward, backward = partitioner(joint, inputs, num_fwd_outputs=output_count)
        if record is not None:
            record.sizes["forward nodes"] = count_operations(forward.graph)
            record.sizes["backward nodes"] = count_operations(backward.graph)
            record.sizes["bytes saved"] = saved_bytes(forward, output_count).activation_bytes
    saved = output_values(forward)[output_count:]
    tensors = sum(is_tensor(node) for node in saved)
    keys = saved_keys(forward, output_count)
    return PartitionedGraph(forward, backward, output_count, keys, tensors, len(saved) - tensors)
