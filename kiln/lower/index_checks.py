"""Indices that are data: they are clamped where they are used, and checked once, at the end of the program.

An index out of range is an error in eager. So lowerings only use the result of `checked_index`, which is clamped to the
range. Beside it a reduction finds the greatest index that was out of range. All these maxima are in one small buffer,
and one call at the end of the program (kiln/native/program/check_indices.cpp) raises the error that eager raises.

On a GPU that call would wait for the kernels. There the kernel that uses an index stops the device where it is out of
range (`ir.assured`): an error that a later call raises, as in eager. A kernel that uses a part of the indices would
miss others. So where no write reads all of them (`is_read_as_a_whole`), a kernel finds whether all were in range, and
``aten._assert_async`` stops the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from ..loops import ir
from ..loops.ir import Access, Buffer, Write
from ..loops.sizes import Size, is_empty
from ..loops.steps import Call, View
from ..loops.tensor_layouts import load_whole
from ..loops.tensor_views import Tensor
from ..platform.light_dataclass import dataclass
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


@dataclass(eq=False)
class DeviceCheck:
    """Indices of a graph for a GPU, as kernels use them."""

    node: Any
    index: Tensor
    bad: Tensor
    used: Tensor  # `ir.assured`


class IndexChecks:
    """The checked indices of one graph."""

    def __init__(self) -> None:
        self.on_device: list[DeviceCheck] = []
        self.buffer: Buffer | None = None
        self.known: dict[tuple[ir.Expr, tuple[Size, ...], Size, bool], None] = {}
        self.sizes: list[Size] = []
        self.messages: list[str] = []

    def add(self, lowering: Lowering, index: Tensor, size: Size, message: str, bad: Tensor, used: Tensor) -> None:
        """Note the greatest index where ``bad`` is true; ``used``: what lowerings use of it."""
        self.sizes.append(size)
        self.messages.append(message)
        if lowering.device.type == "cuda":
            self.on_device.append(DeviceCheck(lowering.node, index, bad, used))
        else:
            self.write(lowering, index, bad, len(self.sizes) - 1)

    def write(self, lowering: Lowering, index: Tensor, bad: Tensor, place: int) -> None:
        if self.buffer is None:
            self.buffer = lowering.new_buffer(torch.int64, (1,))
            self.buffer.name, self.buffer.is_pieced = lowering.name("bad_indices"), True
        reported = pointwise("maximum", index, scalar(NO_BAD_INDEX + 1, torch.int64))
        worst = where(bad, reported, scalar(NO_BAD_INDEX, torch.int64))
        target = Access(self.buffer, (0,) * index.rank, place)
        axes = tuple(range(index.rank))
        lowering.write(Write(target, index.shape, worst.expr, "max" if axes else None, axes))

    def keep(self, count: int) -> None:
        """Drops all checks after the first ``count``: their writes were removed."""
        del self.sizes[count:], self.messages[count:], self.on_device[count:]
        for key in list(self.known)[count:]:
            del self.known[key]

    def call(self, lowering: Lowering, outputs: Sequence[Any]) -> Call | None:
        """The call that checks all indices; None where there are none, or kernels check them."""
        if not self.sizes:
            return None
        node = lowering.node
        if lowering.device.type == "cuda":
            return self.call_on_device(lowering, outputs)
        assert self.buffer is not None
        self.buffer.shape = (len(self.sizes),)
        found = View(self.buffer, self.buffer.shape, (1,), 0)
        target = torch.ops.kiln.check_indices.default
        return Call(node, target, (found, self.sizes, self.messages), {}, [], is_sealed=True)

    def call_on_device(self, lowering: Lowering, outputs: Sequence[Any]) -> Call | None:
        node, used = lowering.node, forms_in(lowering.items, outputs)
        messages: list[str] = []
        for check, message in zip(self.on_device, self.messages, strict=True):
            if not is_read_as_a_whole(check.used, used):
                with lowering.on_behalf_of(check.node):
                    self.write(lowering, check.index, check.bad, len(messages))
                messages.append(message)
        if self.buffer is None:
            return None
        self.buffer.shape = (len(messages),)
        is_fine = pointwise("eq", load_whole(self.buffer), scalar(NO_BAD_INDEX, torch.int64))
        whole = lowering.stored_view(lowering.reduce(is_fine, "all", (0,)))
        text = "; ".join(dict.fromkeys(static_text(message) for message in messages))
        return Call(node, torch.ops.aten._assert_async.msg, (whole, text), {}, [], is_sealed=True)


# ---- what kernels for GPUs check -------------------------------------------------------------------------------------

Form = tuple[ir.Expr, tuple[tuple[int, int], ...]]


def forms_in(items: Sequence[Write | Call], outputs: Sequence[Any]) -> set[Form]:
    """The forms of all indices that are used by writes which anything reads."""
    wanted: set[Any] = {output.buffer for output in outputs if isinstance(output, View)}
    found: set[Form] = set()
    for item in reversed(items):
        if isinstance(item, Write) and item.buffer not in wanted:
            continue
        wanted.update(item.reads)
        if isinstance(item, Write):
            for expr in ir.walk(item.value, *item.target.parts):
                form = form_of(expr, item.shape) if expr.kind == "assured" else None
                if form is not None:
                    found.add(form)
    return found


def is_read_as_a_whole(used: Tensor, forms: set[Form]) -> bool:
    """Whether some write uses all these indices, as far as one can tell: from their form."""
    form = form_of(used.expr, used.shape)
    return form is not None and form in forms


def form_of(expr: ir.Expr, shape: Sequence[Size]) -> Form | None:
    """What is computed of the elements of one buffer, and which elements these are: the sizes and strides of their
    axes, joined. None where it is not as simple."""
    leaves = [part for part in ir.walk(expr) if part.kind in ("load", "iota")]
    if len(leaves) != 1 or leaves[0].kind == "iota" or not leaves[0].payload.is_plain:
        return None
    access: Access = leaves[0].payload
    axes = [(stride, size) for stride, size in zip(access.strides, shape, strict=True) if stride != 0 and size != 1]
    if not all(isinstance(number, int) and number > 0 for axis in axes for number in axis):
        return None
    joined: list[tuple[int, int]] = []
    for stride, size in sorted(axes):
        if joined and joined[-1][0] * joined[-1][1] == stride:
            joined[-1] = joined[-1][0], joined[-1][1] * size
        else:
            joined.append((stride, size))
    element = ir.load(Access(access.buffer, (), access.offset))
    return ir.rewrite(expr, lambda part: element if part.kind == "load" else part), tuple(joined)


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
    given, key = index, (index.expr, index.shape, size, wraps)
    bad = pointwise("or", pointwise("lt", index, least), pointwise("ge", index, count))
    if wraps:
        index = where(pointwise("lt", index, zero), pointwise("add", index, count), index)
    index = pointwise("maximum", pointwise("minimum", index, size_tensor(size - 1)), zero)
    if lowering.device.type == "cuda":
        index = Tensor(index.shape, ir.assured(pointwise("not", bad).expr, index.expr, static_text(message)))
    if key not in lowering.checks.known:
        lowering.checks.known[key] = None
        lowering.checks.add(lowering, given, size, message, bad, index)
    return index


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
