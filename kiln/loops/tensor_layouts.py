"""Facts about (fake) tensors: sizes as numbers or expressions, layouts, whether kernels can read and write them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..platform.torch_symbols import expression_of
from ..platform.torch_symbols import hint_of as symbol_hint
from . import ir
from .ir import Access, Buffer
from .sizes import Size, fills_memory, is_empty, is_one, same
from .tensor_views import Tensor

FLOAT8_TYPES = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
# What a kernel can hold. Everything else (complex numbers, quantized types …) passes through calls only.
KERNEL_TYPES = frozenset(
    (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8)
    + (torch.uint8, torch.bool)
    + FLOAT8_TYPES
)


def load_whole(buffer: Buffer) -> Tensor:
    return Tensor(buffer.shape, ir.load(Access(buffer, buffer.strides, 0)))


def size_of(value: Any) -> Size:
    """A size as an int or a sympy expression."""
    if isinstance(value, int):
        return value
    expr = expression_of(value)
    return int(expr) if expr.is_Integer else expr


def sizes_of(values: Sequence[Any]) -> tuple[Size, ...]:
    return tuple(map(size_of, values))


def fits_kernels(value: torch.Tensor, device: torch.device) -> bool:
    """Whether kernels for a device can read and write such a tensor."""
    place = value.device
    return (
        place.type == device.type
        and (place.index == device.index or device.type == "cpu")
        and value.layout is torch.strided
        and value.dtype in KERNEL_TYPES
        and not value.is_conj()
        and not value.is_neg()
        and not any(map(has_unbacked, (*value.shape, *value.stride())))
    )


def has_unbacked(value: Any) -> bool:
    if not isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return False
    from ..platform.torch_shapes import free_unbacked_symbols

    return bool(free_unbacked_symbols(value))


def is_dense(value: torch.Tensor) -> bool:
    """Whether its elements fill memory without holes and overlap."""
    sizes, strides = sizes_of(value.shape), sizes_of(value.stride())
    if is_empty(sizes):
        return True
    axes = [axis for axis in range(len(sizes)) if not is_one(sizes[axis])]
    return fills_memory(sizes, strides, sorted(axes, key=lambda axis: (hint_of(value.stride()[axis]), -axis)))


def is_non_overlapping(value: torch.Tensor) -> bool:
    """Whether no two elements share memory; there may be holes between them. False where that is unknown."""
    sizes, strides = sizes_of(value.shape), sizes_of(value.stride())
    if not all(isinstance(number, int) for number in (*sizes, *strides)):
        return False
    reached = 0
    for stride, size in sorted((stride, size) for stride, size in zip(strides, sizes, strict=True) if size != 1):
        if stride <= reached:
            return False
        reached += (size - 1) * stride
    return True


def hint_of(value: Any) -> int:
    return value if isinstance(value, int) else int(symbol_hint(value))


def has_strides_of(access: Access, shape: Sequence[Size], like: torch.Tensor) -> bool:
    """Whether memory has the strides that a (fake) tensor has, where they matter."""
    strides = sizes_of(like.stride())
    return len(strides) == len(shape) and all(
        is_one(size) or same(a, b) for size, a, b in zip(shape, access.strides, strides, strict=True)
    )
