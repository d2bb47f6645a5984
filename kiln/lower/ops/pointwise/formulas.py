"""How elementwise lowerings are written: values with Python's operators, and the types that operators compute in.

A `Value` is a scalar expression; numbers beside it become constants of its type. `formula` registers a function of such
values as the lowering of operators whose ATen kernels compute inside in float32 where tensors are float16 or bfloat16
(one rounding, at the end). What differs takes `values`, `computed` and `common_type` and does it by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import sympy
import torch
from torch.fx import Node

from kiln.loops import ir
from kiln.loops.ir import wide
from kiln.loops.sizes import Size
from kiln.loops.tensor_views import DynamicFloat, Tensor
from kiln.program.operators.operator_table import find_operator

from ... import builders
from ...lowering import Lowering
from ...registry import NotLowered, lowers

Number: TypeAlias = bool | int | float
Operand: TypeAlias = "Tensor | bool | int | float | sympy.Expr"
AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


class Value:
    """A scalar expression with Python's operators. ``value.NAME(...)`` is the operation NAME of `ir.OPERATIONS`."""

    __slots__ = ("expr",)

    def __init__(self, expr: ir.Expr) -> None:
        self.expr = expr

    @property
    def dtype(self) -> torch.dtype:
        return self.expr.dtype

    def __getattr__(self, name: str) -> Callable[..., Value]:
        if name not in ir.OPERATIONS:
            raise AttributeError(name)
        return lambda *others: self.apply(name, *others)

    def like(self, other: Value | Number) -> ir.Expr:
        return other.expr if isinstance(other, Value) else ir.constant(other, self.dtype)

    def apply(self, name: str, *others: Value | Number) -> Value:
        return Value(ir.op(name, self.expr, *map(self.like, others)))

    def cast(self, dtype: torch.dtype) -> Value:
        return Value(ir.op("cast", self.expr, dtype=dtype))

    def __neg__(self) -> Value:
        return self.apply("neg")

    def __invert__(self) -> Value:
        return self.apply("not")

    def __add__(self, other: Value | Number) -> Value:
        return self.apply("add", other)

    def __sub__(self, other: Value | Number) -> Value:
        return self.apply("sub", other)

    def __mul__(self, other: Value | Number) -> Value:
        return self.apply("mul", other)

    def __truediv__(self, other: Value | Number) -> Value:
        return self.apply("div", other)

    def __radd__(self, other: Number) -> Value:
        return Value(self.like(other)).apply("add", self)

    def __rsub__(self, other: Number) -> Value:
        return Value(self.like(other)).apply("sub", self)

    def __rmul__(self, other: Number) -> Value:
        return Value(self.like(other)).apply("mul", self)

    def __rtruediv__(self, other: Number) -> Value:
        return Value(self.like(other)).apply("div", self)

    def __and__(self, other: Value) -> Value:
        return self.apply("and", other)

    def __or__(self, other: Value) -> Value:
        return self.apply("or", other)

    def __lt__(self, other: Value | Number) -> Value:
        return self.apply("lt", other)

    def __le__(self, other: Value | Number) -> Value:
        return self.apply("le", other)

    def __gt__(self, other: Value | Number) -> Value:
        return self.apply("gt", other)

    def __ge__(self, other: Value | Number) -> Value:
        return self.apply("ge", other)


def where(condition: Value, yes: Value | Number, no: Value | Number) -> Value:
    """One of two values; at least one of them is no number."""
    model = yes if isinstance(yes, Value) else no
    assert isinstance(model, Value)
    return Value(ir.op("where", condition.expr, model.like(yes), model.like(no)))


# ---- types -----------------------------------------------------------------------------------------------------------


def float_type(dtype: torch.dtype) -> torch.dtype:
    """What functions that give fractions make of a type: integers become the default float."""
    return dtype if dtype.is_floating_point else torch.get_default_dtype()


def number_type(value: Number | sympy.Expr) -> torch.dtype:
    if isinstance(value, bool):
        return torch.bool
    if isinstance(value, (int, sympy.Expr)):
        return torch.int64
    if isinstance(value, float):
        return torch.get_default_dtype()
    raise NotLowered(f"a number of type {type(value).__name__}")


def category(dtype: torch.dtype) -> int:
    return 2 if dtype.is_floating_point else 0 if dtype is torch.bool else 1


