"""Opaque calls: what graphs of the engine call where capture is not to look into the program's hooks and backwards.

Such a graph is made where a pass has to be one graph and its Python code does what only real tensors and torch's own
engine can do: a backward inside a backward, addresses, forward-mode derivatives. All Python code of the pass is opaque
then, and so is accumulation: these calls run in order while the graph runs, so each finds what those before it did.

Functions and contexts of the program are reached through the `Departure`: for capture, which takes each of these
functions for a leaf, there is nothing else to see. All take the departure, what their results look like, and the
gradients that wait for other nodes; all give a tuple.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.fx
from torch import Tensor

from ..program import accumulation
from ..program.call_markers import leaf
from . import runtime
from .runtime import Gradients

Looks = tuple[Any, ...]  # for each result: size, strides, dtype and device; None where there is no gradient
Pattern = tuple[bool | None, ...]


def on_fakes(departure: Any, looks: Looks, *rest: Any) -> Gradients:
    """What each of these functions gives, on fake tensors."""
    return runtime.call_node_on_fakes(None, looks)


def opaque(function: Callable[..., Gradients]) -> Callable[..., Gradients]:
    torch.fx.node.has_side_effect(function)
    return leaf(on_fakes, inside=function)(function)


@opaque
def hook(departure: Any, looks: Looks, pending: Gradients, name: str, slot: int, gradient: Tensor | None) -> Gradients:
    """A hook on one gradient, by a function of `runtime.py`."""
    return (getattr(runtime, name)(departure.hooks[slot], gradient),)


@opaque
def hooks(
    departure: Any,
    looks: Looks,
    pending: Gradients,
    name: str,
    slots: tuple[int, ...],
    pattern: Pattern | None,
    step: int,
    gradients: Gradients,
    *more: Gradients,
) -> Gradients:
    """Hooks on all gradients of a node, by a function of `runtime.py`; checked, where there is a pattern."""
    for slot in slots:
        gradients = getattr(runtime, name)(departure.hooks[slot], gradients, *more)
    if pattern is not None:
        runtime.checked(gradients, pattern, departure, step, (), pending)
    return gradients


@opaque
def stay(departure: Any, looks: Looks, pending: Gradients, step: int, values: Gradients) -> Gradients:
    runtime.stay(departure, step, values, pending)
    return ()


@opaque
def stay_after(
    departure: Any, looks: Looks, pending: Gradients, step: int, values: Gradients, outputs: Gradients
) -> Gradients:
    runtime.stay_after(outputs, departure, step, values, pending)
    return ()


@opaque
def retain_grad(departure: Any, looks: Looks, pending: Gradients, slot: int, gradient: Tensor | None) -> Gradients:
    runtime.retain_grad(departure.hooks[slot], gradient)
    return ()


@opaque
def backward(
    departure: Any,
    looks: Looks,
    pending: Gradients,
    index: int,
    expected: Looks,
    patterns: tuple[Pattern, ...],
    steps: tuple[int, ...],
    gradients: Gradients,
) -> Gradients:
    """A backward written in Python and the hooks after it, which also see gradients that nobody takes.

    ``expected``: what the next nodes take. A pattern and a step for the function, and for the hooks if there are any.
    """
    call = departure.walk.calls[index]
    results = runtime.call_backward(departure.hooks[call.object], *gradients)
    runtime.checked(results, patterns[0], departure, steps[0], gradients, pending)
    given = tuple(
        result if look is None else runtime.expected(result, *look, call.name, place)  # type: ignore[arg-type,call-arg]
        for place, (result, look) in enumerate(zip(results, expected, strict=True))
    )
    if not call.post_hooks:
        return given
    slots = tuple(call.post_hooks)
    return hooks(departure, looks, pending, "call_post_hook", slots, patterns[1], steps[1], given, gradients)


@opaque
def node(
    departure: Any,
    looks: Looks,
    pending: Gradients,
    index: int,
    wanted: tuple[bool, ...],
    step: int,
    gradients: Gradients,
) -> Gradients:
    """A node that runs as it is."""
    called = departure.hooks[departure.walk.calls[index].object]
    return runtime.call_node(called, looks, wanted, departure, step, gradients, pending)


@opaque
def accumulate(
    departure: Any,
    looks: Looks,
    pending: Gradients,
    index: int,
    gradient: Tensor | None,
    steal: bool,
    step: int,
) -> Gradients:
    """What a leaf's node does, and the hooks on the leaf after it."""
    call = departure.walk.calls[index]
    variable = call.node.variable
    accumulation.accumulate_grad_(variable, gradient, steal)
    if call.accumulate_hooks:
        runtime.call_accumulate_hooks(variable, *[departure.hooks[slot] for slot in call.accumulate_hooks])
        runtime.stay_after((), departure, step, (gradient,), pending)
    return ()


ALL = frozenset([hook, hooks, stay, stay_after, retain_grad, backward, node, accumulate])
PENDING = 2  # where the gradients are that wait for other nodes: none of these functions shows them to anybody
