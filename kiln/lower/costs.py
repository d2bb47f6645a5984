"""What it costs to compute a value again, beside what it costs to load it."""

from __future__ import annotations

from collections.abc import Sequence

from ..loops import ir
from ..loops.ir import Expr
from ..loops.sizes import Size, hint, product

COSTLY_OPERATIONS = frozenset(ir.OPERATIONS) & frozenset(
    "pow exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh erf "
    "erfc erfinv lgamma digamma sigmoid gelu_erf div floordiv truncdiv remainder fmod sqrt rsqrt".split()
) | {"philox"}
CHEAP_OPERATIONS, CHEAP_LOADS = 6, 2  # of what is computed again rather than kept for a second reader
FEW_OPERATIONS_ON_GPU = 16  # which take no time beside memory
MOST_OPERATIONS, MOST_LOADS = 160, 20  # of what one expression grows to before it is put into memory
LEAST_SHARED = 8  # points that share what is loaded for all of them


def cost_of(expr: Expr) -> tuple[int, int, bool]:
    """The number of operations and of loads of an expression, and whether any of them is costly."""
    operations = loads = 0
    costly = False
    for part in ir.walk(expr):
        if part.kind == "load":
            loads += 1
            costly = costly or bool(part.payload.indirect)
        elif part.args:
            operations += 1
            costly = costly or part.kind in COSTLY_OPERATIONS
    return operations, loads, costly


def is_large(expr: Expr) -> bool:
    """Whether an expression has grown so large that it is put into memory."""
    operations, loads, _ = cost_of(expr)
    return operations > MOST_OPERATIONS or loads > MOST_LOADS


def is_cheap_again(expr: Expr, shape: Sequence[Size]) -> bool:
    """Whether a GPU computes a value again as fast as it loads it: in few operations, of no more bytes than it has.
    Loads that many points share, such as the statistics of a normalization, do not count."""
    operations, _, costly = cost_of(expr)
    if costly or operations > FEW_OPERATIONS_ON_GPU:
        return False
    points, moved = hint(product(shape)), 0
    for access in ir.loads_of(expr):
        axes = [size for size, stride in zip(shape, access.strides, strict=True) if stride != 0]
        if hint(product(axes)) * LEAST_SHARED > points:
            moved += access.buffer.dtype.itemsize
    return moved <= expr.dtype.itemsize
