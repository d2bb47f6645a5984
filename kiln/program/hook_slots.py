"""Hook slots: placeholders for hooks that a graph registers before the hooks exist.

A hook that captured code registers may close over tensors that the graph computes, so it is made after the graph has
run. Where it is registered matters, however: an operation that changes the tensor later moves the tensor to another
node of autograd's graph. So the graph registers a `HookSlot`, which is one of its inputs, and the hook replaces it:

    slot = HookSlot()
    y, = graph(x, slot)            # in it: register_hook(y, slot)
    hook = …
    slot.settle(hook)              # the tensor has the program's own hook, and slot.handle is its handle

"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx
from torch.utils.hooks import RemovableHandle

from ..platform.torch_dispatch import DisableTorchFunction
from .shared_hooks import SharedHook


class HookSlot:
    """Stands for a hook until the graph has run; then the program's own hook takes its place, at the same position."""

    __slots__ = ("compiled", "handle", "node")

    def __init__(self) -> None:
        self.handle: RemovableHandle | None = None
        self.node: object = None  # of autograd's graph, where the hook wants to know whether it is going to run
        self.compiled = False  # the node is a compiled backward, which calls the hook somewhere inside

    def __call__(self, *gradients: object) -> None:
        """Nothing runs backward while the graph runs forward."""

    def settle(self, hook: object) -> None:
        if self.handle is None:
            raise RuntimeError("The backend's code did not register a hook that the graph registers.")
        hooks = self.handle.hooks_dict_ref()
        if hooks is not None:  # else whatever it was on is gone
            hooks[self.handle.id] = hook

    def remove(self) -> None:
        """Take the hook off again: the program did, or the graph raised and eager is going to register it."""
        if self.handle is not None:
            self.handle.remove()


def register_hook(tensor: Any, slot: HookSlot) -> None:
    """In graphs: ``tensor.register_hook(…)``."""
    with DisableTorchFunction():
        slot.handle = tensor.register_hook(slot)


def register_post_accumulate_grad_hook(tensor: Any, slot: HookSlot) -> None:
    """In graphs: ``tensor.register_post_accumulate_grad_hook(…)``."""
    with DisableTorchFunction():
        slot.handle = tensor.register_post_accumulate_grad_hook(slot)


def register_node_hook(tensor: torch.Tensor, slot: HookSlot) -> None:
    """In graphs: ``tensor.grad_fn.register_hook(…)``."""
    slot.handle = node_of(tensor).register_hook(slot)


def register_node_prehook(tensor: torch.Tensor, slot: HookSlot) -> None:
    """In graphs: ``tensor.grad_fn.register_prehook(…)``."""
    slot.handle = node_of(tensor).register_prehook(slot)


def node_of(tensor: torch.Tensor) -> torch.autograd.graph.Node:
    node = tensor.grad_fn
    assert node is not None, "a hook on the node of a tensor that has none"
    return node


def register_shared_hook(tensor: torch.Tensor, slot: HookSlot) -> None:
    """In graphs: what ``register_multi_grad_hook`` does for one of its tensors."""
    register_hook(tensor, slot)
    with DisableTorchFunction():
        slot.node = torch.autograd.graph.get_gradient_edge(tensor).node


class Slotted:
    """A tensor with a slot, as torch's ``register_multi_grad_hook`` looks at tensors."""

    requires_grad = True

    def __init__(self, slot: HookSlot):
        self.slot, self.grad_fn = slot, slot.node

    def register_hook(self, hook: object) -> RemovableHandle | None:
        self.slot.settle(hook)
        return self.slot.handle


def settle_slots_of_one_hook(hook: Callable[..., Any], mode: str, *slots: HookSlot) -> None:
    """Put a hook that several tensors share in its place, by torch's own means where that can be."""
    if any(slot.compiled for slot in slots):
        nodes = [slot.node if slot.node is not None else idle_node() for slot in slots]
        shared = SharedHook(hook, mode, nodes, [slot.compiled for slot in slots])
        for place, slot in enumerate(slots):
            slot.settle(shared.part(place))
        return
    tensors: Any = [Slotted(slot) for slot in slots]
    own_mode: Any = mode
    torch.autograd.graph.register_multi_grad_hook(tensors, hook, mode=own_mode)


def idle_node() -> object:
    """A node of autograd's graph that no backward pass comes to: that of a tensor which nothing depends on."""
    with torch.enable_grad():
        return torch.empty(0, requires_grad=True).view(0).grad_fn


def retain_grad(tensor: torch.Tensor) -> None:
    """In graphs: ``tensor.retain_grad()``."""
    with DisableTorchFunction():
        tensor.retain_grad()


IN_GRAPHS: tuple[Callable[..., None], ...] = (
    register_hook,
    register_post_accumulate_grad_hook,
    register_node_hook,
    register_node_prehook,
    register_shared_hook,
    retain_grad,
)
for _function in IN_GRAPHS:
    torch.fx.node.has_side_effect(_function)
