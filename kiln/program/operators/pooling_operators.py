"""Operators of Kiln's own: max pools that say where in its window each maximum is, in a byte instead of an index.

`codegen.rewrites.pooling_offsets` puts them into joint graphs in place of ATen's: what is saved for backward takes an eighth of
the memory. They are lowered to kernels; where they are not, the functions below compute them with ATen's operators.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...platform.torch_operators import define_operators

aten = torch.ops.aten
WINDOWS = "int[] kernel_size, int[] stride, int[] padding, int[] dilation, bool ceil_mode"


def max_pool(
    tensor: torch.Tensor,
    size: Sequence[int],
    step: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The maximum of each window, and its place there, counted row by row."""
    values, indices = aten.max_pool2d_with_indices(tensor, size, step, padding, dilation, ceil_mode)
    firsts, width = first_places(indices, step, padding), tensor.shape[-1]
    found = [aten.floor_divide(indices, width), aten.remainder(indices, width)]
    rows, columns = (aten.floor_divide(aten.sub(found[at], firsts[at]), dilation[at]) for at in range(2))
    return values, aten.add(aten.mul(rows, size[1]), columns).to(torch.int8)


def max_pool_backward(
    gradient: torch.Tensor,
    offsets: torch.Tensor,
    shape: Sequence[int],
    is_channels_last: bool,
    size: Sequence[int],
    step: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> torch.Tensor:
    layout = torch.channels_last if is_channels_last else torch.contiguous_format
    tensor = torch.empty(tuple(shape), dtype=gradient.dtype, device=gradient.device, memory_format=layout)
    firsts, places = first_places(offsets, step, padding), offsets.to(torch.int64)
    found = [aten.floor_divide(places, size[1]), aten.remainder(places, size[1])]
    rows, columns = (aten.add(aten.mul(found[at], dilation[at]), firsts[at]) for at in range(2))
    indices = aten.add(aten.mul(rows, shape[-1]), columns)
    windows = size, step, padding, dilation, ceil_mode
    result: torch.Tensor = aten.max_pool2d_with_indices_backward(gradient, tensor, *windows, indices)
    return result


def first_places(like: torch.Tensor, step: Sequence[int], padding: Sequence[int]) -> list[torch.Tensor]:
    """The row and the column where each window begins, perhaps before the plane."""
    rows, columns = (torch.arange(like.shape[at - 2], device=like.device) * step[at] - padding[at] for at in range(2))
    return [rows[:, None], columns]


library, (WITH_OFFSETS, WITH_OFFSETS_BACKWARD) = define_operators(
    "kiln",
    {
        f"max_pool2d_with_offsets(Tensor self, {WINDOWS}) -> (Tensor, Tensor)": max_pool,
        "max_pool2d_with_offsets_backward(Tensor gradient, Tensor offsets, SymInt[] shape, bool is_channels_last, "
        f"{WINDOWS}) -> Tensor": max_pool_backward,
    },
)
