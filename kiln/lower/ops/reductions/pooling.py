"""Pooling over small windows: each place of the window is one more view of the input, and all are combined at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from kiln.loops import tensor_views
from kiln.loops.ir import Access, Write
from kiln.loops.sizes import Size, is_one
from kiln.loops.tensor_layouts import is_dense, load_whole, sizes_of
from kiln.loops.tensor_views import Tensor

from ....platform.light_dataclass import dataclass
from ...builders import cast, pointwise, positions, scalar, size_tensor
from ...lowering import Lowering
from ...registry import NotLowered, lowers
from ..movement.index_helpers import all_masks
from .reduction_helpers import as_wide, refuse_empty

aten = torch.ops.aten
Node = torch.fx.Node
LARGEST_WINDOW = 16


@dataclass
class Windows:
    """The windows on the last two axes of an input."""

    size: tuple[int, ...]
    step: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    shape: tuple[Size, ...]  # of the result

    def start(self, row: int, column: int) -> tuple[int, int]:
        """One place of a window, as what is added to the place of the window."""
        return row * self.dilation[0] - self.padding[0], column * self.dilation[1] - self.padding[1]

    def starts(self) -> Iterator[tuple[int, int]]:
        """The places of a window, in order."""
        for row in range(self.size[0]):
            for column in range(self.size[1]):
                yield self.start(row, column)

    def seen(self, tensor: Tensor, start: tuple[int, int]) -> tuple[Tensor, Tensor | None]:
        """The input at one place of each window, and where that is inside of it (None: everywhere)."""
        lead = tensor.rank - 2
        rows: list[Any] = [({axis: 1}, 0) for axis in range(lead)]
        rows += [({lead + at: self.step[at]}, start[at]) for at in range(2)]
        masks = [mask for at in range(2) for mask in self.bounds(tensor.shape[lead + at], lead + at, at, start[at])]
        inside = all_masks(masks)
        found = tensor_views.affine(tensor, self.shape, rows)
        return (found if inside is None else tensor_views.masked(found, inside)), inside

    def bounds(self, size: Size, axis: int, at: int, start: int) -> list[Tensor]:
        if not isinstance(size, int) or not isinstance(self.shape[axis], int):
            raise NotLowered("windows over dynamic sizes")
        here = positions(self.shape, axis, start, self.step[at])
        last = (self.shape[axis] - 1) * self.step[at] + start
        found = [pointwise("ge", here, scalar(0, torch.int64))] if start < 0 else []
        return [*found, pointwise("lt", here, size_tensor(size))] if last >= size else found


def pair(values: Sequence[int] | int, otherwise: Sequence[int] = ()) -> tuple[int, int]:
    values = [values] if isinstance(values, int) else list(values) or list(otherwise)
    if not all(isinstance(value, int) for value in values):
        raise NotLowered("windows of dynamic sizes")
    return (values[0], values[-1])


def windows_of(node: Node, tensor: Tensor, size: Any, step: Any, padding: Any, dilation: Any = 1) -> Windows:
    value = node.meta["val"]
    refuse_empty(tensor)
    size = pair(size)
    if size[0] * size[1] > LARGEST_WINDOW:
        raise NotLowered("large windows")
    shape = sizes_of((value[0] if isinstance(value, (list, tuple)) else value).shape)
    return Windows(size, pair(step, size), pair(padding), pair(dilation), shape)


def in_layout_of(lowering: Lowering, tensor: Tensor, source: Any) -> Tensor:
    """A tensor in memory, in the layout that this node has in the graph."""
    return tensor if tensor.access is not None else lowering.materialize(tensor, source.meta["val"])


@lowers(aten.avg_pool2d.default)
def average_pool(
    lowering: Lowering,
    node: Node,
    tensor: Tensor,
    size: Any,
    step: Any,
    padding: Any,
    ceil_mode: bool,
    with_padding: bool,
    divisor: int | None,
) -> Tensor:
    """The mean of each window, added up in order; where all windows are whole."""
    windows = windows_of(node, tensor, size, step, padding)
    if any(windows.padding) or ceil_mode or not tensor.dtype.is_floating_point:
        raise NotLowered("windows that are not whole, or integers")
    total = added_up(windows, in_layout_of(lowering, tensor, node.args[0]))
    count = windows.size[0] * windows.size[1] if divisor is None else divisor
    return cast(pointwise("div", total, scalar(count, total.dtype)), tensor.dtype)


def added_up(windows: Windows, source: Tensor) -> Tensor:
    """The sum of each (whole) window, in order."""
    total: Tensor | None = None
    for start in windows.starts():
        value = as_wide(windows.seen(source, start)[0])
        total = value if total is None else pointwise("add", total, value)
    assert total is not None
    return total


# ---- windows that divide an input evenly -----------------------------------------------------------------------------


def even_windows(shape: Sequence[Size], parts: Sequence[Size]) -> tuple[int, int]:
    """The size of the windows that the last two axes are cut into."""
    found = []
    for size, count in zip(shape[-2:], parts[-2:], strict=True):
        if not isinstance(size, int) or not isinstance(count, int) or not count or size % count:
            raise NotLowered("windows of several sizes")
        found.append(size // count)
    return found[0], found[1]


@lowers(aten._adaptive_avg_pool2d.default)
def adaptive_average_pool(lowering: Lowering, node: Node, tensor: Tensor, sizes: Any) -> Tensor:
    refuse_empty(tensor)
    shape = sizes_of(node.meta["val"].shape)
    size = even_windows(tensor.shape, shape)
    if size[0] * size[1] <= LARGEST_WINDOW:
        total = added_up(Windows(size, size, (0, 0), (1, 1), shape), in_layout_of(lowering, tensor, node.args[0]))
    else:
        cut = (*shape[:-1], size[0], shape[-1], size[1])
        total = lowering.reduce(lowering.reshape(as_wide(tensor), cut), "sum", (len(shape) - 1, len(shape) + 1))
    for count in size:
        total = pointwise("div", total, scalar(count, total.dtype))
    return cast(total, tensor.dtype)


@lowers(aten._adaptive_avg_pool2d_backward.default)
def adaptive_average_pool_backward(lowering: Lowering, node: Node, gradient: Tensor, tensor: Tensor) -> Tensor:
    refuse_empty(tensor)
    size = even_windows(tensor.shape, gradient.shape)
    is_channels_last = not is_one(sizes_of(node.meta["val"].stride())[-1])
    return shared_out(lowering, node, gradient, size, [size[0] * size[1]] if is_channels_last else size)


@lowers(aten.avg_pool2d_backward.default)
def average_pool_backward(
    lowering: Lowering,
    node: Node,
    gradient: Tensor,
    tensor: Tensor,
    size: Any,
    step: Any,
    padding: Any,
    ceil_mode: bool,
    with_padding: bool,
    divisor: int | None,
) -> Tensor:
    refuse_empty(tensor)
    size = pair(size)
    if pair(step, size) != size or any(pair(padding)) or size != even_windows(tensor.shape, gradient.shape):
        raise NotLowered("windows that overlap or are not whole")
    return shared_out(lowering, node, gradient, size, [size[0] * size[1] if divisor is None else divisor])


def shared_out(
    lowering: Lowering, node: Node, gradient: Tensor, size: tuple[int, int], counts: Sequence[int]
) -> Tensor:
    """The gradient of each window, divided by these numbers, for all its places."""
    share = as_wide(gradient)
    for count in counts:
        share = pointwise("div", share, scalar(count, share.dtype))
    like, lead = node.meta["val"], gradient.rank - 2
    if not is_dense(like):
        raise NotLowered("a result with holes")
    buffer = lowering.new_buffer(gradient.dtype, sizes_of(like.shape), sizes_of(like.stride()))
    *outer, row, column = buffer.strides
    places = (*outer, row * size[0], row, column * size[1], column)
    shape = (*gradient.shape[:-1], size[0], gradient.shape[-1], size[1])
    rows = [({axis: 1}, 0) for axis in (*range(lead + 1), lead + 2)]
    value = tensor_views.affine(cast(share, gradient.dtype), shape, rows)
    lowering.write(Write(Access(buffer, places, 0), shape, value.expr))
    return load_whole(buffer)
