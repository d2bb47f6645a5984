"""What a graph's tensor inputs are when the graph begins.

The example inputs that a backend gets are the fakes that the program was traced with: they have been through its
in-place operations. A backend that traces the graph once more needs to know what they began as. Each tensor placeholder
has that as an `InputState`.
"""

from __future__ import annotations

import torch
from torch.nn import Parameter

from ..._native import is_instance as isinstance
from ...platform.torch_dispatch import DisableTorchFunction
from ...platform.torch_tensors import address_of, base_of
from ...program.graph_meta import BaseState, InputState
from ...program.memory import storage_key
from ...program.shapes.fake_tensors import is_view_of_leaf
from ..state.trace import Trace
from .tensor_effects import version


def input_state(trace: Trace, real: torch.Tensor, fake: torch.Tensor) -> InputState:
    """Describe a new input; its fake has not been used yet, and knows which of its sizes are symbols."""
    with DisableTorchFunction():
        return InputState(
            key=number_of(trace, ("tensor", address_of(real))),
            storage_key=number_of(trace, ("storage", storage_key(real))),
            size=tuple(fake.shape),
            stride=tuple(fake.stride()),
            storage_offset=fake.storage_offset(),
            dtype=real.dtype,
            device=real.device,
            requires_grad=real.requires_grad,
            is_leaf=real.is_leaf,
            is_parameter=isinstance(real, Parameter),
            is_inference=real.is_inference(),
            is_view_of_leaf=is_view_of_leaf(real),
            version=version(real),
            base=base_state(trace, base_of(real)),
        )


def base_state(trace: Trace, base: torch.Tensor | None) -> BaseState | None:
    if base is None:
        return None
    return BaseState(
        key=number_of(trace, ("tensor", address_of(base))),
        size=tuple(base.shape),
        stride=tuple(base.stride()),
        storage_offset=int(base.storage_offset()),
        dtype=base.dtype,
        requires_grad=base.requires_grad,
        is_leaf=base.is_leaf,
    )


def number_of(trace: Trace, what: tuple[str, int]) -> int:
    """A small number for something at an address: addresses are used again once the call is over."""
    return trace.inputs.numbered_addresses.setdefault(what, len(trace.inputs.numbered_addresses))
