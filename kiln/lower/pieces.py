"""Concatenations that are not put into memory at once.

A `Pieces` is a tensor made of pieces that fill its shape. Elementwise operators, permutations and further
concatenations are applied to each piece; when something needs the tensor as a whole, all pieces are written into one
buffer, in the layout that this node has. So the halves of a rotary embedding are computed where they belong, and the
gradients of three projections are laid out for the product that reads them, without copies in between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from ..loops import tensor_views
from ..loops.ir import Access, Write
from ..loops.sizes import Size, contiguous, same
from ..loops.tensor_layouts import is_dense, load_whole, sizes_of
from ..loops.tensor_views import Tensor
from ..platform.light_dataclass import dataclass
from ..program.operators.operator_table import Operator
from .builders import cast
from .registry import NotLowered

aten = torch.ops.aten
Node = torch.fx.Node
CONCATENATIONS = frozenset({aten.cat.default, aten.stack.default})
MOST_PIECES = 8
SHORTEST = 16  # elements of a piece along the last axis: kernels load and store vectors


@dataclass(frozen=True, eq=False)
class Piece:
    """A part of a tensor, and where it starts along each axis."""

    tensor: Tensor
    starts: tuple[Size, ...]


@dataclass(frozen=True, eq=False)
class Pieces:
    """A tensor of pieces that do not overlap and fill its shape."""

    shape: tuple[Size, ...]
    pieces: tuple[Piece, ...]

    @property
    def dtype(self) -> torch.dtype:
        return self.pieces[0].tensor.dtype

    @property
    def rank(self) -> int:
        return len(self.shape)

    def map(self, change: Callable[[Tensor], Tensor], order: Callable[[Sequence[Size]], Sequence[Size]]) -> Pieces:
        """Each piece changed; ``order`` makes of old sizes or starts the new ones."""
        moved = tuple(Piece(change(piece.tensor), tuple(order(piece.starts))) for piece in self.pieces)
        return Pieces(tuple(order(self.shape)), moved)


def joined(parts: Sequence[Tensor | Pieces], dim: int) -> Pieces:
    """The concatenation along an axis."""
    shape = list(parts[0].shape)
    shape[dim] = 0
    pieces: list[Piece] = []
    for part in parts:
        inner = part.pieces if isinstance(part, Pieces) else (Piece(part, (0,) * part.rank),)
        for piece in inner:
            starts = [start + shape[dim] if axis == dim else start for axis, start in enumerate(piece.starts)]
            pieces.append(Piece(piece.tensor, tuple(starts)))
        shape[dim] = shape[dim] + part.shape[dim]
    return Pieces(tuple(shape), tuple(pieces))


def converted(given: Tensor | Pieces, dtype: torch.dtype) -> Tensor | Pieces:
    if isinstance(given, Tensor):
        return cast(given, dtype)
    return Pieces(given.shape, tuple(Piece(cast(piece.tensor, dtype), piece.starts) for piece in given.pieces))


def may_wait(pieces: Pieces) -> bool:
    """Whether it is worth to compute on with pieces: there are few, and their rows are long enough for vectors."""
    lengths = [piece.tensor.shape[-1] for piece in pieces.pieces]
    is_cut = any(not same(length, pieces.shape[-1]) for length in lengths)
    return len(lengths) <= MOST_PIECES and not (
        is_cut and any(not isinstance(length, int) or length < SHORTEST or length % 8 for length in lengths)
    )


def write_pieces(lowering: Any, pieces: Pieces, like: torch.Tensor | None) -> Tensor:
    """The tensor in memory, with the layout of a (fake) tensor or contiguous."""
    strides = sizes_of(like.stride()) if like is not None and is_dense(like) else contiguous(pieces.shape)
    buffer = lowering.new_buffer(pieces.dtype, pieces.shape, strides)
    buffer.is_pieced = True
    for piece in pieces.pieces:
        offset: Size = 0
        for start, stride in zip(piece.starts, strides, strict=True):
            offset = offset + start * stride
        lowering.write(Write(Access(buffer, strides, offset), piece.tensor.shape, piece.tensor.expr))
    return load_whole(buffer)


# ---- operators on pieces ---------------------------------------------------------------------------------------------


def lower_on_pieces(lowering: Any, node: Node, called: Operator) -> Any:
    """The node computed piece by piece; None where it needs the tensor as a whole."""
    given = lowering.values[node.args[0]] if node.args and isinstance(node.args[0], Node) else None
    if isinstance(given, Pieces):
        if node.target in UNCHANGED:
            return given
        if node.target in PERMUTATIONS:
            return permuted(given, PERMUTATIONS[node.target](given.rank, *node.args[1:]))
        if node.target is aten.unsqueeze.default:
            dim = int(node.args[1]) % (given.rank + 1)  # type: ignore[arg-type]
            return unsqueezed(given, dim)
    if torch.Tag.pointwise in called.overload.tags or node.target is aten._to_copy.default:
        return elementwise(lowering, node, called)
    return None


UNCHANGED = frozenset({aten.clone.default, aten.alias.default, aten.detach.default})
PERMUTATIONS: dict[Any, Callable[..., list[int]]] = {
    aten.permute.default: lambda rank, dims: [dim % rank for dim in dims],
    aten.transpose.int: lambda rank, one, other: swapped(rank, one % rank, other % rank),
    aten.t.default: lambda rank: list(reversed(range(rank))),
}


def swapped(rank: int, one: int, other: int) -> list[int]:
    dims = list(range(rank))
    dims[one], dims[other] = other, one
    return dims


def permuted(given: Pieces, dims: Sequence[int]) -> Pieces:
    return given.map(lambda tensor: tensor_views.permute(tensor, dims), lambda sizes: [sizes[dim] for dim in dims])


def unsqueezed(given: Tensor | Pieces, dim: int) -> Tensor | Pieces:
    if isinstance(given, Tensor):
        return tensor_views.unsqueeze(given, dim)
    moved = tuple(
        Piece(tensor_views.unsqueeze(piece.tensor, dim), (*piece.starts[:dim], 0, *piece.starts[dim:]))
        for piece in given.pieces
    )
    return Pieces((*given.shape[:dim], 1, *given.shape[dim:]), moved)


def elementwise(lowering: Any, node: Node, called: Operator) -> Pieces | None:
    """An operator on each element: other operands are cut as the first one that is in pieces is."""
    value: Any = node.meta["val"]
    whole = next(one for arg in node.all_input_nodes if isinstance(one := lowering.values[arg], Pieces))
    if not isinstance(value, torch.Tensor) or value.dim() != whole.rank or value.dtype.itemsize > whole.dtype.itemsize:
        return None
    if not all(same(a, b) for a, b in zip(sizes_of(value.shape), whole.shape, strict=True)):
        return None
    args, kwargs = lowering.arguments(node, called)
    assert called.lowering is not None
    found = []
    for number, piece in enumerate(whole.pieces):
        own = [cut(arg, piece, number) for arg in args]
        if any(arg is None and given is not None for arg, given in zip(own, args, strict=True)):
            return None
        result = called.lowering(lowering, node, *own, **kwargs)
        if not isinstance(result, Tensor) or result.dtype is not value.dtype:
            raise NotLowered("pieces of another type")
        found.append(Piece(tensor_views.expand(result, piece.tensor.shape), piece.starts))
    return Pieces(whole.shape, tuple(found))


def cut(arg: Any, piece: Piece, number: int) -> Any:
    """The part of an operand that belongs to a piece; None where it is in other pieces."""
    if isinstance(arg, Pieces):
        mine = arg.pieces[number] if number < len(arg.pieces) else None
        fits = mine is not None and all(map(same, mine.starts, piece.starts))
        fits = fits and mine is not None and all(map(same, mine.tensor.shape, piece.tensor.shape))
        return mine.tensor if fits and mine is not None else None
    if not isinstance(arg, Tensor) or isinstance(arg, tensor_views.DynamicFloat):
        return arg
    lead = len(piece.starts) - arg.rank
    for axis, size in enumerate(arg.shape):
        length = piece.tensor.shape[lead + axis]
        if not (isinstance(size, int) and size == 1) and not same(size, length):
            arg = tensor_views.slice_(arg, axis, piece.starts[lead + axis], length)
    return arg
