"""Opaque calls: hooks, Python backwards and accumulation that the graph calls without capture looking into them.

A graph has opaque calls where a pass has to be one graph and its Python code does what only real tensors and torch's
engine can do: a backward inside a backward, addresses, forward-mode derivatives. All Python code of the pass is opaque
then, and so is accumulation: these calls run in order while the graph runs, so each sees the effects of those before.

Each function is a leaf for capture. It reaches hooks and contexts of the program through the `Bailout`. All take the
bailout, the specs of their results, and the gradients that are pending at other nodes; all return a tuple.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.fx
from torch import Tensor

from ...program import accumulation
from ...program.accumulation import Gradients
from ...program.call_markers import leaf
from . import checks, hook_calls, node_calls
from .bailout import Bailout, Pattern
from .node_calls import Specs


def on_fakes(bailout: Any, specs: Specs, *rest: Any) -> Gradients:
    """The result of each of these functions on fake tensors."""
    return node_calls.empty_results(specs)


def opaque(function: Callable[..., Gradients]) -> Callable[..., Gradients]:
    torch.fx.node.has_side_effect(function)
    return leaf(on_fakes, inside=function)(function)


@opaque
def hook(
    bailout: Bailout, specs: Specs, pending: Gradients, name: str, slot: int, gradient: Tensor | None
) -> Gradients:
    """A hook on one gradient, called by a function of `hook_calls.py`."""
    return (getattr(hook_calls, name)(bailout.hooks[slot], gradient),)


@opaque
def hooks(
    bailout: Bailout,
    specs: Specs,
    pending: Gradients,
    name: str,
    slots: tuple[int, ...],
    pattern: Pattern | None,
    point: int,
    gradients: Gradients,
    *more: Gradients,
) -> Gradients:
    """Hooks on all gradients of a node, called by a function of `hook_calls.py`; checked, if there is a pattern."""
    for slot in slots:
        gradients = getattr(hook_calls, name)(bailout.hooks[slot], gradients, *more)
    if pattern is not None:
        checks.check_pattern(gradients, pattern, bailout, point, (), pending)
    return gradients


@opaque
def check_hooks(bailout: Bailout, specs: Specs, pending: Gradients, point: int, values: Gradients) -> Gradients:
    checks.check_hooks(bailout, point, values, pending)
    return ()


@opaque
def check_hooks_after(
    bailout: Bailout, specs: Specs, pending: Gradients, point: int, values: Gradients, outputs: Gradients
) -> Gradients:
    checks.check_hooks_after(outputs, bailout, point, values, pending)
    return ()


@opaque
def retain_grad(bailout: Bailout, specs: Specs, pending: Gradients, slot: int, gradient: Tensor | None) -> Gradients:
    hook_calls.retain_grad(bailout.hooks[slot], gradient)
    return ()


@opaque
def backward(
    bailout: Bailout,
    specs: Specs,
    pending: Gradients,
    index: int,
    edge_specs: Specs,
    patterns: tuple[Pattern, ...],
    points: tuple[int, ...],
    gradients: Gradients,
) -> Gradients:
    """A backward written in Python and the hooks after it, which also see gradients that no node takes.

    ``edge_specs``: what the next nodes take. There is a pattern and a point for the function, and for the hooks if
    there are any.
    """
    call = bailout.walk.calls[index]
    results = node_calls.call_backward(bailout.called_object(call), *gradients)
    checks.check_pattern(results, patterns[0], bailout, points[0], gradients, pending)
    given = tuple(
        result if spec is None or result is None else node_calls.validated(result, *spec, call.name, place)
        for place, (result, spec) in enumerate(zip(results, edge_specs, strict=True))
    )
    if not call.post_hooks:
        return given
    slots = tuple(call.post_hooks)
    return hooks(bailout, specs, pending, "call_post_hook", slots, patterns[1], points[1], given, gradients)


@opaque
def node(
    bailout: Bailout,
    specs: Specs,
    pending: Gradients,
    index: int,
    wanted: tuple[bool, ...],
    point: int,
    gradients: Gradients,
) -> Gradients:
    """A node that runs as it is."""
    called = bailout.called_object(bailout.walk.calls[index])
    return node_calls.call_node(called, specs, wanted, bailout, point, gradients, pending)


@opaque
def accumulate(
    bailout: Bailout, specs: Specs, pending: Gradients, index: int, gradient: Tensor | None, steal: bool, point: int
) -> Gradients:
    """A leaf's accumulation, and the hooks on the leaf after it."""
    call = bailout.walk.calls[index]
    variable = call.node.variable
    accumulation.accumulate_grad_(variable, gradient, steal)
    if call.accumulate_hooks:
        hook_calls.call_accumulate_hooks(variable, *[bailout.hooks[slot] for slot in call.accumulate_hooks])
        checks.check_hooks_after((), bailout, point, (gradient,), pending)
    return ()


ALL = frozenset([hook, hooks, check_hooks, check_hooks_after, retain_grad, backward, node, accumulate])
PENDING = 2  # the argument with the pending gradients: none of these functions shows them to the program
