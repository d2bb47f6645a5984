"""Helpers of lowerings of reductions: axes, types, numbers of elements, results that are used.

ATen reduces float16 and bfloat16 in float32 and rounds once at the end; these lowerings do the same. Where ATen's
kernels on the CPU accumulate float32 in float64 (`moment_type`), they do so too, so that results are as exact.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.fx

from kiln.loops import ir, tensor_views
from kiln.loops.ir import Expr, varies_along, wide
from kiln.loops.sizes import Size, is_empty, is_one, product
from kiln.loops.tensor_views import Tensor

from .... import operator_functions as operator
from ...builders import cast, pointwise, size_tensor
from ...lowering import Lowering
from ...node_facts import getitem_arguments
from ...registry import NotLowered


def moment_type(lowering: Lowering, dtype: torch.dtype) -> torch.dtype:
    """The type of moments and of sums over whole batches, as in ATen's kernels: on the CPU one wider than the type
    itself; on a GPU, where partial sums are many and float64 may be slow, float32."""
    return torch.float64 if dtype is torch.float32 and lowering.device.type == "cpu" else wide(dtype)


def axes_of(rank: int, dims: int | Sequence[int] | None) -> tuple[int, ...]:
    """Axes as numbers from 0 up; none or no list of them means all. A tensor without axes counts as one with one."""
    rank = max(rank, 1)
    if dims is None or (not isinstance(dims, int) and not dims):
        return tuple(range(rank))
    given = [dims] if isinstance(dims, int) else dims
    return tuple(sorted({dim % rank for dim in given}))


def elements_along(shape: Sequence[Size], axes: Sequence[int]) -> Size:
    """The number of elements along these axes."""
    return product([shape[axis] for axis in axes])


def refuse_empty(*tensors: Tensor | None) -> None:
    """Leaves empty tensors to ATen: each operator treats them in its own way, and none is slow."""
    if any(tensor is not None and is_empty(tensor.shape) for tensor in tensors):
        raise NotLowered("no elements")


def refuse_possibly_empty(tensor: Tensor, axes: Sequence[int]) -> None:
    """For what eager refuses where there may be nothing along an axis, which torch's shape rule does not ask."""
    sizes = [tensor.shape[axis] for axis in axes if tensor.rank]
    if not all(size > 0 if isinstance(size, int) else size.is_positive for size in sizes):
        raise NotLowered("perhaps no elements")


def reduce(lowering: Lowering, tensor: Tensor, kind: str, axes: Sequence[int], keepdim: bool = False) -> Tensor:
    """As `Lowering.reduce`, also for a tensor without axes, and without a loop where there is one element to reduce."""
    if not tensor.rank:
        tensor, keepdim = tensor_views.unsqueeze(tensor, 0), False
    if all(is_one(tensor.shape[axis]) for axis in axes) and not kind.startswith("arg"):
        return tensor if keepdim else tensor_views.squeeze(tensor, axes)
    return lowering.reduce(tensor, kind, axes, keepdim)


def sum_along(lowering: Lowering, tensor: Tensor, axes: Sequence[int], keepdim: bool = False) -> Tensor:
    row = sum_of_one(tensor, axes[0]) if len(axes) == 1 and tensor.rank else None
    if row is not None:
        return row if keepdim else tensor_views.squeeze(row, axes)
    return reduce(lowering, tensor, "sum", axes, keepdim)


def sum_of_one(tensor: Tensor, axis: int) -> Tensor | None:
    """The sum along an axis of what is zero but in one place there, ``where(position == place and …, value, 0)``: no
    loop is needed. The gradient of a loss by class is such a thing. None for all else; axes of size 1 stay."""
    expr = tensor.expr
    if expr.kind != "where" or expr.args[2].kind != "const" or expr.args[2].payload != 0:
        return None
    conditions = conjuncts(expr.args[0])
    found = [part for part in conditions if is_at_one_place(part, axis)]
    rest = [part for part in conditions if part not in found]
    if len(found) != 1 or any(varies_along(part, axis) for part in (*rest, found[0].args[1], expr.args[1])):
        return None
    place = found[0].args[1]
    is_there = ir.op("ge", place, ir.constant(0, place.dtype))
    for part in (ir.op("lt", place, ir.size_value(tensor.shape[axis])), *rest):
        is_there = ir.op("and", is_there, part)
    row = Tensor(tensor.shape, ir.op("where", is_there, expr.args[1], expr.args[2]))
    return tensor_views.slice_(row, axis, 0, 1)


def conjuncts(expr: Expr) -> list[Expr]:
    """The truth values that are all true where an expression is."""
    return [part for arg in expr.args for part in conjuncts(arg)] if expr.kind == "and" else [expr]


def is_at_one_place(expr: Expr, axis: int) -> bool:
    """Whether it compares the position along an axis with something."""
    if expr.kind != "eq" or expr.args[0].kind != "iota":
        return False
    strides, offset = expr.args[0].payload
    return offset == 0 and all(stride == (1 if at == axis else 0) for at, stride in enumerate(strides))


def mean_along(lowering: Lowering, tensor: Tensor, axes: Sequence[int], keepdim: bool = False) -> Tensor:
    """The mean, in the tensor's own (wide) type."""
    count = elements_along(tensor.shape, axes) if tensor.rank else 1
    return divide(sum_along(lowering, tensor, axes, keepdim), count)


def divide(tensor: Tensor, count: Size) -> Tensor:
    return pointwise("div", tensor, size_tensor(count, tensor.dtype))


def once_per_row(lowering: Lowering, tensor: Tensor) -> Tensor:
    """A value of each row, computed once for it."""
    return lowering.in_memory(tensor)


def as_wide(tensor: Tensor) -> Tensor:
    return cast(tensor, wide(tensor.dtype))


def maybe_wide(tensor: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if tensor is None else cast(tensor, dtype)


def used_results(node: torch.fx.Node) -> set[int]:
    """The numbers of those of a node's results that are used."""
    return {int(getitem_arguments(user)[1]) for user in node.users if user.target is operator.getitem}
