"""Random numbers on GPUs, drawn in kernels: the numbers of ATen's own kernels, bit for bit (loops/philox.py).

The seed and the offset are taken from torch's generator in the program's order. An operator is left to ATen where its
numbers are not known to be equal (other layouts, dynamic sizes, a generator of the user), and where ATen is faster: its
kernels of uniform numbers compute four elements at once, which elements of one kernel cannot share unless they are few.
"""

from __future__ import annotations

import math
import struct
from typing import Any

import torch
from torch.fx import Node

from kiln.loops import gpu_generators, ir, philox
from kiln.loops.ir import Buffer, Expr, wide
from kiln.loops.philox import Draws
from kiln.loops.sizes import Size, contiguous, divides, hint, product
from kiln.loops.steps import Draw
from kiln.loops.tensor_layouts import is_dense, sizes_of
from kiln.loops.tensor_views import Tensor
from kiln.program.operators.operator_table import find_operator

from ... import builders
from ...lowering import Lowering
from ...node_facts import is_needed_in_memory, is_view_node, storage_of
from ...registry import NotLowered, lowers
from .creation import plain

aten = torch.ops.aten

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
WIDEST = 16  # bytes that a thread of ATen's dropout takes at once
MOST_ELEMENTS = 2**31 - 1  # beyond, ATen draws in several parts


def draws_for(lowering: Lowering, count: Size, vector: int = 1, is_wide: bool = False) -> Draws:
    if lowering.device.type != "cuda" or not gpu_generators.is_known():
        raise NotLowered("random numbers, which ATen draws")
    if isinstance(count, int) and not 0 < count <= MOST_ELEMENTS:
        raise NotLowered("random numbers for no elements, or for very many")
    processors, threads = gpu_generators.processors_and_threads(lowering.device.index or 0)
    return Draws(count, philox.threads_for(count, processors, threads), vector, is_wide)


def drawn(lowering: Lowering, draws: Draws, strides: Any) -> Expr:
    """The numbers of a tensor's elements, whose order is that of its memory."""
    buffer = Buffer(lowering.name("drawn"), torch.int64, (2,), (1,), "drawn")
    given = (lowering.device, draws.increment)
    lowering.items.append(Draw(lowering.node, gpu_generators.draw, given, {}, [buffer], is_sealed=True))
    rank = len(strides)
    seed, offset = (ir.load(ir.Access(buffer, (0,) * rank, place)) for place in (0, 1))
    return ir.philox(seed, offset, ir.iota(strides), draws)


def needs_alignment(lowering: Lowering, node: Node, count: int) -> None:
    """The value of a node is at a multiple of so many bytes in eager, or the program is not run: ATen's kernels give
    other numbers to elements that are not. Memory that operators of ATen allocate is aligned."""
    owner, _ = storage_of(node)
    value = node.meta["val"]
    offset = value.storage_offset()
    if owner.op == "placeholder":
        offset = offset - owner.meta["val"].storage_offset()
    elif owner.op != "call_function" or not is_allocated_by_torch(owner):
        raise NotLowered("random numbers that depend on an address")
    if not isinstance(offset, int) or offset * value.dtype.itemsize % count:
        raise NotLowered("random numbers for elements that are not aligned")
    if owner.op == "placeholder":
        found = lowering.values[owner]
        buffer = found.access.buffer if isinstance(found, Tensor) and found.access is not None else None
        if buffer is None or buffer.kind != "input":
            raise NotLowered("random numbers that depend on an address")
        lowering.aligned[buffer] = max(count, lowering.aligned.get(buffer, 1))


def is_allocated_by_torch(node: Node) -> bool:
    called = find_operator(node.target)
    return called is not None and called.is_own and not is_view_node(node)


# ---- dropout ---------------------------------------------------------------------------------------------------------


def vector_of(count: Size, dtype: torch.dtype) -> int:
    """How many elements a thread of ATen's dropout takes at once, in aligned memory without holes."""
    most = WIDEST // dtype.itemsize
    if isinstance(count, int):
        return math.gcd(most, count)
    if not divides(most, count):
        raise NotLowered("random numbers that depend on what divides a dynamic size")
    return most


@lowers(aten.native_dropout.default)
def native_dropout(
    lowering: Lowering, node: Node, x: Tensor, p: float, train: bool | None
) -> tuple[Tensor, Tensor | None]:
    source: Any = node.args[0]
    given = source.meta["val"]
    if train is False or p == 1 or x.dtype not in FLOATS:
        raise NotLowered("dropout that draws nothing")
    count = product(x.shape)
    draws = draws_for(lowering, count)
    strides = sizes_of(given.stride())
    vector = vector_of(count, x.dtype)
    if not is_dense(given) or (vector == 1 and strides != contiguous(x.shape)):
        raise NotLowered("dropout of elements that do not lie one after another")
    if any(sizes_of(one.stride()) != strides for one in node.meta["val"]):
        raise NotLowered("dropout that changes the layout")
    if vector > 1:
        needs_alignment(lowering, source, vector * x.dtype.itemsize)
    keep = probability(1.0 - p, x.dtype)
    number = drawn(lowering, draws._replace(vector=vector), strides)
    below = ir.constant(philox.count_below(keep), torch.int64)
    mask = Tensor(x.shape, ir.op("lt", number, below))
    if any(getattr(user, "args", ())[1:] == (1,) and is_needed_in_memory(user) for user in node.users):
        mask = lowering.materialize(mask, node.meta["val"][1])
    inside = wide(x.dtype)
    kept = builders.pointwise("mul", builders.cast(x, inside), builders.cast(mask, inside))
    scaled = builders.pointwise("mul", kept, builders.scalar(probability(1.0 / keep, x.dtype), inside))
    return builders.cast(scaled, x.dtype), mask


