"""Layer, group and root-mean-square normalization, and their backwards.

All are one thing: rows of a tensor (some of its axes reduced) brought to mean 0 and variance 1, then scaled and moved.
The gradient of the input takes one kernel, those of weight and bias another. float16 and bfloat16 are computed in
float32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kiln.loops import tensor_views
from kiln.loops.ir import wide
from kiln.loops.sizes import Size
from kiln.loops.tensor_views import Tensor

from ...builders import cast, pointwise, scalar
from ...lowering import Lowering
from ...registry import NotLowered, lowers
from .reduction_helpers import as_wide, maybe_wide, mean_along, once_per_row, refuse_empty, sum_along, used_results

aten = torch.ops.aten
Node = torch.fx.Node


def normalized(lowering: Lowering, value: Tensor, axes: Sequence[int], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """The rows normalized, their means and the reciprocals of their deviations (both with axes of size 1)."""
    mean = once_per_row(lowering, mean_along(lowering, value, axes, keepdim=True))
    distance = pointwise("sub", value, mean)
    spread = mean_along(lowering, pointwise("square", distance), axes, keepdim=True)
    inverse = once_per_row(lowering, pointwise("rsqrt", pointwise("add", spread, scalar(eps, value.dtype))))
    return pointwise("mul", distance, inverse), mean, inverse


def scaled(value: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Times the weight, plus the bias, where there are any."""
    if weight is not None:
        value = pointwise("mul", value, weight)
    return value if bias is None else pointwise("add", value, bias)


def gradient_of_input(
    lowering: Lowering, gradient: Tensor, rows: Tensor, inverse: Tensor, axes: Sequence[int], centred: bool = True
) -> Tensor:
    """What normalization makes of the gradient of its (unscaled) result; ``rows`` is that result."""
    along = mean_along(lowering, pointwise("mul", gradient, rows), axes, keepdim=True)
    found = pointwise("sub", gradient, pointwise("mul", rows, along))
    if centred:
        mean = mean_along(lowering, gradient, axes, keepdim=True)
        found = pointwise("sub", pointwise("sub", gradient, mean), pointwise("mul", rows, along))
    return pointwise("mul", found, inverse)


def check_types(tensor: Tensor, *parameters: Tensor | None) -> None:
    """Parameters are of the tensor's type, or float32 beside a low one; eager refuses others."""
    dtypes = {parameter.dtype for parameter in parameters if parameter is not None}
    if dtypes not in (set(), {tensor.dtype}, {wide(tensor.dtype)}):
        raise NotLowered("parameters of another type")


def results(node: Node, *found: Tensor | None) -> tuple[Tensor | None, ...]:
    """Each in the type that the node's result has; None where it has none."""
    values = node.meta["val"]
    return tuple(
        None if one is None or value is None else cast(one, value.dtype)
        for one, value in zip(found, values, strict=True)
    )


# ---- layer norm ------------------------------------------------------------------------------------------------------


def last_axes(tensor: Tensor, shape: Sequence[Size]) -> tuple[int, ...]:
    return tuple(range(tensor.rank - len(shape), tensor.rank))


