"""The negative log likelihood and its backward."""

from __future__ import annotations

from typing import Any

import torch

from kiln.loops import tensor_views
from kiln.loops.tensor_views import Tensor

from ... import index_checks
from ...builders import cast, full, pointwise, positions, scalar, where
from ...lowering import Lowering
from ...registry import NotLowered, lowers
from ..movement.index_helpers import identity_rows
from .reduction_helpers import as_wide, refuse_empty, sum_along

aten = torch.ops.aten
Node = torch.fx.Node
NONE, MEAN = 0, 1  # how a loss is reduced
CLASSES = 1  # the axis


def check_ranks(tensor: Tensor, target: Tensor) -> None:
    refuse_empty(tensor)
    if tensor.rank < 2 or target.rank != tensor.rank - 1:
        raise NotLowered("no axis of samples, or a target of another rank")
    if target.dtype is not torch.int64:
        raise NotLowered("targets that are no int64")


def is_counted(target: Tensor, ignored: Any) -> Tensor:
    return pointwise("ne", target, full((), ignored, torch.int64))


@lowers(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
def nll_loss(
    lowering: Lowering,
    node: Node,
    tensor: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignored: Any,
) -> tuple[Tensor, Tensor]:
    """The loss, and the sum of the weights that count."""
    check_ranks(tensor, target)
    counted = is_counted(target, ignored)
    zero = scalar(0, torch.int64)
    index = index_checks.checked_index(
        lowering, where(counted, target, zero), tensor.shape[CLASSES], index_checks.OUT_OF_CLASSES
    )
    rows = identity_rows(target.rank)
    each = tensor_views.indexed(as_wide(tensor), target.shape, [*rows[:CLASSES], index, *rows[CLASSES:]])
    each = pointwise("neg", each)
    share = full(target.shape, 1, each.dtype)
    if weight is not None:
        share = tensor_views.indexed(cast(weight, each.dtype), target.shape, [index])
        each = pointwise("mul", each, share)
    nothing = scalar(0, each.dtype)
    each, share = where(counted, each, nothing), where(counted, share, nothing)
    if reduction == NONE:
        return cast(each, tensor.dtype), full((), 0, tensor.dtype)
    axes = range(target.rank)
    loss, weights = sum_along(lowering, each, axes), sum_along(lowering, share, axes)
    if reduction == MEAN:
        loss = pointwise("div", loss, weights)
    return cast(loss, tensor.dtype), cast(weights, tensor.dtype)


@lowers(aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)
def nll_loss_backward(
    lowering: Lowering,
    node: Node,
    gradient: Tensor,
    tensor: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignored: Any,
    total_weight: Tensor,
) -> Tensor:
    """Zero but at the target's class, where the gradient is the loss's times the weight."""
    check_ranks(tensor, target)
    each = gradient
    if reduction == MEAN:
        each = pointwise("div", gradient, total_weight)
    if reduction == NONE:
        each = tensor_views.unsqueeze(each, CLASSES)
    each = pointwise("neg", each)
    if weight is not None:
        for _ in range(tensor.rank - CLASSES - 1):
            weight = tensor_views.unsqueeze(weight, weight.rank)
        each = pointwise("mul", weight, each)
    target = tensor_views.unsqueeze(target, CLASSES)
    is_there = pointwise("eq", positions(tensor.shape, CLASSES), target)
    is_there = pointwise("and", is_there, is_counted(target, ignored))
    return where(is_there, each, scalar(0, tensor.dtype))
