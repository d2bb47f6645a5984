"""Hooks inside a compiled backward: graph nodes that call the hooks that the program registered in the current call.

A backward graph is compiled once; the hooks belong to a call. The runtime sets them around each run of a backward graph
(:func:`with_hooks`), and a node finds its own by number.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx
from torch.utils.hooks import RemovableHandle

from ...program.hook_slots import HookSlot

Hooks = OrderedDict[int, Callable[..., Any]]
Gradients = tuple[Any, ...]  # tensors and None


class Current(threading.local):
    hooks: Sequence[Hooks | None] = ()


_current = Current()


def with_hooks(hooks: Sequence[Hooks | None], function: Callable[[list[Any]], Any], arguments: list[Any]) -> Any:
    """Run a backward graph with the hooks of a call."""
    before, _current.hooks = _current.hooks, hooks
    try:
        return function(arguments)
    finally:
        _current.hooks = before


def open_slot(slot: HookSlot) -> Hooks:
    """The table that a slot's hook goes to, later: the slot gets a handle as from ``register_hook``."""
    hooks: Hooks = OrderedDict()
    slot.handle = RemovableHandle(hooks)
    slot.compiled = True
    hooks[slot.handle.id] = slot
    return hooks


def run_hook(number: int, gradient: torch.Tensor) -> torch.Tensor:
    """In backward graphs: a tensor's hook."""
    return run_all(_current.hooks[number], gradient)


def run_all(hooks: Hooks | None, gradient: torch.Tensor) -> torch.Tensor:
    for hook in list((hooks or {}).values()):
        result = hook(gradient)
        if result is not None:
            gradient = checked(hook, result, gradient)
    return gradient


def checked(hook: Any, result: object, gradient: torch.Tensor) -> torch.Tensor:
    """A hook's result, with eager's checks; it gets the layout of the gradient, which the graph expects."""
    if not isinstance(result, torch.Tensor):
        name = type(result).__name__
        raise TypeError(f"expected Variable, but hook returned '{name}'")
    if result.shape != gradient.shape:
        raise RuntimeError(f"hook '{getattr(hook, '__name__', repr(hook))}' has changed the size of value")
    if result.dtype != gradient.dtype:
        raise RuntimeError(f"hook '{getattr(hook, '__name__', repr(hook))}' has changed the type of value")
    if result.stride() != gradient.stride():
        return torch.empty_like(gradient).copy_(result)
    return result


def run_node_hook(number: int, inputs: Gradients, outputs: Gradients) -> Gradients:
    """In backward graphs: a hook on a node of autograd's graph, after the node."""
    for hook in list((_current.hooks[number] or {}).values()):
        result = hook(inputs, outputs)
        if result is not None:
            inputs = checked_tuple(hook, result, inputs)
    return inputs


def run_node_prehook(number: int, outputs: Gradients) -> Gradients:
    """In backward graphs: a hook on a node of autograd's graph, before the node."""
    for hook in list((_current.hooks[number] or {}).values()):
        result = hook(outputs)
        if result is not None:
            outputs = checked_tuple(hook, result, outputs)
    return outputs


def checked_tuple(hook: Any, result: Any, before: Gradients) -> Gradients:
    given = result if isinstance(result, tuple) else (result,)
    if len(given) != len(before):
        name = getattr(hook, "__name__", repr(hook))
        raise RuntimeError(f"hook '{name}' has returned an incorrect number of values")
    return tuple([checked_item(hook, new, old) for new, old in zip(given, before, strict=True)])


def checked_item(hook: Any, new: Any, old: Any) -> Any:
    """One gradient of several that a hook gives. None takes a gradient away: what reads it in the graph reads zeros."""
    if old is None:
        if new is not None:
            raise RuntimeError("can't replace a None gradient with a non-None value")
        return None
    return torch.zeros_like(old) if new is None else checked(hook, new, old)


for _function in (run_hook, run_node_hook, run_node_prehook):
    torch.fx.node.has_side_effect(_function)
