"""Replayed random numbers: a random operation repeated in the backward gives the forward's numbers.

The generator's state is read right before the forward's operation and saved for the backward as a tensor of bytes;
there the operation runs from it, and the generator's own state is then restored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.fx
from torch.fx.node import has_side_effect

from ...program.shapes import shape_cache


def generator_for(device: torch.device) -> torch.Generator:
    """The generator that operations on a device draw from unless they are given one."""
    if device.type == "cuda":
        torch.cuda.init()  # type: ignore[no-untyped-call]
        return torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]
    if device.type not in ("cpu", "meta"):
        raise NotImplementedError(f"the state of the random numbers of {device}")
    return torch.default_generator


@has_side_effect  # has to stay where it is
def current_state(device: torch.device, generator: torch.Generator | None = None) -> torch.Tensor:
    """The state of a generator now, as bytes."""
    return (generator or generator_for(device)).get_state()


def replay(state: torch.Tensor, function: Any, *args: Any, **keywords: Any) -> Any:
    """Call a random operation as if its generator were in a state; the generator is left as it is."""
    generator = keywords.get("generator") or generator_for(device_of(args, keywords))
    before = generator.get_state()
    generator.set_state(state)
    try:
        return function(*args, **keywords)
    finally:
        generator.set_state(before)


def device_of(args: tuple[Any, ...], keywords: dict[str, Any]) -> torch.device:
    """Where an operation runs: the device that it is given, else that of its first tensor."""
    if keywords.get("device") is not None:
        return torch.device(keywords["device"])
    tensors = [arg for arg in (*args, *keywords.values()) if isinstance(arg, torch.Tensor)]
    return tensors[0].device if tensors else torch.get_default_device()


def capture_state(node: torch.fx.Node) -> torch.fx.Node:
    """A node with the state of the generator right before a random node."""
    graph, generator = node.graph, node.kwargs.get("generator")
    keywords: dict[str, Any] = {} if generator is None else {"generator": generator}
    value: Any = node.meta["val"]
    value = value[0] if isinstance(value, (tuple, list)) else value
    with graph.inserting_before(node):
        state = graph.create_node("call_function", current_state, (value.device,), keywords, f"{node.name}_state")
    example = (generator if isinstance(generator, torch.Generator) else generator_for(value.device)).get_state()
    state.meta = {key: node.meta[key] for key in ("region", "stack_trace", "seq_nr") if key in node.meta}
    with shape_cache.mode_of(value):
        state.meta["val"] = torch.empty(example.shape, dtype=example.dtype, device=example.device)
    return state


def tie_random_pairs(joint_module: torch.fx.GraphModule, pairs: Mapping[torch.fx.Node, torch.fx.Node]) -> None:
    """Have random nodes of the backward draw the numbers of the forward's nodes that they repeat."""
    states: dict[torch.fx.Node, torch.fx.Node] = {}
    for node, first in pairs.items():
        if first not in states:
            states[first] = capture_state(first)
        target: Any = node.target
        node.args = (states[first], target, *node.args)
        node.target = replay
    joint_module.recompile()
