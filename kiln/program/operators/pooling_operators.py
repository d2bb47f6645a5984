"""Operators of Kiln's own: max pools that say where in its window each maximum is, in a byte instead of an index.

`codegen.rewrites.pooling_offsets` puts them into joint graphs in place of ATen's: what is saved for backward takes an
eighth of the memory. They are lowered to kernels; where they are not, the functions below compute them with ATen's
operators.

A window of nothing but minus infinity has its first element as maximum. ATen's kernel for images that are channels last
on a GPU takes the first element of the plane instead (``is_first_of_plane``), which most windows do not have: then the
place is `NOWHERE`, and nothing gets the gradient.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...platform.torch_operators import define_operators

aten = torch.ops.aten
NOWHERE = -1
WINDOWS = "int[] kernel_size, int[] stride, int[] padding, int[] dilation, bool ceil_mode"


def max_pool(
    tensor: torch.Tensor,
    size: Sequence[int],
    step: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    is_first_of_plane: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The maximum of each window, and its place there, counted row by row."""
    values, indices = aten.max_pool2d_with_indices(tensor, size, step, padding, dilation, ceil_mode)
    firsts, width = first_places(indices, step, padding), tensor.shape[-1]
    lowest = aten.eq(values, float("-inf"))
    least = [aten.clamp_min(first, 0) for first in firsts]
    found = [aten.floor_divide(indices, width), aten.remainder(indices, width)]
    found = [aten.where(lowest, least[at], found[at]) for at in range(2)]
    rows, columns = (aten.floor_divide(aten.sub(found[at], firsts[at]), dilation[at]) for at in range(2))
    places = aten.add(aten.mul(rows, size[1]), columns)
    if is_first_of_plane:
        is_elsewhere = aten.logical_or(aten.gt(firsts[0], 0), aten.gt(firsts[1], 0))
        places = aten.where(aten.logical_and(lowest, is_elsewhere), NOWHERE, places)
    return values, aten.add(aten.mul(indices, 0), places).to(torch.int8)


def max_pool_backward(
    gradient: torch.Tensor,
    offsets: torch.Tensor,
    shape: Sequence[int],
    size: Sequence[int],
    step: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> torch.Tensor:
    is_last = offsets.is_contiguous(memory_format=torch.channels_last) and not offsets.is_contiguous()
    layout = torch.channels_last if is_last else torch.contiguous_format
    tensor = torch.empty(tuple(shape), dtype=gradient.dtype, device=gradient.device, memory_format=layout)
    firsts, places = first_places(offsets, step, padding), offsets.to(torch.int64)
    found = [aten.floor_divide(places, size[1]), aten.remainder(places, size[1])]
    rows, columns = (aten.add(aten.mul(found[at], dilation[at]), firsts[at]) for at in range(2))
    is_nowhere = aten.lt(places, 0)
    indices = aten.where(is_nowhere, 0, aten.add(aten.mul(rows, shape[-1]), columns))
    gradient = aten.where(is_nowhere, 0.0, gradient)
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
        f"max_pool2d_with_offsets(Tensor self, {WINDOWS}, bool is_first_of_plane) -> (Tensor, Tensor)": max_pool,
        "max_pool2d_with_offsets_backward(Tensor gradient, Tensor offsets, SymInt[] shape, "
        f"{WINDOWS}) -> Tensor": max_pool_backward,
    },
)
