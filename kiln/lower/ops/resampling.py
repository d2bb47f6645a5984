"""Upsampling: each element of the result looks up its nearest source, or mixes its neighbours.

Which source is the nearest is a matter of rounding; where the formula here would not find what ATen finds, for the
sizes at hand, the operator is ATen's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..build import cast, of_size, pointwise, positions, scalar
from ..ir import Size
from ..lowering import Lowering
from ..registry import NotLowered, lowers
from ..views import Tensor
from .places import along, is_empty, lookup, shape_of

aten = torch.ops.aten
Node = torch.fx.Node
INT, FLOAT = torch.int64, torch.float32
TYPES = (torch.float32, torch.float64)


def numbers(sizes: Sequence[Size]) -> list[int]:
    if not all(isinstance(size, int) for size in sizes):
        raise NotLowered("sizes that vary")
    return list(sizes)  # type: ignore[arg-type]


# ---- the nearest -----------------------------------------------------------------------------------------------------


class Nearest:
    """Along one axis, which source each element has."""

    def __init__(self, before: int, after: int, scale: float | None, is_exact: bool) -> None:
        self.before, self.after = before, after
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

    def index(self, shape: Sequence[Size], dim: int) -> Tensor:
        here = positions(shape, dim)
        factor = self.factor
        if factor is not None and factor & (factor - 1) == 0:
            return pointwise("shr", here, scalar(factor.bit_length() - 1, INT))
        place = torch.arange(self.after).float() + self.start
        if not torch.equal((place * self.ratio).floor().clamp(max=self.before - 1).long(), self.table):
            raise NotLowered("sources that are rounded in another way")
        moved = pointwise("add", cast(here, FLOAT), scalar(self.start, FLOAT))
        source = cast(pointwise("floor", pointwise("mul", moved, scalar(self.ratio, FLOAT))), INT)
        return pointwise("minimum", source, of_size(self.before - 1))


def lower_nearest(forward: Any, backward: Any, is_exact: bool) -> None:
    @lowers(forward)
    def nearest(lowering: Lowering, node: Node, tensor: Tensor, sizes: Sequence[Size], *scales: float | None) -> Tensor:
        shape = shape_of(node)
        if is_empty(shape):
            raise NotLowered("nothing")
        rows = along(tensor.rank)
        for dim, scale in enumerate(scales, tensor.rank - len(scales)):
            axis = Nearest(*numbers((tensor.shape[dim], shape[dim])), scale, is_exact)
            rows[dim] = axis.index(shape, dim)
        return lookup(lowering, tensor, shape, rows)

    @lowers(backward)
    def nearest_backward(
        lowering: Lowering, node: Node, gradient: Tensor, after: Any, before: Any, *scales: float | None
    ) -> Tensor:
        """Where each source is repeated equally often, the sum over its copies."""
        shape = shape_of(node)
        if is_empty(shape) or gradient.dtype not in TYPES:
            raise NotLowered("nothing, or sums that eager rounds in its own way")
        first = len(shape) - len(scales)
        cut = list(shape[:first])
        for dim, scale in enumerate(scales, first):
            axis = Nearest(*numbers((shape[dim], gradient.shape[dim])), scale, is_exact)
            if axis.factor is None:
                raise NotLowered("sources that are not repeated equally often")
            cut += [shape[dim], axis.factor]
        copies = [first + 1 + 2 * place for place in range(len(scales))]
        return lowering.reduce(lowering.reshape(gradient, cut), "sum", copies)


for _rank in (1, 2, 3):
    for _name, _is_exact in (("upsample_nearest", False), ("_upsample_nearest_exact", True)):
        _operator = f"{_name}{_rank}d"
        lower_nearest(getattr(aten, _operator).default, getattr(aten, f"{_operator}_backward").default, _is_exact)


# ---- mixtures --------------------------------------------------------------------------------------------------------


def source_place(here: Tensor, before: int, after: int, scale: float | None, align_corners: bool) -> Tensor:
    """Where between the sources an element is (a number of the tensor's type)."""
    dtype = here.dtype
    if align_corners:
        ratio = (before - 1) / (after - 1) if after > 1 else 0.0
        return pointwise("mul", here, scalar(ratio, dtype))
    ratio = 1.0 / scale if scale is not None and scale > 0 else before / after
    half = scalar(0.5, dtype)
    place = pointwise("sub", pointwise("mul", pointwise("add", here, half), scalar(ratio, dtype)), half)
    return pointwise("maximum", place, scalar(0.0, dtype))


@lowers(aten.upsample_linear1d.default, aten.upsample_bilinear2d.default)
def linear(
    lowering: Lowering, node: Node, tensor: Tensor, sizes: Any, align_corners: bool, *scales: float | None
) -> Tensor:
    shape = shape_of(node)
    if tensor.dtype not in TYPES or is_empty(shape):
        raise NotLowered("nothing, or a type in which ATen rounds in its own way")
    source = lowering.in_memory(tensor)
    mixtures = []
    for dim, scale in enumerate(scales, tensor.rank - len(scales)):
        numbers((tensor.shape[dim], shape[dim]))
        mixtures.append(Mixture(dim, scale, align_corners))
    if node.meta["val"].stride()[-1] == 1:  # rows are mixed once, in memory, and not for each row of the result
        source = lowering.put(mixed(lowering, source, shape, [mixtures.pop()]))
    return mixed(lowering, source, shape, mixtures)


@dataclass
class Mixture:
    """Along which axis neighbours are mixed, and how."""

    dim: int
    scale: float | None
    align_corners: bool


def mixed(lowering: Lowering, source: Tensor, sizes: Sequence[Size], mixtures: Sequence[Mixture]) -> Tensor:
    """The source with some axes brought to the sizes of the result."""
    dims = [mixture.dim for mixture in mixtures]
    shape = [sizes[dim] if dim in dims else size for dim, size in enumerate(source.shape)]
    choices: list[list[Any]] = [along(source.rank)]
    weights: list[list[Tensor]] = []
    for mixture in mixtures:
        dim, dtype = mixture.dim, source.dtype
        before, after = numbers((source.shape[dim], shape[dim]))
        here = cast(positions(shape, dim), dtype)
        place = source_place(here, before, after, mixture.scale, mixture.align_corners)
        low = pointwise("minimum", cast(place, INT), of_size(before - 1))
        high = pointwise("minimum", pointwise("add", low, scalar(1, INT)), of_size(before - 1))
        share = pointwise("sub", place, cast(low, dtype))
        weights.append([pointwise("sub", scalar(1.0, dtype), share), share])
        choices = [[*rows[:dim], index, *rows[dim + 1 :]] for rows in choices for index in (low, high)]
    values = [lookup(lowering, source, shape, rows) for rows in choices]
    for low_share, high_share in reversed(weights):
        values = [
            pointwise("add", pointwise("mul", a, low_share), pointwise("mul", b, high_share))
            for a, b in zip(values[::2], values[1::2], strict=True)
        ]
    return values[0]
