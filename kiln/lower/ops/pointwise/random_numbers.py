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

from kiln.loops import ir, philox
from kiln.loops.ir import Buffer, Expr, wide
from kiln.loops.philox import Draws
from kiln.loops.sizes import contiguous
from kiln.loops.steps import Draw
from kiln.loops.tensor_layouts import is_dense, load_whole, sizes_of
from kiln.loops.tensor_views import Tensor
from kiln.platform import torch_random
from kiln.program import graph_meta

from ... import builders
from ...lowering import Lowering
from ...node_facts import is_needed_in_memory, is_view_node, storage_of
from ...registry import NotLowered, lowers

aten = torch.ops.aten

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
WIDEST = 16  # bytes that a thread of ATen's dropout takes at once
MOST_ELEMENTS = 2**31 - 1  # beyond, ATen draws in several parts


def draws_for(lowering: Lowering, count: Any, vector: int = 1, is_wide: bool = False) -> Draws:
    if lowering.device.type != "cuda" or not torch_random.is_known():
        raise NotLowered("random numbers, which ATen draws")
    if not isinstance(count, int) or not 0 < count <= MOST_ELEMENTS:
        raise NotLowered("random numbers for a number of elements that is dynamic, 0 or very large")
    processors, threads = torch_random.processors_and_threads(lowering.device.index or 0)
    return Draws(count, philox.threads_for(count, processors, threads), vector, is_wide)


def drawn(lowering: Lowering, draws: Draws, strides: Any) -> Expr:
    """The numbers of a tensor's elements, whose order is that of its memory."""
    buffer = Buffer(lowering.name("drawn"), torch.int64, (2,), (1,), "drawn")
    given = (lowering.device, draws.increment)
    lowering.items.append(Draw(lowering.node, torch_random.draw, given, {}, [buffer], is_sealed=True))
    rank = len(strides)
    seed, offset = (ir.load(ir.Access(buffer, (0,) * rank, place)) for place in (0, 1))
    return ir.philox(seed, offset, ir.iota(strides), draws)


def needs_alignment(lowering: Lowering, node: Node, count: int) -> None:
    """The value of a node is at a multiple of so many bytes in eager, or the program is not run: ATen's kernels give
    other numbers to elements that are not. Memory that operators of ATen allocate is aligned."""
    owner, _ = storage_of(node)
    value = node.meta["val"]
    offset = value.storage_offset()
    inputs = [one for one in lowering.module.graph.find_nodes(op="placeholder")]
    changed = {inputs[index] for index in graph_meta.changed_inputs(lowering.module).values()}
    outside = {one for one in changed if is_like(one, value)}  # eager may have computed the value in their memory
    if owner.op == "placeholder":
        outside.add(owner)
        offset = offset - owner.meta["val"].storage_offset()
    elif owner.op != "call_function" or not is_allocated_by_torch(owner):
        raise NotLowered("random numbers that depend on an address")
    if not isinstance(offset, int) or offset * value.dtype.itemsize % count:
        raise NotLowered("random numbers for elements that are not aligned")
    for one in outside:
        found = lowering.values[one]
        buffer = found.access.buffer if isinstance(found, Tensor) and found.access is not None else None
        if buffer is None or buffer.kind != "input":
            raise NotLowered("random numbers that depend on an address")
        lowering.aligned[buffer] = max(count, lowering.aligned.get(buffer, 1))


def is_like(one: Node, value: torch.Tensor) -> bool:
    known = one.meta.get("val")
    return isinstance(known, torch.Tensor) and known.dtype is value.dtype


def is_allocated_by_torch(node: Node) -> bool:
    from kiln.program.operators.operator_table import find_operator

    called = find_operator(node.target)
    return called is not None and called.is_own and not is_view_node(node)


# ---- dropout ---------------------------------------------------------------------------------------------------------


def vector_of(count: int, dtype: torch.dtype) -> int:
    """How many elements a thread of ATen's dropout takes at once, in aligned memory without holes."""
    return math.gcd(WIDEST // dtype.itemsize, count)


@lowers(aten.native_dropout.default)
def native_dropout(
    lowering: Lowering, node: Node, x: Tensor, p: float, train: bool | None
) -> tuple[Tensor, Tensor | None]:
    source: Any = node.args[0]
    given = source.meta["val"]
    if train is False or p == 1 or x.dtype not in FLOATS:
        raise NotLowered("dropout that draws nothing")
    count = given.numel()
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
