"""The device that a graph's kernels are for. Values on other devices only pass through calls of ATen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import torch
import torch.fx

from .. import operator_functions as operator

CPU = torch.device("cpu")


def device_of_graph(module: torch.fx.GraphModule) -> torch.device:
    """The CUDA device of a graph's values, if there is one such device and most values are on it; otherwise the CPU.
    Beside tensors with axes those without do not count: eager takes them from the CPU for an operator on any device."""
    if all(value.device == CPU for value in given_tensors(module)) and any(True for _ in given_tensors(module)):
        return CPU
    made = (node.meta.get("val") for node in module.graph.nodes if node.op == "call_function")
    tensors = [*given_tensors(module), *(value for value in made if isinstance(value, torch.Tensor))]
    found = Counter(value.device for value in tensors if value.dim()) or Counter(value.device for value in tensors)
    on_cuda = [device for device in found if device.type == "cuda"]
    is_on_gpu = len(on_cuda) == 1 and found[on_cuda[0]] >= found[CPU] and torch.version.hip is None
    return on_cuda[0] if is_on_gpu else CPU


def given_tensors(module: torch.fx.GraphModule) -> Iterator[torch.Tensor]:
    """The (fake) tensors that are inputs or attributes of a graph."""
    for node in module.graph.find_nodes(op="placeholder"):
        if isinstance(value := node.meta.get("val"), torch.Tensor):
            yield value
    for node in module.graph.find_nodes(op="get_attr"):
        if isinstance(value := operator.attrgetter(str(node.target))(module), torch.Tensor):
            yield value
