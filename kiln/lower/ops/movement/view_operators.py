"""Views of expressions, and operators that only reorder elements.

Views of memory are lowered by `Lowering.lower_view`. The shape of a view is known from the graph, so most lowerings
ignore their arguments. The variants that copy are lowered in the same way, as expressions share no memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kiln.loops import tensor_views
from kiln.loops.ir import Access, load, op
from kiln.loops.sizes import Size, is_one, same
from kiln.loops.tensor_layouts import hint_of, size_of, sizes_of
from kiln.loops.tensor_views import Tensor

from ...lowering import CannotLower, Lowering
from ...node_facts import first_argument, storage_of
from ...registry import NotLowered, lowers
from .index_helpers import identity_rows, positive_axis, shape_of

aten = torch.ops.aten
Node = torch.fx.Node


@lowers(aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten._reshape_alias.default)
@lowers(aten.view_copy.default, aten._reshape_copy.default, aten._reshape_alias_copy.default)
def reshape(lowering: Lowering, node: Node, tensor: Tensor, *_: Any) -> Tensor:
    return lowering.reshape(tensor, shape_of(node))


@lowers(aten.alias.default, aten.alias_copy.default, aten.detach.default, aten.detach_copy.default)
def alias(lowering: Lowering, node: Node, tensor: Tensor) -> Tensor:
    return tensor


@lowers(aten.expand.default, aten.expand_copy.default)
def expand(lowering: Lowering, node: Node, tensor: Tensor, size: Any, *, implicit: bool = False) -> Tensor:
    return tensor_views.expand(tensor, shape_of(node))


@lowers(aten.permute.default, aten.permute_copy.default)
def permute(lowering: Lowering, node: Node, tensor: Tensor, dims: Sequence[int]) -> Tensor:
    return tensor_views.permute(tensor, [dim % tensor.rank for dim in dims])


@lowers(aten.transpose.int, aten.transpose_copy.int, aten.swapaxes.default, aten.swapdims.default)
def transpose(lowering: Lowering, node: Node, tensor: Tensor, dim0: int, dim1: int) -> Tensor:
    dims = list(range(tensor.rank))
    if dims:
        a, b = dim0 % tensor.rank, dim1 % tensor.rank
        dims[a], dims[b] = b, a
    return tensor_views.permute(tensor, dims)


@lowers(aten.t.default, aten.t_copy.default)
def t(lowering: Lowering, node: Node, tensor: Tensor) -> Tensor:
    return tensor_views.permute(tensor, list(reversed(range(tensor.rank))))


@lowers(aten.unsqueeze.default, aten.unsqueeze_copy.default)
def unsqueeze(lowering: Lowering, node: Node, tensor: Tensor, dim: int) -> Tensor:
    return tensor_views.unsqueeze(tensor, dim % (tensor.rank + 1))


@lowers(aten.squeeze.default, aten.squeeze_copy.default)
@lowers(aten.squeeze.dim, aten.squeeze_copy.dim, aten.squeeze.dims, aten.squeeze_copy.dims)
def squeeze(lowering: Lowering, node: Node, tensor: Tensor, dims: int | Sequence[int] | None = None) -> Tensor:
    if dims is None:
        dims = range(tensor.rank)
    elif isinstance(dims, int):
        dims = [dims]
    if not tensor.rank:
        return tensor
    return tensor_views.squeeze(
        tensor, [dim for dim in {dim % tensor.rank for dim in dims} if is_one(tensor.shape[dim])]
    )


@lowers(aten.select.int, aten.select_copy.int)
def select(lowering: Lowering, node: Node, tensor: Tensor, dim: int, index: Size) -> Tensor:
    dim = positive_axis(dim, tensor.rank)
    return tensor_views.select(tensor, dim, from_front(index, tensor.shape[dim]))


def from_front(index: Size, size: Size) -> Size:
    """A position, a negative one counted from the end."""
    if isinstance(index, int):
        return index if index >= 0 else index + size
    if not index.is_nonnegative:
        raise NotLowered("a position that varies, and may be negative")
    return index


@lowers(aten.narrow_copy.default)
def narrow_copy(lowering: Lowering, node: Node, tensor: Tensor, dim: int, start: Size, length: Size) -> Tensor:
    dim = positive_axis(dim, tensor.rank)
    return tensor_views.slice_(tensor, dim, from_front(start, tensor.shape[dim]), length)


@lowers(aten.slice.Tensor, aten.slice_copy.Tensor)
def slice_(
    lowering: Lowering,
    node: Node,
    tensor: Tensor,
    dim: int = 0,
    start: Size | None = None,
    end: Size | None = None,
    step: int = 1,
) -> Tensor:
    dim = positive_axis(dim, tensor.rank)
    length = shape_of(node)[dim]
    return tensor_views.slice_(tensor, dim, slice_start(node, 0, dim, tensor.shape[dim], start), length, step)


def slice_start(node: Node, place: int, dim: int, size: Size, start: Size | None) -> Size:
    """Where a slice begins. Dynamic sizes are compared by their hints: the graph is guarded for that."""
    if start is None:
        return 0
    source: Any = node.args[place]
    hint = hint_of(source.meta["val"].shape[dim]) if isinstance(source, Node) else size
    if not isinstance(start, int):
        return from_front(start, size)
    if not isinstance(hint, int):
        raise NotLowered("the start of a slice, of a size that is not known")
    if start < 0:
        return start + size if start + hint >= 0 else 0
    return start if start < hint else size


@lowers(aten.split.Tensor, aten.split_copy.Tensor, aten.split_with_sizes.default, aten.split_with_sizes_copy.default)
@lowers(aten.chunk.default)
def split(lowering: Lowering, node: Node, tensor: Tensor, sizes: Any, dim: int = 0) -> tuple[Tensor, ...]:
    dim = positive_axis(dim, tensor.rank)
    found = []
    start: Size = 0
    for piece in node.meta["val"]:
        length = sizes_of(piece.shape)[dim]
        found.append(tensor_views.slice_(tensor, dim, start, length))
        start = start + length
    return tuple(found)


@lowers(aten.unbind.int, aten.unbind_copy.int)
def unbind(lowering: Lowering, node: Node, tensor: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    dim = positive_axis(dim, tensor.rank)
    return tuple(tensor_views.select(tensor, dim, index) for index in range(len(node.meta["val"])))


@lowers(aten.diagonal.default, aten.diagonal_copy.default)
def diagonal(lowering: Lowering, node: Node, tensor: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    return tensor_views.affine(tensor, shape_of(node), diagonal_rows(tensor.rank, offset, dim1, dim2))


def diagonal_rows(rank: int, offset: int, dim1: int, dim2: int) -> list[Any]:
    """How the positions of a tensor are made of those of its diagonal, whose axis is the last."""
    dim1, dim2 = dim1 % rank, dim2 % rank
    rest = iter(range(rank - 2))
    starts = {dim1: max(-offset, 0), dim2: max(offset, 0)}
    return [({rank - 2: 1}, starts[d]) if d in starts else ({next(rest): 1}, 0) for d in range(rank)]


@lowers(aten.unfold.default, aten.unfold_copy.default)
def unfold(lowering: Lowering, node: Node, tensor: Tensor, dimension: int, size: int, step: int) -> Tensor:
    if not tensor.rank:
        return tensor_views.expand(tensor_views.unsqueeze(tensor, 0), shape_of(node))
    rows = identity_rows(tensor.rank)
    rows[dimension % tensor.rank] = ({dimension % tensor.rank: step, tensor.rank: 1}, 0)
    return tensor_views.affine(tensor, shape_of(node), rows)


@lowers(aten.as_strided.default, aten.as_strided_copy.default)
def as_strided(
    lowering: Lowering, node: Node, tensor: Tensor, size: Any, strides: Sequence[Size], offset: Size | None = None
) -> Tensor:
    """Offsets count from the start of the storage. An input may be any part of its storage: such calls are left to
    ATen."""
    source = first_argument(node)
    before = source.meta["val"]
    whole, _ = storage_of(source)
    lowering.assemble([whole])
    found = lowering.values[whole]
    if tensor.access is not None and tensor.access.buffer.kind != "made":
        raise NotLowered("places counted from where a storage begins")
    if not isinstance(found, Tensor) or not same(size_of(whole.meta["val"].storage_offset()), 0):
        raise CannotLower("a storage that the graph does not have")
    access = lowering.view(found, whole.meta["val"], exact=True).as_access()
    if access.buffer.kind != "made" or not same(access.offset, 0):
        raise CannotLower("a storage that the graph does not have")
    place = size_of(before.storage_offset()) if offset is None else offset
    return Tensor(shape_of(node), load(Access(access.buffer, tuple(strides), place)))


@lowers(aten.view.dtype, aten.view_copy.dtype)
def view_as_type(lowering: Lowering, node: Node, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    if dtype.itemsize != tensor.dtype.itemsize or torch.bool in (dtype, tensor.dtype):
        raise NotLowered("the bytes as another type")
    if dtype is tensor.dtype:
        return tensor
    return Tensor(tensor.shape, op("bitcast", tensor.expr, dtype=dtype))


@lowers(aten.flip.default)
def flip(lowering: Lowering, node: Node, tensor: Tensor, dims: Sequence[int]) -> Tensor:
    return tensor_views.flip(tensor, [dim % tensor.rank for dim in dims] if tensor.rank else [])


@lowers(aten.rot90.default)
def rot90(lowering: Lowering, node: Node, tensor: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    first, second = (dim % tensor.rank for dim in dims)
    turned = transpose(lowering, node, tensor, first, second) if k % 2 else tensor
    flipped: list[list[int]] = [[], [first], [first, second], [second]]
    return tensor_views.flip(turned, flipped[k % 4])


# ---- blocks of an axis -----------------------------------------------------------------------------------------------


def blocks(
    lowering: Lowering, tensor: Tensor, cut: Sequence[Size], order: Sequence[int], shape: Sequence[Size]
) -> Tensor:
    """Cut axes into blocks, change their order, and see the result in a shape."""
    return lowering.reshape(tensor_views.permute(lowering.reshape(tensor, cut), order), shape)


@lowers(aten.pixel_shuffle.default)
def pixel_shuffle(lowering: Lowering, node: Node, tensor: Tensor, factor: int) -> Tensor:
    *lead, _, height, width = tensor.shape
    shape = shape_of(node)
    rank = len(lead)
    order = [*range(rank), *(rank + place for place in (0, 3, 1, 4, 2))]
    return blocks(lowering, tensor, [*lead, shape[-3], factor, factor, height, width], order, shape)


@lowers(aten.pixel_unshuffle.default)
def pixel_unshuffle(lowering: Lowering, node: Node, tensor: Tensor, factor: int) -> Tensor:
    *lead, channels, _, _ = tensor.shape
    shape = shape_of(node)
    rank = len(lead)
    order = [*range(rank), *(rank + place for place in (0, 2, 4, 1, 3))]
    return blocks(lowering, tensor, [*lead, channels, shape[-2], factor, shape[-1], factor], order, shape)


@lowers(aten.channel_shuffle.default, aten.native_channel_shuffle.default)
def channel_shuffle(lowering: Lowering, node: Node, tensor: Tensor, groups: int) -> Tensor:
    count, channels, *rest = tensor.shape
    if not isinstance(channels, int):
        raise NotLowered("channels whose number varies")
    order = [0, 2, 1, *range(3, 3 + len(rest))]
    return blocks(lowering, tensor, [count, groups, channels // groups, *rest], order, tensor.shape)
