"""Lowerings of ATen operators to the loop IR, registered in the operator table.

    @lowers(aten.add.Tensor)
    def add(lowering, node, a, b, *, alpha=1): ...

A lowering gets the `Lowering`, the node, and the operator's arguments as in the schema: tensors as `Tensor`, sizes as
int or sympy expression, the rest as it is. Arguments not given have the schema's defaults. It returns a `Tensor` (or a
tuple of them, None for results that are not used) of the shape and type that the node's ``meta["val"]`` has; or raises
`NotLowered`, and the operator is called from ATen. Lowerings that are compositions of others are decompositions; they
are in the same table.

An operator that is nearly always a library's has a condition, ``@lowers(aten.mm.default, when=is_narrow)``: other nodes
count as those of an operator without a lowering, so that what they read is prepared for a call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch.fx

from ..platform.torch_operators import OpOverload
from ..program.operators.operator_table import Operator, find_operator, operator_of

Lowers = TypeVar("Lowers", bound=Callable[..., Any])


class NotLowered(Exception):
    """This call is left to ATen; the text says why."""


def lowers(*overloads: OpOverload, when: Callable[[torch.fx.Node], bool] | None = None) -> Callable[[Lowers], Lowers]:
    def register(function: Lowers) -> Lowers:
        for overload in overloads:
            operator = operator_of(overload)
            assert operator.lowering is None, f"{overload} is lowered twice"
            operator.lowering, operator.lowers_when = function, when
        return function

    return register


def lowers_dynamic_floats(overloads: Iterable[OpOverload]) -> None:
    """Register that lowerings take a `tensor_views.DynamicFloat` for a dynamic float."""
    for overload in overloads:
        operator_of(overload).lowers_dynamic_floats = True


def is_lowered(node: torch.fx.Node) -> bool:
    """Whether there is a lowering of what a node calls."""
    operator = find_operator(node.target)
    return operator is not None and rule_for(node, operator) is not None


def rule_for(node: torch.fx.Node, operator: Operator) -> Callable[..., Any] | None:
    """The lowering of a node that calls an operator, if there is one."""
    condition = operator.lowers_when
    return operator.lowering if condition is None or condition(node) else None


def lowering_of(overload: OpOverload) -> Callable[..., Any]:
    """The lowering of an operator that has one."""
    found = operator_of(overload).lowering
    assert found is not None, f"{overload} has no lowering"
    return found
