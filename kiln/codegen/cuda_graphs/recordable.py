"""Which graphs can be recorded into a CUDA graph: those whose work is on one GPU, and depends on nothing else.

What reads values on the host would have those of the recorded call in all later ones, so it is refused here. Operators
that wait for the GPU need no rule: they fail while they are recorded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.fx

from ... import operator_functions as operator
from ...platform.torch_operators import OpOverload
from ...platform.torch_pytree import tree_leaves
from ...program.graph_modules import placeholders
from ...program.operators.operator_table import OWN_NAMESPACES, operator_of

DEVICES = frozenset({"cuda"})  # kinds of devices whose work can be recorded
FEWEST_STEPS = 3  # launches and calls of a program that is worth a recording: running one takes as long as two launches


def refusal(module: torch.fx.GraphModule, program: Any) -> str | None:
    """Why the program of a graph cannot be recorded; None if it can."""
    found = device_refusal(module) or calls_refusal(module) or random_refusal(module)
    if found is None and getattr(program, "work_steps", FEWEST_STEPS) < FEWEST_STEPS:
        return f"it is launched as fast as a recording: it has only {program.work_steps} launches and calls"
    return found


def device_of(module: torch.fx.GraphModule) -> torch.device:
    """The device of a graph that is not refused."""
    return next(tensor.device for _, tensor in tensors_of(module) if tensor.device.type in DEVICES)


def device_refusal(module: torch.fx.GraphModule) -> str | None:
    """Tensors on other devices. Those that are the same in all calls do not matter: constants of the program."""
    given = reading_tensors(module)
    devices: set[torch.device] = set()
    for node, tensor in tensors_of(module):
        if tensor.device.type in DEVICES:
            devices.add(tensor.device)
        elif node in given:
            return f"the tensor {node.name} is on the device {tensor.device}"
    if len(devices) != 1:
        return "it works on several GPUs" if devices else "it has no tensors on a GPU"
    return None


def reading_tensors(module: torch.fx.GraphModule) -> set[torch.fx.Node]:
    """The nodes whose values depend on tensors that a call is given."""
    found: set[torch.fx.Node] = set()
    for node in module.graph.nodes:
        is_given = node.op == "placeholder" and isinstance(node.meta.get("val"), torch.Tensor)
        if is_given or not found.isdisjoint(node.all_input_nodes):
            found.add(node)
    return found


def tensors_of(module: torch.fx.GraphModule) -> Iterator[tuple[torch.fx.Node, torch.Tensor]]:
    for node in module.graph.nodes:
        if node.op == "get_attr":
            value: Any = operator.attrgetter(str(node.target))(module)
        elif node.op in ("placeholder", "call_function"):
            value = node.meta.get("val")
        else:
            continue
        yield from ((node, leaf) for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor))


def calls_refusal(module: torch.fx.GraphModule) -> str | None:
    """Calls that do more than launch work on the GPU, as far as anybody knows."""
    for node in placeholders(module):
        if node.meta.get("hook_slot") is not None:
            return f"{node.name} is a slot of hooks"
    for node in module.graph.nodes:
        if node.op in ("placeholder", "output", "get_attr"):
            continue
        if node.op != "call_function":
            return f"{node.name} calls the module or method {node.target}"
        if isinstance(node.target, OpOverload):
            if node.target.namespace not in OWN_NAMESPACES:
                return f"nobody knows what the operator {node.target} does besides launching kernels"
        elif node.target is not operator.getitem and any(
            isinstance(leaf, torch.Tensor) for leaf in tree_leaves([node.meta.get("val"), *values_of(node)])
        ):
            return f"{node.name} calls a Python function, {getattr(node.target, '__name__', node.target)}"
    return None


def values_of(node: torch.fx.Node) -> Iterator[Any]:
    yield from (argument.meta.get("val") for argument in node.all_input_nodes)


def random_refusal(module: torch.fx.GraphModule) -> str | None:
    """ATen's operators and Kiln's kernels draw from the generator that every CUDA graph of torch registers."""
    if any(draws(node) and node.kwargs.get("generator") is not None for node in module.graph.nodes):
        return "it draws random numbers from a generator of its own"
    return None


def draws(node: torch.fx.Node) -> bool:
    return node.op == "call_function" and isinstance(node.target, OpOverload) and operator_of(node.target).random
