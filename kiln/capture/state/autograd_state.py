"""Hooks, and what capture knows of autograd's graph of the fakes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import TYPE_CHECKING

from ...platform.light_dataclass import dataclass
from ..guards.source import Source
from .values import Record, TensorInfo

if TYPE_CHECKING:
    from ..autograd.checkpoints import Region
    from ..autograd.function_backward import FunctionCall
    from ..autograd.hook_handles import MadeHandle, Removal
    from ..autograd.hook_registrations import Registration


@dataclass(eq=False, slots=True)
class HookState:
    """Hooks that the program registers and removes, by the ids of their handles."""

    registrations: dict[int, Registration] = field(default_factory=dict)  # on tensors and nodes, made here
    handles: dict[int, MadeHandle] = field(default_factory=dict)  # made here for a dictionary of hooks
    removals: dict[int, Removal] = field(default_factory=dict)  # of handles from outside
    guarded_by_order: list[Record] = field(default_factory=list)  # dictionaries of hooks (module_hooks.py)
    # Of a backward pass whose hooks are captured with it (saved_tensor_changes.py):
    changed_memory: dict[int, int] = field(default_factory=dict)  # by hooks -> how many properties were read before
    read_properties: list[tuple[Callable[..., object], object, tuple[int, int]]] = field(
        default_factory=list
    )  # marked ones: getter, owner, root instruction


@dataclass(eq=False, slots=True)
class AutogradState:
    """Calls of autograd functions, and where fakes join autograd's graph."""

    function_calls: dict[int, FunctionCall] = field(default_factory=dict)  # by id
    contexts: dict[Source, dict[str, object]] = field(default_factory=dict)  # of functions -> what was read natively
    origins: dict[object, TensorInfo] = field(default_factory=dict)  # node -> the input whose history it begins
    nodes: dict[int, TensorInfo] = field(default_factory=dict)  # id of a node -> a tensor that it makes
    approximate_history: bool = False  # the history of some fake is not that of the real tensor
    checkpoint_regions: list[Region] = field(default_factory=list)  # nodes that the backward pass computes again
