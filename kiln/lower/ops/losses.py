"""The backward of the negative log likelihood. Its forward is ATen's, which checks that classes are within bounds."""

from __future__ import annotations

from typing import Any

import torch

from .. import views
from ..build import full, pointwise, positions, scalar, where
from ..lowering import Lowering
from ..registry import NotLowered, lowers
from ..views import Tensor
from .reducing import refuse_empty

aten = torch.ops.aten
Node = torch.fx.Node
NONE, MEAN = 0, 1  # how a loss is reduced


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
    """Zero but at the target's class."""
    refuse_empty(tensor)
    classes = 1 if tensor.rank > 1 else 0
    if target.rank != tensor.rank - 1:
        raise NotLowered("a target of another rank")
    each = gradient
    if reduction == MEAN:
        each = pointwise("div", gradient, total_weight)
    if reduction == NONE:
        each = views.unsqueeze(each, classes)
    if weight is not None:
        for _ in range(tensor.rank - classes - 1):
            weight = views.unsqueeze(weight, weight.rank)
        each = pointwise("mul", pointwise("neg", weight), each)
    else:
        each = pointwise("neg", each)
    at = positions(tensor.shape, classes)
    target = views.unsqueeze(target, classes)
    if target.dtype is not torch.int64:
        raise NotLowered("targets that are no int64")
    is_counted = pointwise("ne", target, full((), ignored, torch.int64))
    is_there = pointwise("and", pointwise("eq", at, target), is_counted)
    return where(is_there, each, scalar(0, tensor.dtype))
