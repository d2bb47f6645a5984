"""``torch.autograd.grad`` inside captured code: one graph node that runs a backward pass over what the graph computed.

Fakes have a history of their own, so a backward pass over them tells which gradients there are, what they look like and
what history they have in turn; it frees what eager frees. That history ends at the graph's inputs. So the gradient of
an input is known here only if no other input that has a history is on the path: that history may lead to it. Hooks are
not run while tracing, and those that the graph registers are installed after it, so none may be on the path.
"""

from __future__ import annotations

import functools
import inspect
from dataclasses import field
from typing import Any

import torch
import torch.fx

from ..._native import is_instance as isinstance
from ...platform.light_dataclass import dataclass
from ...platform.torch_dispatch import DisableTorchFunction
from ...platform.torch_tensors import hooks_on
from ..guards.source import Computed
from ..interpreter.call_rules import rule
from ..interpreter.calls import call
from ..shadows.symbolic_numbers import concrete
from ..shadows.tensor_effects import note_effects
from ..shadows.tensors import add_results, prepare, run_fake, tensor_leaves, to_nodes
from ..shadows.wrap import force
from ..state.exceptions import needs_real
from ..state.operations import Args, Kwargs
from ..state.trace import Trace
from ..state.values import GraphBreak, TensorInfo
from ..torch.overrides import overriding_arguments
from ..torch.tensor_attributes import guard_flag
from .function_backward import is_stand_in

FLAGS = ("retain_graph", "create_graph", "allow_unused", "materialize_grads")
NAME = "torch.autograd.grad"


def gradients(outputs: tuple[Any, ...], inputs: tuple[Any, ...], grad_outputs: Any, **flags: Any) -> tuple[Any, ...]:
    """In graphs: ``torch.autograd.grad``."""
    with DisableTorchFunction():
        found: tuple[Any, ...] = torch.autograd.grad(outputs, inputs, grad_outputs, **flags)
        return found


torch.fx.node.has_side_effect(gradients)  # it frees what was saved


@rule(torch.autograd.grad)
def rule_grad(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    try:
        return capture_grad(trace, args, kwargs)
    except GraphBreak as reason:
        raise needs_real(trace, reason) from None


def capture_grad(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    try:
        given = signature().bind(*args, **kwargs)
    except TypeError:
        raise trace.fail(f"{NAME} with arguments that do not fit") from None
    given.apply_defaults()
    values = given.arguments
    flags = {name: concrete(trace, values[name]) for name in FLAGS}
    outputs, inputs = (tensor_sequence(trace, values[name]) for name in ("outputs", "inputs"))
    weights = prepare(trace, values["grad_outputs"])
    if concrete(trace, values["is_grads_batched"]) or not concrete(trace, values["only_inputs"]):
        raise trace.fail(f"{NAME} with these options")
    if trace.overrides.modes or overriding_arguments(trace, tensor_leaves((outputs, inputs, weights))):
        raise trace.fail(f"{NAME} under a torch-function mode or on tensors with __torch_function__")
    written = check_path(trace, outputs, inputs)
    result = run_fake(trace, torch.autograd.grad, (outputs, inputs, weights), flags)
    function = gradients if written else torch.autograd.grad  # user code may raise
    note_effects(trace, function, (), {}, tensor_leaves((outputs, inputs, weights)), [])
    arguments = to_nodes(trace, (outputs, inputs, weights))
    node = trace.graph.call_function(gradients, arguments, flags)
    node.meta["stack_trace"] = trace.stack_trace()
    node.meta["example_value"] = result
    return add_results(trace, result, node)


@functools.cache
def signature() -> inspect.Signature:
    return inspect.signature(torch.autograd.grad)


def tensor_sequence(trace: Trace, value: object) -> tuple[torch.Tensor, ...]:
    """A tensor, or a sequence of tensors, as a tuple."""
    value = force(trace, value)
    parts = (value,) if isinstance(value, torch.Tensor) else prepare(trace, call(trace, tuple, (value,), {}))
    if not all(isinstance(part, torch.Tensor) for part in parts):
        raise trace.fail(f"{NAME} of something that is no tensor")
    return parts


@dataclass
class BackwardPath:
    """What a backward pass from some tensors reaches, inside the graph."""

    nodes: set[object] = field(default_factory=set)
    leaves: list[torch.Tensor] = field(default_factory=list)
    origins: list[TensorInfo] = field(default_factory=list)  # inputs that have a history


def path_from(trace: Trace, outputs: tuple[torch.Tensor, ...]) -> BackwardPath:
    path = BackwardPath(leaves=[output for output in outputs if output.grad_fn is None])
    pending = [output.grad_fn for output in outputs if output.grad_fn is not None]
    while pending:
        node = pending.pop()
        if node in path.nodes:
            continue
        path.nodes.add(node)
        if node in trace.autograd.origins:
            path.origins.append(trace.autograd.origins[node])
        elif hasattr(node, "variable"):
            path.leaves.append(node.variable)
        else:
            pending += [following for following, _ in node.next_functions if following is not None]
    return path


def check_path(trace: Trace, outputs: tuple[torch.Tensor, ...], inputs: tuple[torch.Tensor, ...]) -> bool:
    """Break the graph where the history of fakes is not enough; returns whether user code is on the path."""
    if trace.autograd.approximate_history:
        raise trace.fail(f"{NAME} after an operation of whose gradient only real tensors know")
    path = path_from(trace, outputs)
    for registration in trace.hooks.registrations.values():
        on_path = registration.grad_fn in path.nodes or any(registration.info.fake is tensor for tensor in inputs)
        if registration.slot is not None and not registration.removed and on_path:
            raise trace.fail(f"{NAME} through a tensor that got a hook in the same graph")
    with_history = [info for info in map(trace.tensor_info, inputs) if keeps_its_history(trace, info)]
    if any(origin is not info for origin in path.origins for info in with_history):
        raise trace.fail(f"{NAME} of an input of the graph through another input that has a history")
    known = [trace.fakes.infos[id(leaf)] for leaf in path.leaves if id(leaf) in trace.fakes.infos]
    for info in dict.fromkeys([*with_history, *path.origins, *known]):
        guard_flag(trace, info, "is_leaf")
    if with_history:
        if have_hooks(*[info.real for info in with_history]):
            raise trace.fail(f"{NAME} of an input that has hooks")
        trace.guards.add(Computed(have_hooks, tuple([info.input_source for info in with_history])), "constant", False)
    return any(is_stand_in(node) for node in path.nodes)


def keeps_its_history(trace: Trace, info: TensorInfo) -> bool:
    """Whether a tensor is an input that still has the history it came with."""
    if info.source is None or not info.fake.requires_grad:
        return False
    return info.fake.grad_fn is None or trace.autograd.origins.get(info.fake.grad_fn) is info


def have_hooks(*tensors: torch.Tensor) -> bool:
    """Whether a backward pass to these tensors runs hooks of theirs."""
    with DisableTorchFunction():
        return any([hooks_on(tensor) for tensor in tensors])
