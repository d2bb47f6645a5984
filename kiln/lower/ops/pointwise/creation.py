"""Creation of tensors: constants, ranges, identity matrices, triangles. Ranges with fractional steps, whose rounding
cannot be repeated exactly, are left to ATen."""

from __future__ import annotations

from typing import Any

import sympy
import torch
from torch.fx import Node

from kiln.loops.ir import Buffer
from kiln.loops.steps import Call
from kiln.loops.tensor_layouts import load_whole, sizes_of
from kiln.loops.tensor_views import Tensor, expand
from kiln.program.operators.operator_table import find_operator

from ... import builders
from ...lowering import Lowering
from ...node_facts import may_be_kernel
from ...registry import NotLowered, lowers, lowers_dynamic_floats
from .formulas import Operand, as_type

aten = torch.ops.aten

# Places of the value in the arguments of operators that fill; None: a fixed one.
FILLED: dict[Any, tuple[int | None, int]] = {
    aten.full.default: (1, 0),
    aten.full_like.default: (1, 0),
    aten.new_full.default: (2, 0),
    aten.fill.Scalar: (1, 0),
    aten.scalar_tensor.default: (0, 0),
    aten.zeros.default: (None, 0),
    aten.zeros_like.default: (None, 0),
    aten.new_zeros.default: (None, 0),
    aten.zero.default: (None, 0),
    aten._efficientzerotensor.default: (None, 0),
    aten.ones.default: (None, 1),
    aten.ones_like.default: (None, 1),
    aten.new_ones.default: (None, 1),
}


def plain(node: Any) -> torch.Tensor:
    """The (fake) result, of ordinary memory (of the kernels' device: `Lowering.lower` has seen to that)."""
    result: torch.Tensor = node.meta["val"]
    if node.kwargs.get("pin_memory"):
        raise NotLowered("not in plain memory")
    return result


def filled(lowering: Lowering, node: Node, value: Operand) -> Tensor:
    result = plain(node)
    return expand(as_type(value, result.dtype), sizes_of(result.shape))


@lowers(*FILLED)
def fill(lowering: Lowering, node: Node, *args: Any, **kwargs: Any) -> Tensor:
    place, fixed = FILLED[node.target]
    return filled(lowering, node, fixed if place is None else args[place])


lowers_dynamic_floats(target for target, (place, _) in FILLED.items() if place is not None)


@lowers(aten.fill.Tensor)
def fill_tensor(lowering: Lowering, node: Node, x: Tensor, value: Tensor) -> Tensor:
    return expand(builders.cast(value, x.dtype), x.shape)


@lowers(aten.empty.memory_format, aten.empty_like.default, aten.empty_strided.default)
@lowers(aten.empty_permuted.default, aten.new_empty.default, aten.new_empty_strided.default)
def empty(lowering: Lowering, node: Node, *args: Any, **kwargs: Any) -> Tensor:
    """Uninitialized memory. It is allocated only where a call of ATen takes it (the random numbers of dropout only take
    its shape); in expressions it is zeros."""
    result = plain(node)
    if any(is_called(user) for user in node.users):
        buffer = lowering.external_buffer(node.name, result, "called")
        assert isinstance(buffer, Buffer)
        sizes, strides = sizes_of(result.shape), sizes_of(result.stride())
        options = {"dtype": result.dtype, **lowering.placement}
        call = Call(node, aten.empty_strided.default, (sizes, strides), options, [buffer])
        lowering.items.append(call)
        return load_whole(buffer)
    return filled(lowering, node, 0)


def is_called(user: Any) -> bool:
    """Whether a call of ATen takes it, or a view of it."""
    operator = find_operator(user.target)
    if user.op != "call_function" or operator is None:
        return False
    return any(map(is_called, user.users)) if operator.is_view else not may_be_kernel(user)


# ---- counts ----------------------------------------------------------------------------------------------------------

EXACT = {torch.float32: 2**24, torch.float64: 2**53}  # up to which all integers are floats


def count(lowering: Lowering, node: Node, start: Any, end: Any, step: Any) -> Tensor:
    result = plain(node)
    shape = sizes_of(result.shape)
    if result.dtype.is_floating_point:
        start, end, step = (whole_number(value) for value in (start, end, step))
        if max(abs(start), abs(end)) > EXACT.get(result.dtype, -1):
            raise NotLowered("counts that are rounded")
    elif not all(isinstance(value, (int, sympy.Expr)) for value in (start, end, step)):
        raise NotLowered("fractions as integers")
    return builders.cast(builders.positions(shape, 0, start, step), result.dtype)


def whole_number(value: Any) -> int:
    if not isinstance(value, (int, float)) or value != value or value in (float("inf"), float("-inf")):
        raise NotLowered("dynamic counts")
    if int(value) != value:
        raise NotLowered("fractional counts")
    return int(value)


@lowers(aten.arange.default)
def arange(lowering: Lowering, node: Node, end: Any, **options: Any) -> Tensor:
    return count(lowering, node, 0, end, 1)


@lowers(aten.arange.start)
def arange_start(lowering: Lowering, node: Node, start: Any, end: Any, **options: Any) -> Tensor:
    return count(lowering, node, start, end, 1)


@lowers(aten.arange.start_step)
def arange_step(lowering: Lowering, node: Node, start: Any, end: Any, step: Any = 1, **options: Any) -> Tensor:
    return count(lowering, node, start, end, step)


# ---- matrices --------------------------------------------------------------------------------------------------------


@lowers(aten.eye.default, aten.eye.m)
def eye(lowering: Lowering, node: Node, *sizes: Any, **options: Any) -> Tensor:
    result = plain(node)
    shape = sizes_of(result.shape)
    same = builders.pointwise("eq", builders.positions(shape, 0), builders.positions(shape, 1))
    return builders.cast(same, result.dtype)


def triangle(comparison: str, x: Tensor, diagonal: Any) -> Tensor:
    rows, columns = builders.positions(x.shape, x.rank - 2), builders.positions(x.shape, x.rank - 1)
    limit = builders.pointwise("add", rows, as_type(diagonal, torch.int64))
    return builders.where(builders.pointwise(comparison, columns, limit), x, builders.scalar(0, x.dtype))


@lowers(aten.tril.default)
def tril(lowering: Lowering, node: Node, x: Tensor, diagonal: Any = 0) -> Tensor:
    return triangle("le", x, diagonal)


@lowers(aten.triu.default)
def triu(lowering: Lowering, node: Node, x: Tensor, diagonal: Any = 0) -> Tensor:
    return triangle("ge", x, diagonal)
