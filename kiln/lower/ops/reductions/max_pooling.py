"""Max pools and their gradients, with the places of maxima in the plane (ATen's) or in the window (Kiln's own).

The gradient is computed for each element of the input, from the windows that it is in. Which those are depends on the
remainders of its row and column by the steps alone. So the elements are cut into classes of equal remainders: along a
class, windows and elements are side by side, and the place that a window must have is a number or a plain position.
The classes are written by one kernel where they have the same shape. It loads each window once for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import torch

from kiln.loops import tensor_views
from kiln.loops.ir import Access, Write, iota
from kiln.loops.sizes import Size, is_empty
from kiln.loops.tensor_layouts import is_dense, load_whole, sizes_of
from kiln.loops.tensor_views import Tensor

from ....program.operators.pooling_operators import NOWHERE, WITH_OFFSETS, WITH_OFFSETS_BACKWARD
from ...builders import cast, pointwise, positions, scalar, size_tensor, where
from ...lowering import Lowering
from ...registry import NotLowered, lowers
from ..movement.index_helpers import all_masks
from .pooling import Windows, in_layout_of, pair, windows_of
from .reduction_helpers import as_wide, used_results

aten = torch.ops.aten
Node = torch.fx.Node
MOST_CLASSES, MOST_SHARES = 16, 64
PlaceOf = Callable[[int, int], Tensor]  # the place of an element of each window, of this row and column


@lowers(aten.max_pool2d_with_indices.default)
def max_pool(
    lowering: Lowering, node: Node, tensor: Tensor, size: Any, step: Any, padding: Any, dilation: Any, ceil_mode: bool
) -> Any:
    """The maximum of each window, and its index in the plane: of the first maximum, or of the last NaN."""
    windows, width = checked_windows(node, tensor, size, step, padding, dilation), tensor.shape[-1]
    if lowering.device.type == "cuda" and 1 in used_results(node) and not node.meta["val"][0].is_contiguous():
        raise NotLowered("indices of windows of minus infinity, which ATen's kernel for this layout has otherwise")
    strides = (*([0] * (tensor.rank - 2)), windows.step[0] * width, windows.step[1])

    def place_of(row: int, column: int) -> Tensor:
        first, second = windows.start(row, column)
        return Tensor(windows.shape, iota(strides, first * width + second))

    first = first_place(windows, place_of, size_tensor(width), 1)
    return best_of(lowering, node, windows, tensor, place_of, first)


@lowers(WITH_OFFSETS)
def max_pool_with_offsets(
    lowering: Lowering,
    node: Node,
    tensor: Tensor,
    size: Any,
    step: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
    is_first_of_plane: bool,
) -> Any:
    """The maximum of each window, and its place there."""
    windows = checked_windows(node, tensor, size, step, padding, dilation)

    def place_of(row: int, column: int) -> Tensor:
        return scalar(row * windows.size[1] + column, torch.int32)

    first = first_place(windows, place_of, scalar(windows.size[1], torch.int64), -1)
    if is_first_of_plane:
        zero, lead = scalar(0, torch.int64), tensor.rank - 2
        starts = (positions(windows.shape, lead + at, -windows.padding[at], windows.step[at]) for at in range(2))
        row, column = (pointwise("le", one, zero) for one in starts)
        first = where(pointwise("and", row, column), cast(first, torch.int32), scalar(NOWHERE, torch.int32))
    return best_of(lowering, node, windows, tensor, place_of, cast(first, torch.int32))


def checked_windows(node: Node, tensor: Tensor, size: Any, step: Any, padding: Any, dilation: Any) -> Windows:
    windows = windows_of(node, tensor, size, step, padding, dilation)
    if not tensor.dtype.is_floating_point:
        raise NotLowered("integers")
    if any(windows.padding) and windows.dilation != (1, 1):
        raise NotLowered("padding with dilation")
    return windows


def first_place(windows: Windows, place_of: PlaceOf, width: Tensor, sign: int) -> Tensor:
    """The place of the first element of each window that is inside of the plane, of rows of this width: as a row and a
    column of the plane (``sign`` 1), or of the window (-1)."""
    if not any(windows.padding):
        return place_of(0, 0)
    zero, lead = scalar(0, torch.int64), len(windows.shape) - 2
    row, column = (
        positions(windows.shape, lead + at, -sign * windows.padding[at], sign * windows.step[at]) for at in range(2)
    )
    row, column = (pointwise("maximum", one, zero) for one in (row, column))
    return pointwise("add", pointwise("mul", row, width), column)


def best_of(
    lowering: Lowering, node: Node, windows: Windows, tensor: Tensor, place_of: PlaceOf, place: Tensor
) -> tuple[Tensor, Tensor | None]:
    """The maxima, and their places; ``place``: where there is nothing above minus infinity."""
    tensor = in_layout_of(lowering, tensor, node.args[0])
    best = scalar(float("-inf"), tensor.dtype)
    for row, column in product(*map(range, windows.size)):
        value, inside = windows.seen(tensor, windows.start(row, column))
        better = pointwise("or", pointwise("gt", value, best), pointwise("isnan", value))
        if inside is not None:
            better = pointwise("and", better, inside)
        best, place = where(better, value, best), where(better, place_of(row, column), place)
    if 1 not in used_results(node):
        return best, None
    values, places = node.meta["val"]  # in memory both: one kernel writes them
    return lowering.materialize(best, values), lowering.materialize(cast(place, places.dtype), places)


# ---- gradients -------------------------------------------------------------------------------------------------------


@lowers(aten.max_pool2d_with_indices_backward.default)
def max_pool_backward(
    lowering: Lowering,
    node: Node,
    gradient: Tensor,
    tensor: Tensor,
    size: Any,
    step: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
    indices: Tensor,
) -> Tensor:
    windows = windows_of_gradient(lowering, gradient, tensor.shape, size, step, padding, dilation)
    width = tensor.shape[-1]

    def place_of(shape: Sequence[Size], rests: tuple[int, int], row: int, column: int) -> Tensor:
        first, second = windows.step
        strides = (*([0] * (len(shape) - 2)), first * width, second)
        return Tensor(tuple(shape), iota(strides, rests[0] * width + rests[1]))

    places = in_layout_of(lowering, indices, node.args[-1])
    return shares_of_classes(lowering, node, windows, gradient, places, place_of)


@lowers(WITH_OFFSETS_BACKWARD)
def max_pool_with_offsets_backward(
    lowering: Lowering,
    node: Node,
    gradient: Tensor,
    offsets: Tensor,
    shape: Any,
    size: Any,
    step: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
) -> Tensor:
    windows = windows_of_gradient(lowering, gradient, shape, size, step, padding, dilation)

    def place_of(shape: Sequence[Size], rests: tuple[int, int], row: int, column: int) -> Tensor:
        return scalar(row * windows.size[1] + column, torch.int8)

    places = in_layout_of(lowering, offsets, node.args[1])
    return shares_of_classes(lowering, node, windows, gradient, places, place_of)


def windows_of_gradient(
    lowering: Lowering, gradient: Tensor, shape: Sequence[Size], size: Any, step: Any, padding: Any, dilation: Any
) -> Windows:
    """On CPUs ATen writes from windows to elements."""
    if lowering.device.type == "cpu" or torch.are_deterministic_algorithms_enabled():
        raise NotLowered("gradients that are written by indices")
    if is_empty(gradient.shape) or is_empty(shape):
        raise NotLowered("no elements")
    found = Windows(pair(size), pair(step, pair(size)), pair(padding), pair(dilation), gradient.shape)
    if not all(isinstance(one, int) for one in (*gradient.shape[-2:], *shape[-2:])):
        raise NotLowered("windows over dynamic sizes")
    if found.step[0] * found.step[1] > MOST_CLASSES or found.size[0] * found.size[1] > MOST_SHARES:
        raise NotLowered("large windows, or large steps")
    return found


def shares_of_classes(
    lowering: Lowering, node: Node, windows: Windows, gradient: Tensor, places: Tensor, place_of: Callable[..., Tensor]
) -> Tensor:
    """Each element adds up, in order, the gradients of the windows that it is the maximum of."""
    like = node.meta["val"]
    if not is_dense(like):
        raise NotLowered("a result with holes")
    gradient = in_layout_of(lowering, gradient, node.args[0])
    shape, strides = sizes_of(like.shape), sizes_of(like.stride())
    buffer = lowering.new_buffer(gradient.dtype, shape, strides)
    buffer.is_pieced = windows.step != (1, 1)
    *outer, row, column = strides
    for rests in product(*map(range, windows.step)):
        part = (
            *shape[:-2],
            *(-((rest - size) // by) for rest, size, by in zip(rests, shape[-2:], windows.step, strict=True)),
        )
        if not part[-1] or not part[-2]:
            continue
        total = scalar(0, as_wide(gradient).dtype)
        for rows, columns in product(*(windows_at(windows, at, rests[at]) for at in range(2))):
            found = windows_beside(windows, part, (gradient, places), (rows[1], columns[1]))
            wanted = place_of(part, rests, rows[0], columns[0])
            share = where(pointwise("eq", found[1], wanted), as_wide(found[0]), scalar(0, total.dtype))
            total = pointwise("add", total, share)
        place = Access(
            buffer, (*outer, row * windows.step[0], column * windows.step[1]), rests[0] * row + rests[1] * column
        )
        lowering.write(Write(place, part, tensor_views.expand(cast(total, gradient.dtype), part).expr))
    return load_whole(buffer)


def windows_at(windows: Windows, at: int, rest: int) -> list[tuple[int, int]]:
    """Along one axis, the windows of an element with this remainder: its place in the window, and how far the window's
    number is from the element's among those of equal remainder; in the order of windows."""
    found = []
    for place in reversed(range(windows.size[at])):
        far, over = divmod(rest + windows.padding[at] - place * windows.dilation[at], windows.step[at])
        if not over:
            found.append((place, far))
    return found


def windows_beside(
    windows: Windows, shape: Sequence[Size], tensors: Sequence[Tensor], far: tuple[int, int]
) -> list[Tensor]:
    """What windows so far away have, beside each element of a class; 0 where there is no such window."""
    lead = len(shape) - 2
    rows: list[Any] = [({axis: 1}, 0) for axis in range(lead)]
    rows += [({lead + at: 1}, far[at]) for at in range(2)]
    masks = []
    for at in range(2):
        here, last = positions(shape, lead + at, far[at]), shape[lead + at] - 1 + far[at]
        if far[at] < 0:
            masks.append(pointwise("ge", here, scalar(0, torch.int64)))
        if last >= windows.shape[lead + at]:
            masks.append(pointwise("lt", here, size_tensor(windows.shape[lead + at])))
    found = [tensor_views.affine(tensor, shape, rows) for tensor in tensors]
    inside = all_masks(masks)
    return found if inside is None else [tensor_views.masked(tensor, inside) for tensor in found]
