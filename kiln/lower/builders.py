"""Builders of `Tensor`s for lowerings: elementwise operations, casts, constants and masks.

They are pure functions; what needs memory (reductions, scatters, materializing) is a method of `Lowering`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..loops import ir
from ..loops.sizes import Size, is_one, same
from ..loops.tensor_views import Tensor, expand
from .registry import NotLowered


def broadcast_shape(*shapes: Sequence[Size]) -> tuple[Size, ...]:
    rank = max((len(shape) for shape in shapes), default=0)
    found: list[Size] = [1] * rank
    for shape in shapes:
        for axis, size in enumerate(shape, rank - len(shape)):
            if is_one(found[axis]):
                found[axis] = size
            elif not is_one(size) and not same(size, found[axis]):
                raise NotLowered(f"shapes that are not known to be compatible: {size} and {found[axis]}")
    return tuple(found)


def broadcast(*tensors: Tensor) -> list[Tensor]:
    shape = broadcast_shape(*(tensor.shape for tensor in tensors))
    return [expand(tensor, shape) for tensor in tensors]


def pointwise(name: str, *tensors: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """An operation of `ir.OPERATIONS` on tensors of one type, which are broadcast."""
    tensors = tuple(broadcast(*tensors)) if len(tensors) > 1 else tensors
    return Tensor(tensors[0].shape, ir.op(name, *(tensor.expr for tensor in tensors), dtype=dtype))


def cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return Tensor(tensor.shape, ir.op("cast", tensor.expr, dtype=dtype))


def full(shape: Sequence[Size], value: bool | int | float, dtype: torch.dtype) -> Tensor:
    return Tensor(tuple(shape), ir.constant(value, dtype))


def scalar(value: bool | int | float, dtype: torch.dtype) -> Tensor:
    """A number, to be broadcast."""
    return full((), value, dtype)


def size_tensor(size: Size, dtype: torch.dtype = torch.int64) -> Tensor:
    """A size as a number, to be broadcast."""
    return cast(Tensor((), ir.size_value(size)), dtype)


def positions(shape: Sequence[Size], dim: int, start: Size = 0, step: Size = 1) -> Tensor:
    """The position along one axis (int64): ``start + step * i``."""
    return Tensor(tuple(shape), ir.iota(tuple(step if axis == dim else 0 for axis in range(len(shape))), start))


def where(condition: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    return pointwise("where", condition, yes, no)
