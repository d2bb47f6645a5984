"""Views of expressions (kiln/loops/tensor_views.py) are what torch's views of the same values are."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
import sympy
import torch

from kiln.loops import ir, tensor_views
from kiln.loops.ir import Access, Buffer
from kiln.loops.reference import Reference
from kiln.loops.steps import Lowered
from kiln.loops.tensor_layouts import load_whole
from kiln.loops.tensor_views import Tensor
from kiln.lower.builders import pointwise, positions

Pair = tuple[Tensor, torch.Tensor]


class Values:
    """Expressions over memory, beside what torch makes of them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.memory: list[tuple[Buffer, torch.Tensor]] = []

    def leaf(self, shape: tuple[int, ...]) -> Pair:
        """Memory of a shape, in some order of axes, with holes or broadcast ones."""
        order = self.random.sample(range(len(shape)), len(shape))
        wide = [1 if self.random.random() < 0.2 else shape[d] + self.random.choice((0, 0, 2)) for d in order]
        made = torch.randint(-50, 50, wide)
        seen = made.permute([order.index(d) for d in range(len(shape))])
        seen = seen[tuple(slice(0, size) for size in shape)].expand(shape)
        buffer = Buffer(f"m{len(self.memory)}", torch.int64, tuple(made.shape), made.stride(), "input")
        self.memory.append((buffer, made))
        strides = tuple(seen.stride())
        return Tensor(shape, ir.load(Access(buffer, strides, seen.storage_offset()))), seen

    def expression(self, shape: tuple[int, ...]) -> Pair:
        """A sum of memory and, sometimes, of positions."""
        pairs = [self.leaf(shape) for _ in range(self.random.choice((1, 1, 2)))]
        total, expected = pairs[0]
        for tensor, value in pairs[1:]:
            total, expected = pointwise("add", total, tensor), expected + value
        if shape and self.random.random() < 0.5:
            dim = self.random.randrange(len(shape))
            along = [-1 if d == dim else 1 for d in range(len(shape))]
            total = pointwise("add", total, positions(shape, dim, 3, 2))
            expected = expected + (3 + 2 * torch.arange(shape[dim])).reshape(along)
        return total, expected

    def evaluate(self, tensor: Tensor) -> torch.Tensor:
        lowered = Lowered([buffer for buffer, _ in self.memory], [], [])
        reference = Reference(lowered, [made for _, made in self.memory])
        return reference.evaluate([tensor.expr], list(tensor.shape))[tensor.expr]

    def check(self, tensor: Tensor, expected: torch.Tensor) -> None:
        assert tensor.shape == tuple(expected.shape)
        torch.testing.assert_close(self.evaluate(tensor), expected, rtol=0, atol=0)


def some_shape(chance: random.Random, most: int = 4) -> tuple[int, ...]:
    return tuple(chance.choice((1, 2, 3, 4, 6)) for _ in range(chance.randint(0, most)))


def some_reshape(chance: random.Random, count: int) -> tuple[int, ...]:
    """A random shape of this many elements."""
    sizes: list[int] = []
    while count > 1:
        size = chance.choice([n for n in range(2, count + 1) if count % n == 0])
        sizes.append(size)
        count //= size
    for _ in range(chance.choice((0, 0, 1, 2))):
        sizes.insert(chance.randint(0, len(sizes)), 1)
    return tuple(sizes)


def permuted(chance: random.Random, tensor: Tensor, value: torch.Tensor) -> Pair:
    order = chance.sample(range(tensor.rank), tensor.rank)
    return tensor_views.permute(tensor, order), value.permute(order)


def sliced(chance: random.Random, tensor: Tensor, value: torch.Tensor) -> Pair:
    dim = chance.randrange(tensor.rank)
    start, step = chance.randrange(value.shape[dim]), chance.choice((1, 1, 2))
    expected = value[(slice(None),) * dim + (slice(start, None, step),)]
    return tensor_views.slice_(tensor, dim, start, expected.shape[dim], step), expected


def flipped(chance: random.Random, tensor: Tensor, value: torch.Tensor) -> Pair:
    dims = chance.sample(range(tensor.rank), chance.randint(1, tensor.rank))
    return tensor_views.flip(tensor, dims), value.flip(dims)


def selected(chance: random.Random, tensor: Tensor, value: torch.Tensor) -> Pair:
    dim = chance.randrange(tensor.rank)
    index = chance.randrange(value.shape[dim])
    return tensor_views.select(tensor, dim, index), value.select(dim, index)


def broadened(chance: random.Random, tensor: Tensor, value: torch.Tensor) -> Pair:
    dim = chance.randint(0, tensor.rank)
    tensor, value = tensor_views.unsqueeze(tensor, dim), value.unsqueeze(dim)
    shape = [3 if d == dim and chance.random() < 0.7 else size for d, size in enumerate(value.shape)]
    return tensor_views.expand(tensor, shape), value.expand(shape)


