"""Layouts that torch's rules for tensors without data get wrong, on the CPU: what the real kernels give instead.

Found by running both on every sample of torch's operator database, contiguous, permuted and channels-last. A graph that
relied on the wrong layout would fail at a later ``view``, or give results with another layout than eager.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...platform.torch_operators import OpOverload, suggest_memory_format
from ..operators.operator_table import operator_of

aten = torch.ops.aten
Layout = Callable[[torch.Tensor, tuple[Any, ...]], torch.Tensor]


def contiguous(result: torch.Tensor, args: tuple[Any, ...]) -> torch.Tensor:
    return torch.empty(result.shape, dtype=result.dtype, device=result.device)


def suggested(place: int) -> Layout:
    """Channels-last where an argument is, else contiguous."""

    def layout(result: torch.Tensor, args: tuple[Any, ...]) -> torch.Tensor:
        form = suggest_memory_format(args[place])
        return torch.empty(result.shape, dtype=result.dtype, device=result.device, memory_format=form)

    return layout


def as_of_operands(result: torch.Tensor, args: tuple[Any, ...]) -> torch.Tensor:
    """As that of any operation on elements of the first two arguments."""
    return torch.empty_like(torch.add(args[0], args[1]), dtype=result.dtype)


LAYOUTS: dict[OpOverload, Layout] = {
    aten._log_softmax_backward_data.default: contiguous,
    aten.huber_loss_backward.default: contiguous,
    aten.log_sigmoid_forward.default: contiguous,
    aten.mse_loss_backward.default: contiguous,
    aten.normal.Tensor_Tensor: contiguous,
    aten.pow.Scalar: contiguous,
    aten.smooth_l1_loss_backward.default: contiguous,
    aten.channel_shuffle.default: suggested(0),
    aten.max_unpool2d.default: suggested(0),
    aten.native_batch_norm.default: suggested(0),
    aten._native_batch_norm_legit.default: suggested(0),
    aten._native_batch_norm_legit.no_stats: suggested(0),
    aten._native_batch_norm_legit_functional.default: suggested(0),
    aten._batch_norm_with_update.default: suggested(0),
    aten._batch_norm_with_update_functional.default: suggested(0),
    aten.reflection_pad2d.default: suggested(0),
    aten.reflection_pad3d.default: suggested(0),
    aten.replication_pad2d.default: suggested(0),
    aten.replication_pad3d.default: suggested(0),
    aten.replication_pad2d_backward.default: suggested(1),
    aten.copysign.Tensor: as_of_operands,
    aten.div.Tensor_mode: as_of_operands,
    aten.floor_divide.default: as_of_operands,
    aten.native_dropout_backward.default: as_of_operands,
}
for _overload, _layout in LAYOUTS.items():
    operator_of(_overload).layout = _layout


def corrected(layout: Layout, args: tuple[Any, ...], result: Any) -> Any:
    """The result of an operator on fakes, what has the first tensor's shape laid out as the real one's is."""
    parts = list(result) if isinstance(result, (tuple, list)) else [result]
    if parts[0].device.type != "cpu":
        return result
    with torch.no_grad():
        laid_out = [layout(part, args) if part.shape == parts[0].shape else part for part in parts]
    right = [old if new.stride() == old.stride() else new for new, old in zip(laid_out, parts, strict=True)]
    return type(result)(right) if isinstance(result, (tuple, list)) else right[0]
