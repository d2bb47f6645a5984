"""The table of lowerings: for an ATen operator, the function that lowers it to the loop IR.

    @lowers(aten.add.Tensor)
    def add(lowering, node, a, b, *, alpha=1): ...

A lowering gets the `Lowering`, the node, and the operator's arguments as in the schema: tensors as `Tensor`, sizes as
int or sympy expression, the rest as it is. Arguments not given have the schema's defaults. It returns a `Tensor` (or a
tuple of them, None for results that are not used) of the shape and type that the node's ``meta["val"]`` has; or raises
`NotLowered`, and the operator is called from ATen. Lowerings that are compositions of others are decompositions; they
are in the same table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

LOWERINGS: dict[Any, Callable[..., Any]] = {}
Lowers = TypeVar("Lowers", bound=Callable[..., Any])
TAKES_DYNAMIC_FLOATS: set[Any] = set()  # operators whose lowerings take `tensor_views.DynamicFloat`s for dynamic floats


class NotLowered(Exception):
    """This call is left to ATen; the text says why."""


def lowers(*overloads: Any) -> Callable[[Lowers], Lowers]:
    def register(function: Lowers) -> Lowers:
        for overload in overloads:
            assert overload not in LOWERINGS, f"{overload} is lowered twice"
            LOWERINGS[overload] = function
        return function

    return register