def looked_up(chance: random.Random, tensor: Tensor, value: torch.Tensor) -> Pair:
    """By an index that is made of positions, but not affine."""
    dim = chance.randrange(tensor.rank)
    index = pointwise("remainder", positions(tensor.shape, dim, 1, 2), size_of(tensor, dim))
    rows: list = [({d: 1}, 0) for d in range(tensor.rank)]
    rows[dim] = index
    expected = value.index_select(dim, (1 + 2 * torch.arange(value.shape[dim])) % value.shape[dim])
    return tensor_views.indexed(tensor, tensor.shape, rows), expected


def size_of(tensor: Tensor, dim: int) -> Tensor:
    return Tensor((), ir.size_value(tensor.shape[dim]))


VIEWS: list[Callable[[random.Random, Tensor, torch.Tensor], Pair]] = [
    permuted,
    sliced,
    flipped,
    selected,
    broadened,
    looked_up,
]


@pytest.mark.parametrize("seed", range(60))
def test_chains_of_views(seed: int) -> None:
    values = Values(seed)
    tensor, expected = values.expression(some_shape(values.random))
    for _ in range(4):
        if not tensor.rank:
            tensor, expected = broadened(values.random, tensor, expected)
            continue
        tensor, expected = values.random.choice(VIEWS)(values.random, tensor, expected)
        values.check(tensor, expected)


@pytest.mark.parametrize("seed", range(200))
def test_reshape_of_strided_expressions(seed: int) -> None:
    """A reshape is right or impossible, and possible wherever torch can view such memory."""
    values = Values(seed)
    tensor, expected = values.expression(some_shape(values.random))
    for _ in range(values.random.randint(0, 2)):
        if tensor.rank:
            tensor, expected = values.random.choice(VIEWS)(values.random, tensor, expected)
    shape = some_reshape(values.random, expected.numel())
    found = tensor_views.reshape(tensor, shape)
    if found is not None:
        values.check(found, expected.reshape(shape))


@pytest.mark.parametrize("seed", range(200))
def test_memory_is_reshaped_where_torch_can_view_it(seed: int) -> None:
    values = Values(seed)
    tensor, memory = values.leaf(some_shape(values.random))
    shape = some_reshape(values.random, memory.numel())
    try:
        expected = memory.view(shape)
    except RuntimeError:
        expected = None
    found = tensor_views.reshape(tensor, shape)
    assert (found is None) == (expected is None)
    if found is not None:
        values.check(found, memory.view(shape))


def test_shapes_are_matched_by_their_products() -> None:
    s, t = sympy.symbols("s t", integer=True, positive=True)
    assert tensor_views.matching_axes((s, 6), (s, 2, 3)) == [([0], [0]), ([1], [1, 2])]
    assert tensor_views.matching_axes((s * t, 4), (s, t, 4)) == [([0], [0, 1]), ([1], [2])]
    assert tensor_views.matching_axes((s, t), (t, s)) is None


def test_sizes_that_vary_are_joined_and_split() -> None:
    s = sympy.Symbol("s", integer=True, positive=True)
    buffer = Buffer("x", torch.float32, (s, 4, 8), (32, 8, 1), "input")
    joined = tensor_views.reshape(load_whole(buffer), (s * 4, 8))
    assert joined is not None and joined.access is not None and joined.access.strides == (8, 1)
    split = tensor_views.reshape(joined, (s, 2, 2, 8))
    assert split is not None and split.access is not None and split.access.strides == (32, 16, 8, 1)
    assert tensor_views.reshape(tensor_views.permute(load_whole(buffer), (1, 0, 2)), (4 * s, 8)) is None


def test_masked_loads_are_never_made_outside() -> None:
    values = Values(0)
    buffer = Buffer("x", torch.int64, (3,), (1,), "input")
    values.memory.append((buffer, torch.tensor([5, 6, 7])))
    there = tensor_views.shift(load_whole(buffer), (7,), (2,))
    position = positions((7,), 0)
    low = pointwise("ge", position, Tensor((), ir.constant(2, torch.int64)))
    high = pointwise("lt", position, Tensor((), ir.constant(5, torch.int64)))
    guarded = tensor_views.masked(there, pointwise("and", low, high))
    assert values.evaluate(guarded).tolist() == [0, 0, 5, 6, 7, 0, 0]
    with pytest.raises(IndexError):
        values.evaluate(there)


def test_the_elements_of_a_shape_are_counted_in_its_order() -> None:
    shape = (2, 3, 4)
    strides = tuple(math.prod(shape[d + 1 :]) for d in range(3))
    counted = Tensor(shape, ir.iota(strides))
    flat = tensor_views.reshape(counted, (24,))
    assert flat is not None and flat.expr.payload == ((1,), 0)
