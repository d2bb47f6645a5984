"""Upsampling: each element of the result looks up its nearest source, or mixes its neighbours.

The nearest source depends on rounding. Where the formula here finds another source than ATen does, for the given sizes,
the operator is left to ATen.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch

from kiln.loops import tensor_views
from kiln.loops.reference import Reference
from kiln.loops.sizes import Size, is_empty
from kiln.loops.steps import Lowered
from kiln.loops.tensor_views import Tensor

from ....platform.light_dataclass import dataclass
from ...builders import cast, pointwise, positions, scalar, size_tensor, where
from ...lowering import Lowering
from ...registry import NotLowered, lowers
from .index_helpers import identity_rows, lookup, shape_of

aten = torch.ops.aten
Node = torch.fx.Node
INT, FLOAT, DOUBLE = torch.int64, torch.float32, torch.float64
TYPES = (torch.float32, torch.float64)
LARGEST_WINDOW = 20  # of the elements that a source is a part of, along an axis


def fixed(before: Size, after: Size) -> tuple[int, int]:
    """Two sizes that must not be dynamic."""
    if not isinstance(before, int) or not isinstance(after, int):
        raise NotLowered("dynamic sizes")
    return before, after


# ---- the nearest -----------------------------------------------------------------------------------------------------


class Nearest:
    """Along one axis, which source each element has."""

    def __init__(self, dim: int, sizes: tuple[int, int], scale: float | None, is_exact: bool) -> None:
        self.dim = dim
        self.before, self.after = before, after = sizes
        operator: Any = aten._upsample_nearest_exact1d if is_exact else aten.upsample_nearest1d
        sources = torch.arange(before, dtype=torch.float64).reshape(1, 1, before)
        self.table = operator(sources, [after], scale).long().flatten()
        self.start = 0.5 if is_exact else 0.0
        ratio = 1.0 / scale if scale is not None and scale > 0 else before / after
        self.ratio = float(torch.tensor(ratio, dtype=FLOAT))

    @property
    def factor(self) -> int | None:
        """How often each source is repeated, if all are alike."""
        factor = self.after // self.before
        steps = torch.arange(self.after).div(max(factor, 1), rounding_mode="floor")
        return factor if factor * self.before == self.after and torch.equal(steps, self.table) else None

    def index(self, here: Tensor) -> Tensor:
        factor = self.factor
        if factor is not None and factor & (factor - 1) == 0:
            return pointwise("shr", here, scalar(factor.bit_length() - 1, INT))
        place = torch.arange(self.after).float() + self.start
        if not torch.equal((place * self.ratio).floor().clamp(max=self.before - 1).long(), self.table):
            raise NotLowered("sources that are rounded in another way")
        moved = pointwise("add", cast(here, FLOAT), scalar(self.start, FLOAT))
        source = cast(pointwise("floor", pointwise("mul", moved, scalar(self.ratio, FLOAT))), INT)
        return pointwise("minimum", source, size_tensor(self.before - 1))

    def parts(self, position: Tensor, dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
        """The one source of the elements at some positions, as a mixture with one part."""
        return [(self.index(position), scalar(1, dtype))]


def lower_nearest(forward: Any, backward: Any, is_exact: bool) -> None:
    @lowers(forward)
    def nearest(lowering: Lowering, node: Node, tensor: Tensor, sizes: Sequence[Size], *scales: float | None) -> Tensor:
        shape = shape_of(node)
        if is_empty(shape):
            raise NotLowered("nothing")
        rows = identity_rows(tensor.rank)
        for dim, scale in enumerate(scales, tensor.rank - len(scales)):
            axis = Nearest(dim, fixed(tensor.shape[dim], shape[dim]), scale, is_exact)
            rows[dim] = axis.index(positions(shape, dim))
        return lookup(lowering, tensor, shape, rows)

    @lowers(backward)
    def nearest_backward(
        lowering: Lowering, node: Node, gradient: Tensor, after: Any, before: Any, *scales: float | None
    ) -> Tensor:
        """The sum over the copies of each source."""
        shape = shape_of(node)
        if is_empty(shape) or gradient.dtype not in TYPES:
            raise NotLowered("nothing, or sums that eager rounds in its own way")
        first = len(shape) - len(scales)
        axes = [
            Nearest(dim, fixed(shape[dim], gradient.shape[dim]), scale, is_exact)
            for dim, scale in enumerate(scales, first)
        ]
        if any(axis.after < axis.before for axis in axes):
            raise NotLowered("most sources have no element")
        if any(axis.factor is None for axis in axes):
            return unmixed_along(lowering, node, gradient, axes)
        cut = list(shape[:first])
        for axis in axes:
            cut += [axis.before, axis.factor]
        copies = [first + 1 + 2 * place for place in range(len(scales))]
        return lowering.reduce(lowering.reshape(gradient, cut), "sum", copies)


for _rank in (1, 2, 3):
    for _name, _is_exact in (("upsample_nearest", False), ("_upsample_nearest_exact", True)):
        _operator = f"{_name}{_rank}d"
        lower_nearest(getattr(aten, _operator).default, getattr(aten, f"{_operator}_backward").default, _is_exact)


# ---- mixtures --------------------------------------------------------------------------------------------------------


@dataclass
class Mixture:
    """Along one axis, which sources each element is a mixture of: two neighbours, or four in cubic interpolation."""

    dim: int
    before: int
    after: int
    scale: float | None
    align_corners: bool
    is_cubic: bool

    def place(self, here: Tensor) -> Tensor:
        """Where between the sources an element is (a number of the tensor's type)."""
        dtype = here.dtype
        if self.align_corners:
            ratio = (self.before - 1) / (self.after - 1) if self.after > 1 else 0.0
            return pointwise("mul", here, scalar(ratio, dtype))
        ratio = 1.0 / self.scale if self.scale is not None and self.scale > 0 else self.before / self.after
        half = scalar(0.5, dtype)
        place = pointwise("sub", pointwise("mul", pointwise("add", here, half), scalar(ratio, dtype)), half)
        return place if self.is_cubic else pointwise("maximum", place, scalar(0.0, dtype))

    def parts(self, position: Tensor, dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
        """The sources of the elements at some positions, each with its share."""
        place, one = self.place(cast(position, dtype)), scalar(1, INT)
        if self.is_cubic:
            low = pointwise("floor", place)
            shares = cubic_shares(pointwise("sub", place, low))
            first = pointwise("sub", cast(low, INT), one)
            return [(self.inside(pointwise("add", first, scalar(at, INT))), share) for at, share in enumerate(shares)]
        low = self.inside(cast(place, INT))
        share = pointwise("sub", place, cast(low, dtype))
        high = self.inside(pointwise("add", low, one))
        return [(low, pointwise("sub", scalar(1.0, dtype), share)), (high, share)]

    def inside(self, source: Tensor) -> Tensor:
        if self.is_cubic:
            source = pointwise("maximum", source, scalar(0, INT))
        return pointwise("minimum", source, size_tensor(self.before - 1))


def cubic_shares(fraction: Tensor) -> list[Tensor]:
    """What the four neighbours of a place count, which is this far behind the second."""

    def number(value: float) -> Tensor:
        return scalar(value, fraction.dtype)

    def horner(distance: Tensor, *factors: float) -> Tensor:
        total = number(factors[0])
        for factor in factors[1:]:
            total = pointwise("add", pointwise("mul", total, distance), number(factor))
        return total

    behind = pointwise("sub", number(1.0), fraction)
    near, far = (1.25, -2.25, 0.0, 1.0), (-0.75, 3.75, -6.0, 3.0)
    return [
        horner(pointwise("add", fraction, number(1.0)), *far),
        horner(fraction, *near),
        horner(behind, *near),
        horner(pointwise("add", behind, number(1.0)), *far),
    ]


def mixtures_of(
    before: Sequence[Size], after: Sequence[Size], dtype: torch.dtype, align_corners: bool, scales: Any, is_cubic: bool
) -> list[Mixture]:
    if dtype not in TYPES or is_empty(before) or is_empty(after):
        raise NotLowered("nothing, or a type in which ATen rounds in its own way")
    dims = range(len(before) - len(scales), len(before))
    return [
        Mixture(dim, *fixed(before[dim], after[dim]), scale=scale, align_corners=align_corners, is_cubic=is_cubic)
        for dim, scale in zip(dims, scales, strict=True)
    ]


def mixed(lowering: Lowering, source: Tensor, mixtures: Sequence[Mixture]) -> Tensor:
    """The source with some axes brought to the sizes of the result."""
    shape = list(source.shape)
    for mixture in mixtures:
        shape[mixture.dim] = mixture.after
    choices: list[list[Any]] = [identity_rows(source.rank)]
    shares: list[list[Tensor]] = []
    for mixture in mixtures:
        dim, parts = mixture.dim, mixture.parts(positions(shape, mixture.dim), source.dtype)
        shares.append([share for _, share in parts])
        choices = [[*rows[:dim], index, *rows[dim + 1 :]] for rows in choices for index, _ in parts]
    values = [lookup(lowering, source, shape, rows) for rows in choices]
    for weights in reversed(shares):
        count = len(weights)
        values = [weighted(values[at : at + count], weights) for at in range(0, len(values), count)]
    return values[0]


def weighted(values: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    products = [pointwise("mul", value, weight) for value, weight in zip(values, weights, strict=True)]
    return reduce(lambda a, b: pointwise("add", a, b), products)


# ---- gradients of mixtures -------------------------------------------------------------------------------------------


def first_of(mixture: Mixture | Nearest, source: Tensor) -> Tensor:
    """About where the elements begin that a source is a part of."""
    return pointwise("floordiv", pointwise("mul", source, size_tensor(mixture.after)), size_tensor(mixture.before))


def window(mixture: Mixture | Nearest) -> range:
    """How far from `first_of` the elements are that a source is a part of."""
    element = positions((mixture.after,), 0)
    distances = [
        pointwise("sub", element, first_of(mixture, source)).expr for source, _ in mixture.parts(element, DOUBLE)
    ]
    values = Reference(Lowered([], [], []), []).evaluate(distances, [mixture.after])
    found = torch.stack([values[distance] for distance in distances])
    start, end = int(found.min()), int(found.max()) + 1
    if end - start > LARGEST_WINDOW:
        raise NotLowered("sources that are parts of many elements")
    return range(start, end)


def unmixed_along(
    lowering: Lowering, node: Node, gradient: Tensor, mixtures: Sequence[Mixture] | Sequence[Nearest]
) -> Tensor:
    """The gradient of the sources along one axis after another."""
    channels_last = node.meta["val"].stride()[-1] != 1
    for mixture in mixtures:
        gradient = unmixed(lowering, in_memory(lowering, gradient, channels_last), mixture)
    return gradient


def unmixed(lowering: Lowering, gradient: Tensor, mixture: Mixture | Nearest) -> Tensor:
    """The gradient (in memory) of the sources along one axis: each gathers its shares from the elements that it is a
    part of. Which these are is computed once, into memory."""
    dim, zero = mixture.dim, scalar(0, gradient.dtype)
    near = window(mixture)
    elements, shares = (lowering.materialize(table) for table in nearby(mixture, near, gradient.dtype))
    shape = [mixture.before if at == dim else size for at, size in enumerate(gradient.shape)]
    total: Tensor | None = None
    for at in range(len(near)):
        element, share = (tensor_views.affine(table, shape, [({}, at), ({dim: 1}, 0)]) for table in (elements, shares))
        rows: list[Any] = identity_rows(gradient.rank)
        rows[dim] = element
        part = pointwise("mul", tensor_views.indexed(gradient, shape, rows), share)
        part = where(pointwise("eq", share, zero), zero, part)
        total = part if total is None else pointwise("add", total, part)
    assert total is not None
    return total


def nearby(mixture: Mixture | Nearest, near: range, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The elements near each source, and what it counts in them, of the shape (elements, sources). Elements that there
    are not are others, of which it is no part."""
    shape = (len(near), mixture.before)
    source, zero = positions(shape, 1), scalar(0, dtype)
    element = pointwise("add", first_of(mixture, source), positions(shape, 0, near.start))
    inside = pointwise("minimum", pointwise("maximum", element, scalar(0, INT)), size_tensor(mixture.after - 1))
    total = zero
    for index, share in mixture.parts(element, dtype):
        total = pointwise("add", total, where(pointwise("eq", index, source), share, zero))
    return inside, where(pointwise("eq", element, inside), total, zero)


def in_memory(lowering: Lowering, tensor: Tensor, channels_last: bool) -> Tensor:
    if tensor.access is not None or not channels_last:
        return lowering.in_memory(tensor)
    last = (0, *range(2, tensor.rank), 1)
    back = (0, tensor.rank - 1, *range(1, tensor.rank - 1))
    return tensor_views.permute(lowering.materialize(tensor_views.permute(tensor, last)), back)


def lower_mixtures(forward: Any, backward: Any, is_cubic: bool) -> None:
    @lowers(forward)
    def mix(
        lowering: Lowering, node: Node, tensor: Tensor, sizes: Any, align_corners: bool, *scales: float | None
    ) -> Tensor:
        mixtures = mixtures_of(tensor.shape, shape_of(node), tensor.dtype, align_corners, scales, is_cubic)
        source = lowering.in_memory(tensor)
        if node.meta["val"].stride()[-1] == 1:  # rows are mixed once, in memory, and not for each row of the result
            source = lowering.materialize(mixed(lowering, source, [mixtures.pop()]))
        return mixed(lowering, source, mixtures)

    @lowers(backward)
    def mix_backward(
        lowering: Lowering, node: Node, gradient: Tensor, after: Any, before: Any, align_corners: bool, *scales: Any
    ) -> Tensor:
        shape = shape_of(node)
        mixtures = mixtures_of(shape, gradient.shape, gradient.dtype, align_corners, scales, is_cubic)
        return unmixed_along(lowering, node, gradient, mixtures)


for _name in ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d"):
    lower_mixtures(getattr(aten, _name).default, getattr(aten, f"{_name}_backward").default, "cubic" in _name)
