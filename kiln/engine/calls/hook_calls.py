"""Calls of hooks, by the rules of torch's engine.

Plain Python on purpose: capture interprets these functions and inlines the user's hooks. Errors have eager's texts. All
of it runs with grad mode off, as backward passes do that build no graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ...program.accumulation import Gradients
from ...program.call_markers import deferred
from ...program.memory import is_dense
from ..walk.inner_hooks import InnerHook
from .abandoned import calls_user

Hook = Callable[..., Any]


@calls_user
def call_tensor_hook(hook: Hook, gradient: Tensor | None) -> Tensor | None:
    """A hook on a tensor, before its node: returns the gradient that goes on."""
    result = hook(gradient)
    return gradient if result is None else replacement(hook, result, gradient)


@calls_user
def call_pre_hook(hook: Hook, gradients: Gradients) -> Gradients:
    """A hook on a node, before it."""
    result = hook(gradients)
    return gradients if result is None else replacements(hook, result, gradients)


@calls_user
def call_post_hook(hook: Hook, grad_inputs: Gradients, grad_outputs: Gradients) -> Gradients:
    """A hook on a node, after it: takes what the node returned, and what it was given."""
    result = hook(grad_inputs, grad_outputs)
    return grad_inputs if result is None else replacements(hook, result, grad_inputs)


@calls_user
def call_accumulate_hooks(variable: Tensor, *hooks: Hook) -> None:
    """The hooks of a leaf after accumulation. All run before what one of them returned is an error."""
    seen = variable
    for hook in hooks:
        result = hook(seen)
        if result is not None:
            check_replacement(hook, result, seen)
            seen = result
    if seen is not variable:
        raise RuntimeError("Tensor post accumulate grad hooks should return None.")


@deferred
def retain_grad(retain: Callable[[Tensor | None], None], gradient: Tensor | None) -> None:
    """Implements `Tensor.retain_grad`: `retain` is the native hook that sets the tensor's `.grad`."""
    retain(gradient)


def call_inner_hook(inner: InnerHook, gradient: Tensor) -> Tensor | None:
    """A hook on a tensor inside a compiled function."""
    return call_tensor_hook(inner.function, gradient) if inner.alive else gradient


def call_inner_pre_hook(inner: InnerHook, gradients: Gradients) -> Gradients:
    """A hook on a node inside a compiled function, before it."""
    return none_as_zeros(call_pre_hook(inner.function, gradients), gradients) if inner.alive else gradients


def call_inner_post_hook(inner: InnerHook, grad_inputs: Gradients, grad_outputs: Gradients) -> Gradients:
    """A hook on a node inside a compiled function, after it."""
    if not inner.alive:
        return grad_inputs
    return none_as_zeros(call_post_hook(inner.function, grad_inputs, grad_outputs), grad_inputs)


def none_as_zeros(after: Gradients, before: Gradients) -> Gradients:
    """Gradients that a hook took away become zeros for the rest of the compiled graph."""
    found = []
    for place in range(len(before)):
        old, new = before[place], after[place]
        found.append(torch.zeros_like(old) if new is None and old is not None else new)
    return tuple(found)


def replacements(hook: Hook, result: Any, before: Gradients) -> Gradients:
    """What a hook returned for several gradients. None takes one away."""
    if not isinstance(result, tuple):
        raise TypeError(f"expected tuple, but hook returned '{type(result).__name__}'")
    if len(result) != len(before):
        raise RuntimeError(
            f"hook '{name_of(hook)}' has returned an incorrect number of values "
            f"(got {len(result)}, but expected {len(before)})"
        )
    after = []
    for place in range(len(before)):
        new = result[place]
        after.append(None if new is None else replacement(hook, new, before[place]))
    return tuple(after)


def replacement(hook: Hook, new: Any, old: Tensor | None) -> Tensor:
    return laid_out_like(new, check_replacement(hook, new, old))


def check_replacement(hook: Hook, new: Any, old: Tensor | None) -> Tensor:
    """Raise eager's error if ``new`` cannot replace ``old``; returns ``old``."""
    if old is None:
        raise RuntimeError("can't replace a None gradient with a non-None value")
    if not isinstance(new, Tensor):
        raise TypeError(f"expected Variable, but hook returned '{type(new).__name__}'")
    if new.dtype != old.dtype or new.device != old.device or new.layout != old.layout:
        raise RuntimeError(
            f"hook '{name_of(hook)}' has changed the type of value (was {type_name(old)} got {type_name(new)})"
        )
    if new.shape != old.shape:
        raise RuntimeError(f"hook '{name_of(hook)}' has changed the size of value")
    return old


def laid_out_like(new: Tensor, old: Tensor) -> Tensor:
    """``new`` with the strides of ``old``, for which the graph was traced; contiguous if ``old`` is not dense."""
    if new is old or has_strides(new, old.stride()):
        return new
    return torch.empty_like(old).copy_(new) if is_dense(old) else new.contiguous()


def has_strides(tensor: Tensor, strides: Sequence[int]) -> bool:
    """Whether a tensor has these strides; those of dimensions of size 1 do not count."""
    size, own = tensor.shape, tensor.stride()
    return all([size[place] == 1 or own[place] == strides[place] for place in range(len(size))])


def name_of(hook: Any) -> str:
    name = getattr(hook, "__name__", None)
    return name if isinstance(name, str) else "<unknown>"


# How torch names types in errors, where that differs from `Tensor.type()`.
UNNAMED_DTYPES = {
    torch.bfloat16: "BFloat16",
    torch.complex32: "ComplexHalf",
    torch.complex64: "ComplexFloat",
    torch.complex128: "ComplexDouble",
}


def type_name(tensor: Tensor) -> str:
    name = tensor.type()
    if tensor.device.type == "meta":
        return f"Meta{name.rsplit('.', 1)[1].removesuffix('Tensor')}Type"
    if tensor.dtype in UNNAMED_DTYPES and tensor.layout is torch.strided:
        return f"{tensor.device.type.upper()}{UNNAMED_DTYPES[tensor.dtype]}Type"
    return name
