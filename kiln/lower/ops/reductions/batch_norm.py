"""Batch normalization: from the batch's own statistics or from running ones, and its backward.

ATen sums float32 in float64 here, because a channel has many elements; these lowerings do the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kiln.loops import tensor_views
from kiln.loops.sizes import Size
from kiln.loops.tensor_views import Tensor

from ....platform.light_dataclass import dataclass
from ...builders import cast, full, pointwise, scalar, size_tensor, where
from ...lowering import Lowering
from ...registry import NotLowered, lowers
from ..movement.index_helpers import identity_rows
from .normalization import check_types, scaled
from .reduction_helpers import as_wide, divide, elements_along, moment_type, once_per_row, refuse_empty, sum_along

aten = torch.ops.aten
PARTS = 32  # of a batch, of which one gives a first guess of the mean
Node = torch.fx.Node


@dataclass
class Moments:
    """A channel's statistics, each of one axis, in the widest type."""

    mean: Tensor
    squares: Tensor  # the sum of the squares of distances from the mean
    count: Size
    inverse: Tensor  # one over the deviation


def over_channels(tensor: Tensor, like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """A value of each channel, broadcast over a tensor with channels at axis 1."""
    for axis in (0, *range(2, like.rank)):
        tensor = tensor_views.unsqueeze(tensor, axis)
    return cast(tensor, like.dtype if dtype is None else dtype)


def batch_axes(tensor: Tensor) -> tuple[int, ...]:
    return (0, *range(2, tensor.rank))


def moments(lowering: Lowering, tensor: Tensor, eps: float) -> Moments:
    axes, dtype = batch_axes(tensor), moment_type(lowering, tensor.dtype)
    value, count = cast(tensor, dtype), elements_along(tensor.shape, axes)
    batch = tensor.shape[0]
    if lowering.device.type == "cuda" and isinstance(batch, int):
        return moments_at_once(lowering, value, count, batch, eps)
    mean = once_per_row(lowering, divide(sum_along(lowering, value, axes), count))
    distance = pointwise("sub", value, over_channels(mean, value))
    squares = sum_along(lowering, pointwise("square", distance), axes)
    return Moments(mean, squares, count, one_over(lowering, divide(squares, count), eps))


def moments_at_once(lowering: Lowering, value: Tensor, count: Size, batch: int, eps: float) -> Moments:
    """In one run through memory: sums of distances from the mean of a part of the batch, and of their squares.

    The part's mean is at most √PARTS deviations away from that of all: so much less exact is the variance at worst."""
    axes = batch_axes(value)
    part = tensor_views.affine(value, (max(1, batch // PARTS), *value.shape[1:]), identity_rows(value.rank))
    guess = divide(sum_along(lowering, part, axes), elements_along(part.shape, axes))
    is_finite = pointwise("eq", pointwise("sub", guess, guess), scalar(0, value.dtype))
    guess = once_per_row(lowering, where(is_finite, guess, scalar(0, value.dtype)))
    distance = pointwise("sub", value, over_channels(guess, value))
    total = sum_along(lowering, distance, axes)
    squares = sum_along(lowering, pointwise("square", distance), axes)
    moved_by = divide(total, count)
    mean = once_per_row(lowering, pointwise("add", guess, moved_by))
    squares = pointwise("sub", squares, pointwise("mul", total, moved_by))
    squares = once_per_row(lowering, pointwise("maximum", squares, scalar(0, value.dtype)))
    return Moments(mean, squares, count, one_over(lowering, divide(squares, count), eps))


def one_over(lowering: Lowering, variance: Tensor, eps: float) -> Tensor:
    return once_per_row(lowering, pointwise("rsqrt", pointwise("add", variance, scalar(eps, variance.dtype))))


def normalize(value: Tensor, mean: Tensor, inverse: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """The result, in the wide type of ``value``; all others have one axis."""
    distance = pointwise("sub", value, over_channels(mean, value))
    rows = pointwise("mul", distance, over_channels(inverse, value))
    factors = [None if one is None else over_channels(one, value) for one in (weight, bias)]
    return scaled(rows, *factors)


def moved(running: Tensor, new: Tensor, momentum: float) -> Tensor:
    """A running statistic, a step towards the new one."""
    dtype = new.dtype
    step = pointwise("mul", new, scalar(momentum, dtype))
    return cast(
        pointwise("add", step, pointwise("mul", cast(running, dtype), scalar(1 - momentum, dtype))), running.dtype
    )


def training(
    lowering: Lowering, node: Node, tensor: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[list[Tensor], Moments]:
    """Result, mean and inverse deviation of a batch; and its statistics."""
    refuse_empty(tensor)
    check_types(tensor, weight, bias)
    if tensor.rank < 2:
        raise NotLowered("no axis of channels")
    known = moments(lowering, tensor, eps)
    found = normalize(as_wide(tensor), known.mean, known.inverse, weight, bias)
    values = node.meta["val"]
    return [cast(one, values[at].dtype) for at, one in enumerate((found, known.mean, known.inverse))], known


def running_statistics(node: Node, known: Moments, mean: Tensor, variance: Tensor, momentum: float) -> list[Tensor]:
    """The last two results. They are float32 for every type of the running statistics."""
    dtype = known.mean.dtype
    unbiased = pointwise("div", known.squares, pointwise("sub", size_tensor(known.count, dtype), scalar(1, dtype)))
    found = moved(mean, known.mean, momentum), moved(variance, unbiased, momentum)
    return [cast(one, value.dtype) for one, value in zip(found, node.meta["val"][-2:], strict=True)]


def evaluation(
    lowering: Lowering, node: Node, tensor: Tensor, weight: Any, bias: Any, mean: Tensor, variance: Tensor, eps: float
) -> list[Tensor]:
    """With statistics that are given. What is saved for the backward is empty then on the CPU, and those on a GPU."""
    refuse_empty(tensor)
    check_types(tensor, weight, bias, mean, variance)
    value = as_wide(tensor)
    inverse = one_over(lowering, cast(variance, value.dtype), eps)
    found = normalize(value, mean, inverse, weight, bias)
    saved = node.meta["val"][1:3]
    if lowering.device.type == "cpu":
        return [cast(found, tensor.dtype), *(full((0,), 0, one.dtype) for one in saved)]
    return [cast(found, tensor.dtype), cast(mean, saved[0].dtype), cast(inverse, saved[1].dtype)]


@lowers(aten.native_batch_norm.default)
def batch_norm(
    lowering: Lowering,
    node: Node,
    tensor: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    is_training: bool,
    momentum: float,
    eps: float,
) -> Any:
    if not is_training:
        if mean is None or variance is None:
            raise NotLowered("no statistics")
        return tuple(evaluation(lowering, node, tensor, weight, bias, mean, variance, eps))
    if mean is not None or variance is not None:
        raise NotLowered("running statistics that the operator changes")
    return tuple(training(lowering, node, tensor, weight, bias, eps)[0])


@lowers(aten._native_batch_norm_legit.no_stats)
def batch_norm_no_stats(
    lowering: Lowering, node: Node, tensor: Tensor, weight: Any, bias: Any, is_training: bool, momentum: Any, eps: float
) -> Any:
    return tuple(training(lowering, node, tensor, weight, bias, eps)[0])


@lowers(aten._native_batch_norm_legit_no_training.default)
def batch_norm_no_training(
    lowering: Lowering, node: Node, tensor: Tensor, weight: Any, bias: Any, mean: Any, variance: Any, _: Any, eps: float
) -> Any:
    return tuple(evaluation(lowering, node, tensor, weight, bias, mean, variance, eps))


@lowers(aten._native_batch_norm_legit_functional.default)
def batch_norm_functional(
    lowering: Lowering,
    node: Node,
    tensor: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    variance: Tensor,
    is_training: bool,
    momentum: float,
    eps: float,
) -> Any:
    if not is_training:
        kept_as_they_are = (
            cast(one, value.dtype) for one, value in zip((mean, variance), node.meta["val"][3:], strict=True)
        )
        return (*evaluation(lowering, node, tensor, weight, bias, mean, variance, eps), *kept_as_they_are)
    found, known = training(lowering, node, tensor, weight, bias, eps)
    return (*found, *running_statistics(node, known, mean, variance, momentum))


@lowers(aten._batch_norm_with_update_functional.default)
def batch_norm_with_update(
    lowering: Lowering,
    node: Node,
    tensor: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    variance: Tensor,
    momentum: float,
    eps: float,
) -> Any:
    found, known = training(lowering, node, tensor, weight, bias, eps)
    reserved = full((0,), 0, node.meta["val"][3].dtype)
    return (*found, reserved, *running_statistics(node, known, mean, variance, momentum))


@lowers(aten.cudnn_batch_norm.default, aten.miopen_batch_norm.default)
def library_batch_norm(
    lowering: Lowering,
    node: Node,
    tensor: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    is_training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """cuDNN's, which saves nothing for a backward with statistics that are given, and reserves memory of its own."""
    reserved = [full(tuple(one.shape), 0, one.dtype) for one in node.meta["val"][3:]]
    if is_training:
        if mean is not None or variance is not None:
            raise NotLowered("running statistics that the operator changes")
        return (*training(lowering, node, tensor, weight, bias, eps)[0], *reserved)
    if mean is None or variance is None:
        raise NotLowered("no statistics")
    found = evaluation(lowering, node, tensor, weight, bias, mean, variance, eps)
    saved = [full(tuple(one.shape), 0, one.dtype) for one in node.meta["val"][1:3]]
    return (found[0], *saved, *reserved)


# ---- backward --------------------------------------------------------------------------------------------------------


@lowers(aten.native_batch_norm_backward.default)
def batch_norm_backward(
    lowering: Lowering,
    node: Node,
    gradient: Tensor,
    tensor: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_variance: Tensor | None,
    mean: Tensor | None,
    inverse: Tensor | None,
    is_training: bool,
    eps: float,
    mask: Sequence[bool],
) -> Any:
    refuse_empty(tensor)
    dtype = moment_type(lowering, tensor.dtype)
    if not is_training:
        if running_mean is None or running_variance is None:
            raise NotLowered("no statistics")
        mean, inverse = running_mean, one_over(lowering, cast(running_variance, dtype), eps)
    if mean is None or inverse is None:
        raise NotLowered("no statistics")
    value, axes = as_wide(tensor), batch_axes(tensor)
    gradient, inverse = cast(gradient, value.dtype), cast(inverse, dtype)
    distance = pointwise("sub", value, over_channels(mean, value))
    along = sum_along(lowering, cast(pointwise("mul", gradient, distance), dtype), axes)
    summed = sum_along(lowering, cast(gradient, dtype), axes)
    factor = inverse if weight is None else pointwise("mul", inverse, cast(weight, dtype))
    of_input = gradient
    if is_training:
        count = elements_along(tensor.shape, axes)
        slope = once_per_row(lowering, divide(pointwise("mul", pointwise("square", inverse), along), count))
        rest = pointwise("mul", distance, over_channels(slope, value))
        of_input = pointwise("sub", gradient, over_channels(once_per_row(lowering, divide(summed, count)), value))
        of_input = pointwise("sub", of_input, rest)
    of_input = pointwise("mul", of_input, over_channels(once_per_row(lowering, factor), value))
    found = (of_input, pointwise("mul", along, inverse), summed)
    return tuple(
        cast(result, expected.dtype) if want and expected is not None else None
        for result, want, expected in zip(found, mask, node.meta["val"], strict=True)
    )


@lowers(aten.batch_norm_backward.default)
def batch_norm_with_update_backward(
    lowering: Lowering,
    node: Node,
    gradient: Tensor,
    tensor: Tensor,
    weight: Tensor,
    running_mean: Tensor | None,
    running_variance: Tensor | None,
    mean: Tensor | None,
    inverse: Tensor | None,
    update: bool,
    eps: float,
    mask: Sequence[bool],
    reserved: Tensor,
) -> Any:
    statistics = (running_mean, running_variance, mean, inverse)
    return batch_norm_backward(lowering, node, gradient, tensor, weight, *statistics, update, eps, mask)
