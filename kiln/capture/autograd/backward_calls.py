"""``backward()`` inside captured code, under ``fullgraph=True``: gradients of the leaves, added to what they have.

Without ``fullgraph`` the graph ends there, and torch runs the pass. In one graph, everything the pass reaches must be
known: leaves that are inputs or made inside, without hooks or other observers.
"""

from __future__ import annotations

from typing import Any

import torch

from ... import _native
from ..._native import is_instance as isinstance
from ...platform.torch_dispatch import DisableTorchFunction
from ..guards.source import Computed
from ..interpreter.call_rules import rule
from ..interpreter.calls import call_function
from ..shadows.symbolic_numbers import concrete
from ..shadows.wrap import force
from ..state.exceptions import needs_real
from ..state.operations import Args, Kwargs
from ..state.trace import Trace
from ..state.values import GraphBreak
from ..torch.torch_calls import handler, needs_value
from .gradients import path_from, tensor_sequence


@handler(torch.Tensor.backward)
def rule_tensor_backward(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    return capture_or_break(trace, torch.Tensor.backward, *arguments_of_tensor(*args, **kwargs))


@rule(torch.autograd.backward)
def rule_backward(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    return capture_or_break(trace, torch.autograd.backward, *arguments(*args, **kwargs))


def arguments_of_tensor(
    tensor: Any, gradient: Any = None, retain_graph: Any = None, create_graph: Any = False, inputs: Any = None
) -> Args:
    return tensor, gradient, retain_graph, create_graph, inputs


def arguments(
    tensors: Any,
    grad_tensors: Any = None,
    retain_graph: Any = None,
    create_graph: Any = False,
    grad_variables: Any = None,
    inputs: Any = None,
) -> Args:
    return tensors, grad_tensors if grad_variables is None else grad_variables, retain_graph, create_graph, inputs


def capture_or_break(trace: Trace, *args: Any) -> object:
    """Capture a backward pass. Inside the code of another pass, torch's engine can run it instead."""
    try:
        return capture_backward(trace, *args)
    except GraphBreak as reason:
        raise needs_real(trace, reason) from None


def capture_backward(
    trace: Trace, function: object, tensors: Any, weights: Any, retain_graph: Any, create_graph: Any, inputs: Any
) -> object:
    if not trace.options.fullgraph:
        raise needs_value(trace, function)
    if concrete(trace, create_graph):
        raise trace.fail(
            "backward(create_graph=True): gradients of leaves would have a history that the graph does not know",
            "use torch.autograd.grad with create_graph=True, or drop fullgraph=True",
        )
    outputs = tensor_sequence(trace, tensors)
    way = path_from(trace, outputs)
    if way.origins:
        raise trace.fail("a backward pass through what an input of the graph was computed from")
    if force(trace, inputs) is None:
        leaves = tuple(dict.fromkeys(leaf for leaf in way.leaves if leaf.requires_grad))
    else:
        leaves = tuple(dict.fromkeys(tensor_sequence(trace, inputs)))
        if not all(leaf.requires_grad and leaf.is_leaf for leaf in leaves):
            raise trace.fail("backward(inputs=…) to tensors that are no leaves", "use torch.autograd.grad")
    infos = [trace.fakes.infos[id(leaf)] for leaf in leaves if id(leaf) in trace.fakes.infos]
    if not leaves or len(infos) < len(leaves):
        raise needs_value(trace, function)
    given = [info for info in infos if info.source is not None]
    watched = gradient_observers(*[info.real for info in given])
    if watched:
        raise trace.fail(f"a backward pass to {watched}")
    trace.guards.add(Computed(gradient_observers, tuple([info.input_source for info in given])), "constant", "")
    if isinstance(force(trace, tensors), torch.Tensor) and weights is not None:
        weights = (weights,)
    from ...program.accumulation import backward_to_leaves  # imported when needed

    return call_function(trace, backward_to_leaves, (outputs, weights, leaves, concrete(trace, retain_graph)), {})


def gradient_observers(*leaves: torch.Tensor) -> str:
    """What observes the gradients of these leaves (hooks and the like); an empty string if nothing does."""
    if not leaves:
        return ""
    with DisableTorchFunction():
        walk = _native.walk(leaves, tuple([leaf.detach() for leaf in leaves]), (), True, True)
    if walk.refusal is not None:
        return walk.refusal
    return "a leaf that has hooks" if any(hook is not None for hook in walk.hooks()) else ""