def probability(value: float, dtype: torch.dtype) -> float:
    """A number in the type that ATen's dropout computes in."""
    return value if dtype is torch.float64 else float(struct.unpack("<f", struct.pack("<f", value))[0])


# ---- uniform numbers -------------------------------------------------------------------------------------------------


def numbers_like(lowering: Lowering, node: Node, is_wide: bool, generator: Any) -> Expr:
    """The numbers of a result's elements, if they are few: then ATen, too, calls the generator for each of them."""
    result = plain(node)
    if generator is not None:
        raise NotLowered("a generator of the user")
    draws = draws_for(lowering, product(sizes_of(result.shape)), is_wide=is_wide)
    if not isinstance(draws.elements, int) or draws.elements > hint(draws.threads):
        raise NotLowered("many random numbers, which ATen computes four at a time")
    if not is_dense(result):
        raise NotLowered("random numbers that do not lie one after another")
    return drawn(lowering, draws, sizes_of(result.stride()))


def uniform_numbers(lowering: Lowering, node: Node, generator: Any) -> Tensor:
    """In (0, 1]: in float64 for float64, otherwise in float32."""
    result = plain(node)
    is_wide = result.dtype is torch.float64
    bits = Tensor(sizes_of(result.shape), numbers_like(lowering, node, is_wide, generator))
    if not is_wide:
        return between_0_and_1(bits, torch.float32, 32)
    word = builders.scalar(philox.WORD, torch.int64)
    high = builders.pointwise("and", shifted("shr", bits, 32), word)
    low = builders.pointwise("and", bits, word)
    return between_0_and_1(builders.pointwise("xor", high, shifted("shl", low, 21)), torch.float64, 53)


def shifted(how: str, x: Tensor, count: int) -> Tensor:
    return builders.pointwise(how, x, builders.scalar(count, torch.int64))


def between_0_and_1(bits: Tensor, dtype: torch.dtype, count: int) -> Tensor:
    scaled = builders.pointwise("mul", builders.cast(bits, dtype), builders.scalar(2.0**-count, dtype))
    return builders.pointwise("add", scaled, builders.scalar(2.0 ** -(count + 1), dtype))


def uniform_between(lowering: Lowering, node: Node, start: float, end: float, generator: Any) -> Tensor:
    """In [start, end), as ATen rounds: one multiply and add; what is rounded up to the end becomes the start."""
    dtype = plain(node).dtype
    if dtype not in FLOATS:
        raise NotLowered("uniform numbers that are no floats")
    first, last = (torch.tensor(value, dtype=dtype) for value in (start, end))
    inside = wide(dtype)
    numbers = uniform_numbers(lowering, node, generator)
    scale, first_wide = (builders.scalar(float(value), inside) for value in (last - first, first))
    value = builders.cast(builders.pointwise("fma", numbers, scale, first_wide), dtype)
    is_end = builders.pointwise("eq", value, builders.scalar(float(last), dtype))
    return builders.where(is_end, builders.scalar(float(first), dtype), value)


@lowers(aten.rand.default, aten.rand_like.default)
def rand(lowering: Lowering, node: Node, like: Any, **options: Any) -> Tensor:
    return uniform_between(lowering, node, 0.0, 1.0, None)


@lowers(aten.uniform.default)
def uniform(
    lowering: Lowering, node: Node, x: Tensor, start: float = 0.0, end: float = 1.0, *, generator: Any = None
) -> Tensor:
    return uniform_between(lowering, node, start, end, generator)


@lowers(aten.bernoulli.p)
def bernoulli(lowering: Lowering, node: Node, x: Tensor, p: float = 0.5, *, generator: Any = None) -> Tensor:
    if x.dtype not in FLOATS or not 0 <= p <= 1:
        raise NotLowered("truth values that are no floats, or a probability that eager refuses")
    numbers = uniform_numbers(lowering, node, generator)
    below = builders.pointwise("lt", numbers, builders.scalar(probability(p, numbers.dtype), numbers.dtype))
    return builders.cast(below, x.dtype)


MOST_OF_32_BITS = 1 << 28  # values, of which ATen takes one from 32 random bits


def integers(lowering: Lowering, node: Node, low: Any, high: Any) -> Tensor:
    result = plain(node)
    if not isinstance(low, int) or not isinstance(high, int) or not 0 < high - low < MOST_OF_32_BITS:
        raise NotLowered("random integers of a range that is dynamic, empty or large")
    if result.dtype is not torch.int64:
        raise NotLowered("random numbers of another type than int64")
    bits = Tensor(sizes_of(result.shape), numbers_like(lowering, node, False, None))
    within = builders.pointwise("fmod", bits, builders.scalar(high - low, torch.int64))
    return builders.pointwise("add", within, builders.scalar(low, torch.int64))


@lowers(aten.randint.default)
def randint(lowering: Lowering, node: Node, high: Any, size: Any, **options: Any) -> Tensor:
    return integers(lowering, node, 0, high)


@lowers(aten.randint.low)
def randint_low(lowering: Lowering, node: Node, low: Any, high: Any, size: Any, **options: Any) -> Tensor:
    return integers(lowering, node, low, high)


@lowers(aten.randint_like.default)
def randint_like(lowering: Lowering, node: Node, x: Tensor, high: Any, **options: Any) -> Tensor:
    return integers(lowering, node, 0, high)


@lowers(aten.randint_like.low_dtype)
def randint_like_low(lowering: Lowering, node: Node, x: Tensor, low: Any, high: Any, **options: Any) -> Tensor:
    return integers(lowering, node, low, high)
