"""Which views autograd knows: where the history of a tensor begins, and which tensors count changes together."""

from __future__ import annotations

from typing import Any

import torch

from ...platform import torch_tensors
from ...program.operators.operator_table import operator_of
from .autograd_edges import edge_of
from .functional_graph import View


def version_of(value: Any) -> int:
    """How often a value was changed in place; 0 for what has no count."""
    return torch_tensors.version_of(value) if isinstance(value, torch.Tensor) and not value.is_inference() else 0


def mark_hidden_data(view: View, visible: list[torch.Tensor]) -> None:
    """Find ``x.data`` on the path to a view, which is traced as ``x.detach()`` but has its own version counter.

    Factories detach what they make in the same way, but the detached tensor is not visible.
    """
    path = view.path()
    for index, part in enumerate(path):
        step = part.step
        if step is None or step.detached is None or not any(share_counter(step.detached, one) for one in visible):
            continue
        bases = (step.detached, *[before.value for before in path[:index]])
        if not any(share_counter(base, part.value) for base in bases):
            step.hidden = True


def share_counter(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether a change of one tensor counts as a change of the other; inference tensors count none."""
    if one.is_inference() or other.is_inference():
        return True
    version = torch_tensors.version_of(one)
    if torch_tensors.version_of(other) != version:
        return False
    torch.autograd.graph.increment_version(one)
    try:
        return torch_tensors.version_of(other) != version
    finally:
        torch_tensors.set_versions((one,), (version,))


def start_of(view: View) -> View:
    """The last tensor on the path to a view whose history replaying view operations would not give."""
    for part in reversed(view.path()[1:]):
        step = part.step
        assert step is not None
        if step.hidden:
            return part
        is_natural = step.differentiable and not operator_of(step.function).gives_argument and not has_own_history(part)
        if not is_natural and step.in_place is None and part.value.requires_grad:
            edge_of(part.value)  # raises where torch would raise
            if not part.value.is_leaf:
                return part
    return view.path()[0]


def has_own_history(view: View) -> bool:
    """Whether a view requires grad and its base does not: inside a subclass, or once the base was detached."""
    parent = view.parent
    assert parent is not None
    is_reshaped = parent.step is not None and parent.step.in_place is not None  # its first tensor
    base = view.storage.first if is_reshaped else parent.value
    return view.value.requires_grad and not base.requires_grad and parent.edge is None