@lowers(aten.native_layer_norm.default)
def layer_norm(
    lowering: Lowering,
    node: Node,
    tensor: Tensor,
    shape: Sequence[Size],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> Any:
    refuse_empty(tensor)
    check_types(tensor, weight, bias)
    value = as_wide(tensor)
    rows, mean, inverse = normalized(lowering, value, last_axes(tensor, shape), eps)
    result = scaled(rows, maybe_wide(weight, value.dtype), maybe_wide(bias, value.dtype))
    return results(node, result, mean, inverse)


@lowers(aten.native_layer_norm_backward.default)
def layer_norm_backward(
    lowering: Lowering,
    node: Node,
    gradient: Tensor,
    tensor: Tensor,
    shape: Sequence[Size],
    mean: Tensor,
    inverse: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mask: Sequence[bool],
) -> Any:
    refuse_empty(tensor)
    value = as_wide(tensor)
    gradient, inverse = cast(gradient, value.dtype), cast(inverse, value.dtype)
    rows = pointwise("mul", pointwise("sub", value, cast(mean, value.dtype)), inverse)
    axes = last_axes(tensor, shape)
    batch = range(tensor.rank - len(shape))
    asked = [bool(want) and number in used_results(node) for number, want in enumerate(mask)]
    of_input = of_weight = of_bias = None
    if asked[0]:
        outer = scaled(gradient, maybe_wide(weight, value.dtype), None)
        of_input = gradient_of_input(lowering, outer, rows, inverse, axes)
    if asked[1] and weight is not None:
        of_weight = summed(lowering, pointwise("mul", gradient, rows), batch)
    if asked[2]:
        of_bias = summed(lowering, gradient, batch)
    return results(node, of_input, of_weight, of_bias)


def summed(lowering: Lowering, tensor: Tensor, axes: Sequence[int]) -> Tensor:
    return sum_along(lowering, tensor, axes) if axes else tensor


# ---- root mean square ------------------------------------------------------------------------------------------------


def rms_norm(
    lowering: Lowering, node: Node, tensor: Tensor, shape: Sequence[Size], weight: Tensor | None, eps: float | None
) -> Any:
    refuse_empty(tensor)
    value = as_wide(tensor)
    eps = torch.finfo(value.dtype).eps if eps is None else eps
    squares = mean_along(lowering, pointwise("square", value), last_axes(tensor, shape), keepdim=True)
    inverse = once_per_row(lowering, pointwise("rsqrt", pointwise("add", squares, scalar(eps, value.dtype))))
    return results(node, scaled(pointwise("mul", value, inverse), maybe_wide(weight, value.dtype), None), inverse)


def rms_norm_backward(
    lowering: Lowering,
    node: Node,
    gradient: Tensor,
    tensor: Tensor,
    shape: Sequence[Size],
    inverse: Tensor,
    weight: Tensor | None,
    mask: Sequence[bool],
) -> Any:
    refuse_empty(tensor)
    value = as_wide(tensor)
    gradient, inverse = cast(gradient, value.dtype), cast(inverse, value.dtype)
    rows = pointwise("mul", value, inverse)
    of_input = of_weight = None
    if mask[0]:
        outer = scaled(gradient, maybe_wide(weight, value.dtype), None)
        of_input = gradient_of_input(lowering, outer, rows, inverse, last_axes(tensor, shape), centred=False)
    if mask[1] and weight is not None:
        of_weight = summed(lowering, pointwise("mul", gradient, rows), range(tensor.rank - len(shape)))
    return results(node, of_input, of_weight)


for name, rule in (("_fused_rms_norm", rms_norm), ("_fused_rms_norm_backward", rms_norm_backward)):
    if hasattr(aten, name):  # not in all versions of torch
        lowers(getattr(aten, name).default)(rule)


# ---- group norm ------------------------------------------------------------------------------------------------------


def in_groups(lowering: Lowering, tensor: Tensor, groups: int) -> Tensor:
    """The axis of the channels cut in two: groups, channels of a group."""
    channels = tensor.shape[1]
    if not isinstance(channels, int) or channels % groups:
        raise NotLowered("channels of an unknown number")
    return lowering.reshape(tensor, (tensor.shape[0], groups, channels // groups, *tensor.shape[2:]))


def of_channels(lowering: Lowering, tensor: Tensor | None, groups: int, value: Tensor) -> Tensor | None:
    """A value of each channel, to be broadcast over tensors in groups."""
    if tensor is None:
        return None
    shape = (groups, value.shape[2], *([1] * (value.rank - 3)))
    return cast(lowering.reshape(tensor, shape), value.dtype)


def of_groups(lowering: Lowering, tensor: Tensor, value: Tensor) -> Tensor:
    """A value of each group, to be broadcast likewise."""
    return cast(lowering.reshape(tensor, (*value.shape[:2], *([1] * (value.rank - 2)))), value.dtype)


@lowers(aten.native_group_norm.default)
def group_norm(
    lowering: Lowering,
    node: Node,
    tensor: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    batch: Size,
    channels: Size,
    inner: Size,
    groups: int,
    eps: float,
) -> Any:
    refuse_empty(tensor)
    check_types(tensor, weight, bias)
    value = in_groups(lowering, as_wide(tensor), groups)
    rows, mean, inverse = normalized(lowering, value, range(2, value.rank), eps)
    result = scaled(rows, *(of_channels(lowering, one, groups, value) for one in (weight, bias)))
    mean, inverse = (tensor_views.squeeze(one, range(2, value.rank)) for one in (mean, inverse))
    found = lowering.reshape(cast(result, tensor.dtype), tensor.shape)
    return results(node, found, mean, inverse)


@lowers(aten.native_group_norm_backward.default)
def group_norm_backward(
    lowering: Lowering,
    node: Node,
    gradient: Tensor,
    tensor: Tensor,
    mean: Tensor,
    inverse: Tensor,
    weight: Tensor | None,
    batch: Size,
    channels: Size,
    inner: Size,
    groups: int,
    mask: Sequence[bool],
) -> Any:
    refuse_empty(tensor)
    value = in_groups(lowering, as_wide(tensor), groups)
    gradient = in_groups(lowering, cast(gradient, value.dtype), groups)
    mean, inverse = of_groups(lowering, mean, value), of_groups(lowering, inverse, value)
    rows = pointwise("mul", pointwise("sub", value, mean), inverse)
    of_input = of_weight = of_bias = None
    if mask[0]:
        outer = scaled(gradient, of_channels(lowering, weight, groups, value), None)
        of_input = gradient_of_input(lowering, outer, rows, inverse, range(2, value.rank))
        of_input = lowering.reshape(cast(of_input, tensor.dtype), tensor.shape)
    spread = (0, *range(3, value.rank))
    if mask[1]:
        of_weight = lowering.reshape(sum_along(lowering, pointwise("mul", gradient, rows), spread), (tensor.shape[1],))
    if mask[2]:
        of_bias = lowering.reshape(sum_along(lowering, gradient, spread), (tensor.shape[1],))
    return results(node, of_input, of_weight, of_bias)