def common_type(operands: Sequence[Operand]) -> torch.dtype:
    """torch's promotion: tensors decide, then those without axes, then numbers, each only by a higher category."""
    ranks: list[torch.dtype | None] = [None, None, None]
    for operand in operands:
        if isinstance(operand, DynamicFloat):
            rank, dtype = 2, torch.get_default_dtype()
        elif isinstance(operand, Tensor):
            rank, dtype = (0 if operand.rank else 1), operand.dtype
        else:
            rank, dtype = 2, number_type(operand)
        known = ranks[rank]
        ranks[rank] = dtype if known is None else torch.promote_types(known, dtype)
    found: torch.dtype | None = None
    for candidate in ranks:
        if candidate is not None and (found is None or category(candidate) > category(found)):
            found = candidate
    assert found is not None
    return found


def as_type(operand: Operand, dtype: torch.dtype) -> Tensor:
    """A tensor or a number as a tensor of this type."""
    if isinstance(operand, Tensor):
        return builders.cast(operand, dtype)
    if isinstance(operand, (bool, int, float)):
        return builders.scalar(operand, dtype)
    if isinstance(operand, sympy.Expr):
        return builders.size_tensor(operand, dtype)
    raise NotLowered(f"a number of type {type(operand).__name__}")


def copy_if_visible(lowering: Lowering, node: Node, x: Tensor) -> Tensor:
    """The same elements, for an operator whose result is new memory. What is in memory already is copied only where the
    identity of the memory shows (a result of the graph, views)."""
    if x.access is None or not any(shows_memory(user) for user in node.users):
        return x
    found: Tensor = lowering.materialize(x, node.meta["val"])
    return found


def shows_memory(user: Any) -> bool:
    operator = find_operator(user.target)
    return operator is None or any(returned.alias_info is not None for returned in operator.schema.returns)


# ---- lowerings out of functions of values ----------------------------------------------------------------------------


def result_type(node: Any) -> torch.dtype:
    value = node.meta["val"]
    found: torch.dtype = (value[0] if isinstance(value, (tuple, list)) else value).dtype
    return found


def computed(function: Callable[..., Value], operands: Sequence[Operand], dtype: torch.dtype, result: Any) -> Tensor:
    """The tensor computed by a function of values in one type, cast to the type of the (fake) result."""
    shape, values = values_of(operands, dtype)
    return Tensor(shape, function(*values).cast(result.dtype).expr)


def all_computed(
    function: Callable[..., tuple[Value, ...]], operands: Sequence[Operand], dtype: torch.dtype, results: Any
) -> tuple[Tensor, ...]:
    """The same for a function with several results."""
    shape, values = values_of(operands, dtype)
    pairs = zip(function(*values), results, strict=True)
    return tuple(Tensor(shape, value.cast(one.dtype).expr) for value, one in pairs)


def values_of(operands: Sequence[Operand], dtype: torch.dtype) -> tuple[tuple[Size, ...], list[Value]]:
    """Tensors and numbers over one space, in one type."""
    tensors = builders.broadcast(*(as_type(operand, dtype) for operand in operands))
    return tensors[0].shape, [Value(tensor.expr) for tensor in tensors]


def formula(*overloads: Any, narrow: Sequence[torch.dtype] = ()) -> Callable[[AnyFunction], AnyFunction]:
    """Registers a function of values (for the tensors of the schema) and the other arguments, as they are.

    It is computed in the wide type of the result; in the result's own type, with a rounding after each operation, for
    the types that are ``narrow``, which is how ATen's kernels do it in some cases.
    """

    def register(function: AnyFunction) -> AnyFunction:
        @lowers(*overloads)
        def lower(lowering: Lowering, node: Node, *args: Any, **kwargs: Any) -> Any:
            dtype = result_type(node)
            if not dtype.is_floating_point:
                raise NotLowered(f"{dtype} in a function of floats")
            of_values, operands = of_tensors(function, args, kwargs)
            result = node.meta["val"]
            compute = all_computed if isinstance(result, (tuple, list)) else computed
            return compute(of_values, operands, dtype if dtype in narrow else wide(dtype), result)

        return function

    return register


def of_tensors(
    function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[Callable[..., Any], list[Operand]]:
    """A function of all arguments as a function of the tensors (and the sizes) among them, and those."""
    everything = [*args, *kwargs.values()]

    def of_values(*values: Value) -> Any:
        rest = iter(values)
        filled = [next(rest) if isinstance(argument, (Tensor, sympy.Expr)) else argument for argument in everything]
        return function(*filled[: len(args)], **dict(zip(kwargs, filled[len(args) :], strict=True)))

    return of_values, [argument for argument in everything if isinstance(argument, (Tensor, sympy.Expr))]
