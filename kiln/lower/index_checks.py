"""Indices that are data: they are clamped where they are used, and checked once, at the end of the program.

An index out of range is an error in eager. So lowerings only use the result of `checked_index`, which is clamped to the
range. Beside it a reduction finds the greatest index that was out of range. All these maxima are in one small buffer,
and one call at the end of the program (kiln/native/program/check_indices.cpp) raises the error that eager raises.

On a GPU that call would wait for the kernels. There a kernel finds whether all indices were in range, and
``aten._assert_async`` stops the device if not: an error that a later call raises, as in eager.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..loops import ir
from ..loops.ir import Access, Buffer, Write
from ..loops.sizes import Size, is_empty
from ..loops.steps import Call, View
from ..loops.tensor_layouts import load_whole
from ..loops.tensor_views import Tensor
from .builders import cast, pointwise, scalar, size_tensor, where

if TYPE_CHECKING:
    from .lowering import Lowering

NO_BAD_INDEX = torch.iinfo(torch.int64).min  # what the greatest of no bad indices is

# The messages of eager. {index} and {size} are filled in when the error is raised.
OUT_OF_BOUNDS = "IndexError: index {index} is out of bounds for dimension %d with size {size}"
OUT_OF_BOUNDS_OF_GATHER = "RuntimeError: index {index} is out of bounds for dimension %d with size {size}"
OUT_OF_BOUNDS_OF_COPY = "IndexError: index_copy_(): index {index} is out of bounds for dimension %d with size {size}"
OUT_OF_ELEMENTS = "IndexError: out of range: tried to access index {index} on a tensor of {size} elements."
OUT_OF_SELF = "IndexError: index out of range in self"
OUT_OF_DATA = "RuntimeError: INDICES element is out of DATA bounds, id={index} axis_dim={size}"
OUT_OF_EMBEDDINGS = "RuntimeError: embedding_bag: Expected idx >= 0 && idx < num_embeddings but found idx to be {index}"
OUT_OF_CLASSES = "IndexError: Target {index} is out of bounds."


class IndexChecks:
    """The checked indices of one graph."""

    def __init__(self) -> None:
        self.buffer: Buffer | None = None
        self.known: dict[tuple[ir.Expr, tuple[Size, ...], Size, bool], None] = {}
        self.sizes: list[Size] = []
        self.messages: list[str] = []

    def add(self, lowering: Lowering, index: Tensor, size: Size, message: str, bad: Tensor) -> None:
        """Note the greatest index where ``bad`` is true."""
        if self.buffer is None:
            self.buffer = lowering.new_buffer(torch.int64, (1,))
            self.buffer.name, self.buffer.is_pieced = lowering.name("bad_indices"), True
        reported = pointwise("maximum", index, scalar(NO_BAD_INDEX + 1, torch.int64))
        worst = where(bad, reported, scalar(NO_BAD_INDEX, torch.int64))
        place = Access(self.buffer, (0,) * index.rank, len(self.sizes))
        axes = tuple(range(index.rank))
        lowering.write(Write(place, index.shape, worst.expr, "max" if axes else None, axes))
        self.sizes.append(size)
        self.messages.append(message)

    def keep(self, count: int) -> None:
        """Drops all checks after the first ``count``: their writes were removed."""
        del self.sizes[count:], self.messages[count:]
        for key in list(self.known)[count:]:
            del self.known[key]

    def call(self, lowering: Lowering) -> Call | None:
        """The call that checks all indices; None where there are none."""
        if self.buffer is None or not self.sizes:
            return None
        node = lowering.node
        self.buffer.shape = (len(self.sizes),)
        if lowering.device.type == "cuda":
            is_fine = pointwise("eq", load_whole(self.buffer), scalar(NO_BAD_INDEX, torch.int64))
            whole = lowering.stored_view(lowering.reduce(is_fine, "all", (0,)))
            text = "; ".join(dict.fromkeys(static_text(message) for message in self.messages))
            return Call(node, torch.ops.aten._assert_async.msg, (whole, text), {}, [], is_sealed=True)
        found = View(self.buffer, self.buffer.shape, (1,), 0)
        target = torch.ops.kiln.check_indices.default
        return Call(node, target, (found, self.sizes, self.messages), {}, [], is_sealed=True)


def static_text(message: str) -> str:
    """A message without the index and the size."""
    return message.partition(": ")[2].replace("{index}", "(data)").replace("{size}", "(given)")


def checked_index(lowering: Lowering, index: Tensor, size: Size, message: str, wraps: bool = False) -> Tensor:
    """An index (int64), clamped to this size. ``wraps``: negative ones count from the
    end. The caller must not load anything where the size is 0."""
    index = cast(index, torch.int64)
    if is_empty(index.shape) or is_within(index, size):
        return index
    zero, count = scalar(0, torch.int64), size_tensor(size)
    least = pointwise("neg", count) if wraps else zero
    key = (index.expr, index.shape, size, wraps)
    if key not in lowering.checks.known:
        lowering.checks.known[key] = None
        bad = pointwise("or", pointwise("lt", index, least), pointwise("ge", index, count))
        lowering.checks.add(lowering, index, size, message, bad)
    if wraps:
        index = where(pointwise("lt", index, zero), pointwise("add", index, count), index)
    return pointwise("maximum", pointwise("minimum", index, size_tensor(size - 1)), zero)


def is_within(index: Tensor, size: Size) -> bool:
    """Whether an index is a constant or an iota that is known to be in the range."""
    if index.expr.kind == "const":
        return isinstance(size, int) and 0 <= index.expr.payload < size
    if index.expr.kind != "iota":
        return False
    strides, offset = index.expr.payload
    numbers = (*strides, offset, size, *index.shape)
    if not all(isinstance(number, int) for number in numbers) or any(stride < 0 for stride in strides):
        return False
    last = offset + sum(stride * (length - 1) for stride, length in zip(strides, index.shape, strict=True))
    return bool(offset >= 0 and last < size)
