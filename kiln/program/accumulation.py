"""Accumulation of gradients into leaves, by the rules of torch's engine."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .memory import is_dense

Gradients = tuple[Tensor | None, ...]


def accumulate_grad_(variable: Tensor, gradient: Tensor | None, steal: bool) -> None:
    """What a leaf's node does. `steal`: nobody else has the gradient's memory, so that the leaf may keep it."""
    if gradient is not None and variable.requires_grad:
        add_to_grad(variable, gradient, steal)


def backward_to_leaves(
    outputs: tuple[Tensor, ...], weights: Any, leaves: tuple[Tensor, ...], retain_graph: bool | None
) -> None:
    """A whole pass, to leaves that nobody watches: what ``backward()`` is in captured code."""
    gradients = torch.autograd.grad(outputs, leaves, weights, retain_graph=retain_graph, allow_unused=True)
    with torch.no_grad():
        for place in range(len(leaves)):
            accumulate_grad_(leaves[place], gradients[place], False)


def add_to_grad(variable: Tensor, gradient: Tensor, steal: bool) -> None:
    present = variable.grad
    if present is None:
        if steal and fits_layout(gradient, variable):
            variable.grad = gradient.detach()
        else:
            variable.grad = in_layout_of(gradient, variable)
    elif present.is_sparse and not gradient.is_sparse:
        variable.grad = gradient + present
    else:
        present += gradient
        if not present.is_sparse and not fits_layout(present, variable):
            warn_of_layout(present, variable)


def fits_layout(gradient: Tensor, variable: Tensor) -> bool:
    """Whether the leaf may keep the gradient as it is: strides of a dense leaf, else contiguous."""
    if not is_dense(variable):
        return gradient.is_contiguous()
    size, mine, its = gradient.shape, gradient.stride(), variable.stride()
    for place in range(len(size)):
        if size[place] != 1:
            if mine[place] != its[place]:
                return False
        elif mine[place] == 0:
            return False
    return True


def in_layout_of(gradient: Tensor, variable: Tensor) -> Tensor:
    """A copy that the leaf can keep."""
    if is_dense(variable):
        return gradient.new_empty_strided(variable.size(), variable.stride(), device=variable.device).copy_(gradient)
    return gradient.clone(memory_format=torch.contiguous_format)


def listed(size: Sequence[int]) -> str:
    return f"[{', '.join([str(number) for number in size])}]"


def warn_of_layout(gradient: Tensor, variable: Tensor) -> None:
    warnings.warn(
        "grad and param do not obey the gradient layout contract. This is not an error, but may impair performance.\n"
        f"grad.sizes() = {listed(gradient.shape)}, strides() = {listed(gradient.stride())}\n"
        f"param.sizes() = {listed(variable.shape)}, strides() = {listed(variable.stride())}",
        UserWarning,
        stacklevel=2,
    )
