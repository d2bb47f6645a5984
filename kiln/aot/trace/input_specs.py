"""Inputs of a trace: the properties of each, and fresh fakes made from them.

A trace changes its inputs (their shape, their place in autograd's graph), and a program is traced more than once: each
trace gets new fakes from :class:`InputSpec`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx
from torch.nn import Parameter

from ...platform.light_dataclass import dataclass
from ...platform.torch_fake import FakeTensor
from ...platform.torch_tensors import storage_address
from ...program.graph_meta import input_state_of
from ...program.shapes.fake_tensors import History, is_view_of_leaf
from ...program.unsupported import Unsupported


@dataclass(frozen=True)
class InputSpec:
    """One tensor input before the program runs."""

    size: tuple[Any, ...]
    stride: tuple[Any, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool
    is_leaf: bool
    is_view_of_leaf: bool
    is_parameter: bool
    storage_key: int
    storage_offset: Any
    is_inference: bool

    def make(self, mode: Any) -> torch.Tensor:
        """A fresh fake, with memory of its own."""
        inference = torch.is_inference_mode_enabled()
        with torch.inference_mode(inference and self.is_inference), torch.no_grad():
            elem = torch.empty_strided(self.size, self.stride, dtype=self.dtype, device="meta")
            if not self.requires_grad or inference:
                return FakeTensor(mode, elem, self.device)
        with torch.enable_grad():
            if not self.is_leaf and not self.is_view_of_leaf:
                with_history: Callable[..., torch.Tensor] = History.apply
                return with_history(FakeTensor(mode, elem, self.device), torch.empty((), requires_grad=True))
            elem.requires_grad_()
            fake: torch.Tensor = FakeTensor(mode, elem, self.device)
            if not self.is_leaf:
                with mode:
                    fake = fake.view_as(fake)
            return fake


FIELDS = tuple(InputSpec.__dataclass_fields__)  # `InputState` has them all


def has_symbols(specs: Sequence[Any]) -> bool:
    """Whether sizes or numbers among the inputs are symbolic."""
    numbers = [number for spec in specs if isinstance(spec, InputSpec) for number in (*spec.size, *spec.stride)]
    numbers += [spec for spec in specs if not isinstance(spec, InputSpec)]
    return any(isinstance(number, (torch.SymInt, torch.SymFloat, torch.SymBool)) for number in numbers)


def spec_of(value: torch.Tensor, placeholder: torch.fx.Node | None) -> InputSpec:
    """The properties of an input: what capture noted, or those of the example."""
    state = input_state_of(placeholder) if placeholder is not None else None
    if state is not None:
        return InputSpec(**{name: getattr(state, name) for name in FIELDS})
    if value.layout is not torch.strided:
        raise Unsupported("an input without plain memory: a sparse or nested tensor")
    if lacks_memory(value):
        raise Unsupported("an input whose storage was resized to nothing")
    return InputSpec(
        tuple(value.shape),
        tuple(value.stride()),
        value.dtype,
        value.device,
        value.requires_grad,
        value.is_leaf,
        is_view_of_leaf(value),
        isinstance(value, Parameter),
        storage_address(value),
        value.storage_offset(),
        value.is_inference(),
    )


def lacks_memory(tensor: torch.Tensor) -> bool:
    """Whether it has elements and its storage none: FSDP frees parameters that are not in use."""
    size = tensor.untyped_storage().nbytes()
    return isinstance(size, int) and size == 0 and tensor.device.type != "meta" and 0 not in tensor.shape


def specs_of(examples: Sequence[Any], placeholders: Sequence[torch.fx.Node] | None) -> list[Any]:
    """For each input an :class:`InputSpec`, a number, or the object itself."""
    nodes: Sequence[Any] = placeholders or [None] * len(examples)
    return [
        spec_of(value, node) if isinstance(value, torch.Tensor) else value
        for value, node in zip(examples, nodes, strict=True)
    ]
