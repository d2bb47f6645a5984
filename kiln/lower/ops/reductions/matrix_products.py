"""Matrix products that are sums or multiplications rather than work for a library, on a GPU.

A product with one row or one column reads a matrix once: it takes as long as that memory takes. A kernel of our own is
faster than those of cuBLAS, which are made for many rows, and what follows (a bias, an activation, the next
conversion) is part of it. Generating text, one token a call, is made of such products. A product of one column by one
row is a multiplication of elements.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from kiln.loops.ir import wide
from kiln.loops.sizes import is_one
from kiln.loops.tensor_views import Tensor, squeeze, unsqueeze

from ...builders import cast, pointwise, scalar
from ...lowering import Lowering
from ...registry import lowers
from .reduction_helpers import sum_along

aten = torch.ops.aten
Node = torch.fx.Node
TYPES = frozenset((torch.bfloat16, torch.float16, torch.float32, torch.float64))


def is_narrow(node: Node) -> bool:
    """Whether a node multiplies two matrices, one of which is a single row or column, along contiguous memory."""
    given = [arg.meta.get("val") if isinstance(arg, Node) else None for arg in node.args[-2:]]
    a, b = given
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor) or a.device.type != "cuda":
        return False
    result = node.meta.get("val")
    types = {one.dtype for one in node.all_input_nodes for one in [one.meta["val"]] if isinstance(one, torch.Tensor)}
    if not isinstance(result, torch.Tensor) or types != {result.dtype} or result.dtype not in TYPES:
        return False
    sizes = (*a.shape, *b.shape)
    if not all(type(size) is int and size > 0 for size in sizes):
        return False
    rows, depth, columns = a.shape[0], a.shape[1], b.shape[1]
    if rows == 1 and columns > 1:
        return depth > 1 and b.stride(0) == 1
    if columns == 1 and rows > 1:
        return depth > 1 and a.stride(1) == 1
    return depth == 1


@lowers(aten.mm.default, when=is_narrow)
def product(lowering: Lowering, node: Node, a: Tensor, b: Tensor) -> Tensor:
    return cast(sum_of_products(lowering, a, b), a.dtype)


@lowers(aten.addmm.default, when=is_narrow)
def product_and_sum(
    lowering: Lowering, node: Node, added: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1
) -> Tensor:
    """``beta * added + alpha * (a @ b)``, rounded once, as in cuBLAS."""
    found = sum_of_products(lowering, a, b)
    if alpha != 1:
        found = pointwise("mul", found, scalar(alpha, found.dtype))
    if beta != 0:
        more = cast(added, found.dtype)
        if beta != 1:
            more = pointwise("mul", more, scalar(beta, found.dtype))
        found = pointwise("add", found, more)
    return cast(found, a.dtype)


def sum_of_products(lowering: Lowering, a: Tensor, b: Tensor) -> Tensor:
    """The product in the type in which it is summed. What several points read is in memory first."""
    if not is_one(b.shape[1]):
        a = lowering.in_memory(a)
    if not is_one(a.shape[0]):
        b = lowering.in_memory(b)
    dtype = wide(a.dtype)
    products = pointwise("mul", cast(unsqueeze(a, 2), dtype), cast(unsqueeze(b, 0), dtype))
    if is_one(a.shape[1]):  # a sum begins with zero, so that no result is -0.0
        return pointwise("add", squeeze(products, (1,)), scalar(0.0, dtype))
    return sum_along(lowering, products, (1,))
