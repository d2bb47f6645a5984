"""``backward()`` inside captured code, under ``fullgraph=True``: gradients of the leaves, added to what they have.

Without ``fullgraph`` the graph ends there, and torch runs the pass. In one graph, everything the pass reaches must be
known: leaves that are inputs or made inside, without hooks or other observers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
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
    given = bound(torch.Tensor.backward, args, kwargs)
    return capture_or_break(trace, torch.Tensor.backward, given["self"], given["gradient"], given)


@rule(torch.autograd.backward)
def rule_backward(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    given = bound(torch.autograd.backward, args, kwargs)
    weights = given["grad_tensors"] if given["grad_variables"] is None else given["grad_variables"]
    return capture_or_break(trace, torch.autograd.backward, given["tensors"], weights, given)


def bound(function: Callable[..., Any], args: Args, kwargs: Kwargs) -> Kwargs:
    """All arguments of a call by name, with defaults."""
    given = inspect.signature(function).bind(*args, **kwargs)
    given.apply_defaults()
    return given.arguments


def capture_or_break(trace: Trace, *args: Any) -> object:
    """Capture a backward pass. Inside the code of another pass, torch's engine can run it instead."""
    try:
        return capture_backward(trace, *args)
    except GraphBreak as reason:
        raise needs_real(trace, reason) from None


def capture_backward(trace: Trace, function: object, tensors: Any, weights: Any, given: Kwargs) -> object:
    if not trace.options.fullgraph:
        raise needs_value(trace, function)
    if concrete(trace, given["create_graph"]):
        raise trace.fail(
            "backward(create_graph=True): gradients of leaves would have a history that the graph does not know",
            "use torch.autograd.grad with create_graph=True, or drop fullgraph=True",
        )
    outputs = tensor_sequence(trace, tensors)
    path = path_from(trace, outputs)
    if path.origins:
        raise trace.fail("a backward pass through what an input of the graph was computed from")
    inputs = force(trace, given["inputs"])
    if inputs is None:
        leaves = tuple(dict.fromkeys(leaf for leaf in path.leaves if leaf.requires_grad))
    else:
        leaves = tuple(dict.fromkeys(tensor_sequence(trace, inputs)))
        if not all(leaf.requires_grad and leaf.is_leaf for leaf in leaves):
            raise trace.fail("backward(inputs=…) to tensors that are no leaves", "use torch.autograd.grad")
    infos = [trace.fakes.infos[id(leaf)] for leaf in leaves if id(leaf) in trace.fakes.infos]
    if not leaves or len(infos) < len(leaves):
        raise needs_value(trace, function)
    from_outside = [info for info in infos if info.source is not None]
    watched = gradient_observers(*[info.real for info in from_outside])
    if watched:
        raise trace.fail(f"a backward pass to {watched}")
    trace.guards.add(Computed(gradient_observers, tuple([info.input_source for info in from_outside])), "constant", "")
    if isinstance(force(trace, tensors), torch.Tensor) and weights is not None:
        weights = (weights,)
    from ...program.accumulation import backward_to_leaves  # imported when needed

    retain_graph = concrete(trace, given["retain_graph"])
    return call_function(trace, backward_to_leaves, (outputs, weights, leaves, retain_graph), {})


def gradient_observers(*leaves: torch.Tensor) -> str:
    """What observes the gradients of these leaves (hooks and the like); an empty string if nothing does."""
    if not leaves:
        return ""
    with DisableTorchFunction():
        walk = _native.walk(leaves, tuple([leaf.detach() for leaf in leaves]), (), True, True)
    if walk.refusal is not None:
        return walk.refusal
    return "a leaf that has hooks" if any(hook is not None for hook in walk.hooks()) else ""
