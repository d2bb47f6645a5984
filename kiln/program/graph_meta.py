"""What a stage notes in the ``meta`` of graphs and nodes for later stages and for backends: typed accessors.

Besides these, nodes have torch's own keys: ``val`` or ``example_value`` (the fake result) and ``stack_trace``.
"""

from __future__ import annotations

import torch
import torch.fx

from ..platform.light_dataclass import dataclass

# -- graphs ------------------------------------------------------------------------------------------------------------


def set_changed_inputs(module: torch.fx.GraphModule, changed: dict[int, int]) -> None:
    """Note which results of a graph are only new contents of inputs: the places of the results, and of the inputs.

    A compiler may let the program write them into the inputs. Its ``written_inputs`` then has those results.
    """
    module.meta["changed_inputs"] = changed


def changed_inputs(module: torch.fx.GraphModule) -> dict[int, int]:
    changed: dict[int, int] = module.meta.get("changed_inputs", {})
    return changed


def set_visible_results(module: torch.fx.GraphModule, count: int) -> None:
    """Note on a forward graph how many of its results, the first ones, the user gets; the others are saved."""
    module.meta["visible_results"] = count


def visible_results(module: torch.fx.GraphModule) -> int | None:
    count: int | None = module.meta.get("visible_results")
    return count


def set_normalizes_by_formula(module: torch.fx.GraphModule) -> None:
    """Note on a joint graph that its compiler computes normalizations by their formula, which ATen does not."""
    module.meta["by_formula"] = True


def normalizes_by_formula(module: torch.fx.GraphModule) -> bool:
    return module.meta.get("by_formula", False) is True


def set_mutated_primals(module: torch.fx.GraphModule, names: frozenset[str]) -> None:
    """Note on a joint graph which placeholders get a new value after the forward."""
    module.meta["mutated_primals"] = names


def mutated_primals(module: torch.fx.GraphModule) -> frozenset[str]:
    names: frozenset[str] = module.meta.get("mutated_primals", frozenset())
    return names


def set_saved_keys(module: torch.fx.GraphModule, keys: tuple[str, ...]) -> None:
    """Note on a forward graph what it saves for backward, in order: keys as in `kiln.aot.partition.saved_values`."""
    module.meta["saved_keys"] = keys


def saved_keys(module: torch.fx.GraphModule) -> tuple[str, ...] | None:
    """What a forward graph saves; None for graphs of other partitioners."""
    keys: tuple[str, ...] | None = module.meta.get("saved_keys")
    return keys


# -- calls of autograd functions ---------------------------------------------------------------------------------------


def set_traceable_backward(node: torch.fx.Node, reason: str | None = None) -> None:
    """Note on a call of an autograd function whether its backward may be traced; ``reason`` says why not."""
    node.meta["traceable_backward"] = reason is None
    if reason is not None:
        node.meta["traceable_reason"] = reason


def untraceable_reason(node: torch.fx.Node) -> str | None:
    """Why the backward of a call may not be traced; None if it may."""
    if node.meta.get("traceable_backward") is not False:
        return None
    return node.meta.get("traceable_reason") or "an autograd function whose backward has effects"


# -- placeholders ------------------------------------------------------------------------------------------------------


def set_hook_slot(node: torch.fx.Node, function: str) -> None:
    """Note that an input is no tensor but a slot of hooks, for this function of `hook_slots.py`."""
    node.meta["hook_slot"] = function


Number = int | torch.SymInt


@dataclass(unsafe_hash=True)  # never changed
class BaseState:
    """The tensor that an input is a view of, as autograd sees it. Numbers are those of the call that was captured."""

    key: int  # as InputState.key: the base may be an input itself
    size: tuple[int, ...]
    stride: tuple[int, ...]
    storage_offset: int
    dtype: torch.dtype
    requires_grad: bool
    is_leaf: bool


@dataclass(unsafe_hash=True)  # never changed
class InputState:
    """A tensor input at the start.

    Guarded, so true of every call that runs the graph: class, dtype, device, ``requires_grad``, sizes and strides (as
    far as they are plain numbers; symbols stand for what varies), and which inputs are the same object (none are).
    Everything else was so in the captured call and is not guarded in general: ``is_leaf``, the storage offset, the
    version, who shares memory, who is a view of what.
    """

    key: int  # of the tensor, unique among the inputs of a graph and their bases
    storage_key: int  # equal for inputs that share memory
    size: tuple[Number, ...]
    stride: tuple[Number, ...]
    storage_offset: Number
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool
    is_leaf: bool
    is_parameter: bool
    is_inference: bool
    is_view_of_leaf: bool  # of one that requires grad: torch refuses to change it in place
    version: int  # -1 where torch does not count
    base: BaseState | None


def set_input_state(node: torch.fx.Node, state: InputState) -> None:
    node.meta["input_state"] = state


def input_state_of(node: torch.fx.Node) -> InputState | None:
    state: InputState | None = node.meta.get("input_state")
    return state


def forget_input_state(node: torch.fx.Node) -> None:
    node.meta.pop("input_state", None)
