"""Results of operators that torch has no rules for where sizes are symbolic: shapes, and layouts of CPU kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...platform.torch_operators import suggest_memory_format
from ..operators.operator_table import operator_of

Rule = Callable[..., torch.Tensor]


def of_input(data: torch.Tensor, output_size: Any, input_size: Any, *rest: Any) -> torch.Tensor:
    return data.new_empty(input_size)


def of_input_in_order(gradient: torch.Tensor, output_size: Any, input_size: Any, *rest: Any) -> torch.Tensor:
    """Channels-last where the gradient is."""
    form = suggest_memory_format(gradient)
    return torch.empty(input_size, dtype=gradient.dtype, device=gradient.device, memory_format=form)


def elementwise(gradient: torch.Tensor, data: torch.Tensor, *rest: Any) -> torch.Tensor:
    return torch.empty_like(torch.add(gradient, data))


def of_data(gradient: torch.Tensor, data: torch.Tensor, *rest: Any) -> torch.Tensor:
    return data.new_empty(data.shape)


def loss(data: torch.Tensor, target: Any, p: Any = 1, margin: Any = 1, weight: Any = None, reduction: int = 1) -> Any:
    return data.new_empty(data.shape[:-1] if reduction == 0 else ())


RULES: dict[str, Rule] = {
    "upsample_bilinear2d_backward": of_input_in_order,
    "upsample_trilinear3d_backward": of_input_in_order,
    "upsample_nearest2d_backward": of_input_in_order,
    "_upsample_nearest_exact2d_backward": of_input_in_order,
    "_upsample_bilinear2d_aa_backward": of_input_in_order,
    "upsample_linear1d_backward": of_input,
    "upsample_bicubic2d_backward": of_input,
    "upsample_nearest1d_backward": of_input,
    "upsample_nearest3d_backward": of_input,
    "_upsample_nearest_exact1d_backward": of_input,
    "_upsample_nearest_exact3d_backward": of_input,
    "_upsample_bicubic2d_aa_backward": of_input,
    "hardshrink_backward": elementwise,
    "softshrink_backward": elementwise,
    "multi_margin_loss": loss,
    "multi_margin_loss_backward": of_data,
    "multilabel_margin_loss_backward": of_data,
}
for _name, _rule in RULES.items():
    operator_of(getattr(torch.ops.aten, _name).default).symbolic_shape = _rule
