"""Operators on lists of tensors (``_foreach_…``), lowered tensor by tensor, and the fused steps of optimizers
(``_fused_…``), as formulas."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Node

from kiln.loops import tensor_views
from kiln.loops.ir import wide
from kiln.loops.tensor_views import Tensor

from ....platform.light_dataclass import dataclass
from ... import builders
from ...lowering import Lowering
from ...registry import NotLowered, lowering_of, lowers, lowers_dynamic_floats
from ..reductions import statistics  # noqa: F401  (norms are looked up)
from ..reductions.reduction_helpers import reduce, refuse_empty
from .formulas import Value, where
from .special_functions import lerp_number

aten = torch.ops.aten

# ---- lists -----------------------------------------------------------------------------------------------------------


@dataclass
class Item:
    """What a lowering asks a node for, for one tensor of a list."""

    target: Any
    meta: dict[str, Any]
    users: Any
    kwargs: dict[str, Any]


UNARY = (
    "abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 neg reciprocal round "
    "rsqrt sigmoid sign sin sinh sqrt tan tanh trunc clone zero"
).split()
# Overloads of an operator on lists, and of the one on tensors. Arguments are lists of tensors or numbers, or one of
# those for all tensors.
BINARY = {
    "add": {"List": "Tensor", "Scalar": "Tensor", "ScalarList": "Tensor", "Tensor": "Tensor"},
    "sub": {"List": "Tensor", "Scalar": "Tensor", "ScalarList": "Tensor"},
    "mul": {"List": "Tensor", "Scalar": "Tensor", "ScalarList": "Tensor", "Tensor": "Tensor"},
    "div": {"List": "Tensor", "Scalar": "Tensor", "ScalarList": "Tensor", "Tensor": "Tensor"},
    "clamp_min": {"List": "Tensor", "Scalar": "default", "ScalarList": "default"},
    "clamp_max": {"List": "Tensor", "Scalar": "default", "ScalarList": "default"},
    "pow": {
        "List": "Tensor_Tensor",
        "Scalar": "Tensor_Scalar",
        "ScalarList": "Tensor_Scalar",
        "ScalarAndTensor": "Scalar",
    },
    "lerp": {"List": "Tensor", "Scalar": "Scalar", "ScalarList": "Scalar"},
    "copy": {"default": "default"},
}
ALIASES = {"maximum": "clamp_min", "minimum": "clamp_max"}
TERNARY = ("addcmul", "addcdiv")  # their last argument is the keyword "value" of the operator on tensors


def of_lists(single: Any, lowering: Lowering, node: Node, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
    rule = lowering_of(single)
    found = []
    for place, value in enumerate(node.meta["val"]):
        item = Item(single, {"val": value}, node.users, {})
        own = [argument[place] if isinstance(argument, (list, tuple)) else argument for argument in args]
        found.append(rule(lowering, item, *own, **kwargs))
    return tuple(found)


def of_three_lists(
    single: Any, lowering: Lowering, node: Node, x: Any, a: Any, b: Any, value: Any
) -> tuple[Tensor, ...]:
    rule = lowering_of(single)
    found = []
    for place, result in enumerate(node.meta["val"]):
        item = Item(single, {"val": result}, node.users, {})
        own = value[place] if isinstance(value, (list, tuple)) else value
        found.append(rule(lowering, item, x[place], a[place], b[place], value=own))
    return tuple(found)


def on_lists(name: str, overload: str) -> list[Any]:
    """The operator on lists; none where this torch does not have it."""
    found = getattr(getattr(aten, f"_foreach_{name}", None), overload, None)
    return [found] if found is not None else []


def register() -> None:
    table: dict[Any, Callable[..., Any]] = {}
    for name in UNARY:
        for overload in on_lists(name, "default"):
            table[overload] = functools.partial(of_lists, getattr(aten, name).default)
    for name in (*BINARY, *ALIASES):
        single = ALIASES.get(name, name)
        for ours, theirs in BINARY[single].items():
            for overload in on_lists(name, ours):
                table[overload] = functools.partial(of_lists, getattr(getattr(aten, single), theirs))
    for name in TERNARY:
        for ours in ("Scalar", "ScalarList"):
            for overload in on_lists(name, ours):
                table[overload] = functools.partial(of_three_lists, getattr(aten, name).default)
    for overload, function in table.items():
        lowers(overload)(function)
    lowers_dynamic_floats(table)


register()


@lowers(aten._foreach_norm.Scalar)
def norms(
    lowering: Lowering, node: Node, tensors: Sequence[Tensor], order: Any = 2, dtype: Any = None
) -> tuple[Tensor, ...]:
    """The norm of each tensor of a list, as gradients are clipped by."""
    rule = lowering_of(aten.linalg_vector_norm.default)
    items = [Item(aten.linalg_vector_norm.default, {"val": value}, node.users, {}) for value in node.meta["val"]]
    pairs = zip(items, tensors, strict=True)
    return tuple(rule(lowering, item, tensor, order, None, False, dtype=dtype) for item, tensor in pairs)


@lowers(aten._amp_foreach_non_finite_check_and_unscale.default)
def unscale(
    lowering: Lowering, node: Node, tensors: Sequence[Tensor], found: Tensor, factor: Tensor
) -> tuple[tuple[Tensor, ...], Tensor]:
    """Gradients times a factor, and 1 if an element is not finite, otherwise ``found``: what `GradScaler` asks for."""
    floats = [tensor.dtype.is_floating_point for tensor in (*tensors, found, factor)]
    if not all(floats) or len(tensors) < 2 or found.rank > 1 or factor.rank > 1:
        raise NotLowered("an unusual unscaling")
    refuse_empty(*tensors)
    by = factor if not factor.rank else tensor_views.squeeze(factor, (0,))
    scaled: list[Tensor] = []
    flags: list[Tensor] = []
    for tensor in tensors:
        scaled += stepped(lambda value, by: (where(by.eq(1.0), value, value * by),), [tensor, by], [tensor], [])
        value = Value(tensor.expr)
        is_strange = Tensor(tensor.shape, (value.isnan() | value.isinf()).expr)
        flags.append(reduce(lowering, is_strange, "any", range(tensor.rank)))
    like = node.meta["val"][1].new_empty((len(flags),), dtype=torch.bool)
    stack = lowering_of(aten.stack.default)(lowering, Item(aten.stack.default, {"val": like}, node.users, {}), flags)
    is_any = reduce(lowering, stack, "any", (0,))
    one = builders.full(found.shape, 1.0, found.dtype)
    return tuple(scaled), builders.where(is_any, one, found)


# ---- fused steps -----------------------------------------------------------------------------------------------------


def adam_step(
    param: Value,
    grad: Value,
    average: Value,
    square: Value,
    greatest: Value | None,
    step: Value,
    rate: Any,
    options: dict[str, Any],
    is_decoupled: bool,
) -> tuple[Value, ...]:
    """One step of Adam: the new parameter, average, average of squares and greatest of those."""
    double = torch.float64
    step, rate = (
        step.cast(double),
        rate.cast(double) if isinstance(rate, Value) else Value(step.cast(double).like(rate)),
    )
    first = 1.0 - Value(step.like(options["beta1"])).pow(step)
    second = 1.0 - Value(step.like(options["beta2"])).pow(step)
    decay, inside = options["weight_decay"], param.dtype
    if options["maximize"]:
        grad = -grad
    if decay != 0:
        if is_decoupled:
            param = param * (1.0 - rate * decay).cast(inside)
        else:
            grad = param.fma(decay, grad)
    average = lerp_number(average, grad, 1 - options["beta1"])
    square = ((1 - options["beta2"]) * grad).fma(grad, square * options["beta2"])
    largest = square
    if greatest is not None:
        largest = greatest = where(greatest < square, square, greatest)
    denominator = largest.sqrt() / second.sqrt().cast(inside) + options["eps"]
    param = param - (rate / first).cast(inside) * average / denominator
    return (param, average, square, *([greatest] if greatest is not None else []))


def adam(is_decoupled: bool, lowering: Lowering, node: Node, *lists: Any, **options: Any) -> tuple[Any, ...]:
    refuse_scaling(options)
    params, grads, averages, squares, greatest, steps = lists
    rate, is_amsgrad = options["lr"], options["amsgrad"]
    found: list[list[Tensor]] = [[], [], [], []]
    for place, param in enumerate(params):
        operands = [param, grads[place], averages[place], squares[place], steps[place]]
        operands += [greatest[place]] if is_amsgrad else []
        rates = [rate] if isinstance(rate, Tensor) else []

        def values(p: Value, g: Value, a: Value, s: Value, step: Value, *more: Value) -> tuple[Value, ...]:
            rest = iter(more)
            largest = next(rest) if is_amsgrad else None
            return adam_step(p, g, a, s, largest, step, next(rest, rate), options, is_decoupled)

        kinds = [param, averages[place], squares[place], *greatest[place : place + 1]]
        results = stepped(values, operands, kinds, rates)
        for one, result in zip(found, results, strict=False):
            one.append(result)
    new_params, new_averages, new_squares, new_greatest = map(tuple, found)
    return new_params, tuple(grads), new_averages, new_squares, new_greatest if is_amsgrad else tuple(greatest)


def sgd(lowering: Lowering, node: Node, params: Any, grads: Any, buffers: Any, **options: Any) -> tuple[Any, ...]:
    refuse_scaling(options)
    rate, momentum, decay = options["lr"], options["momentum"], options["weight_decay"]
    has_momentum = momentum != 0
    new_params: list[Tensor] = []
    new_buffers: list[Tensor] = []
    for place, param in enumerate(params):
        operands = [param, grads[place], *(buffers[place : place + 1] if has_momentum else [])]
        count = len(operands)

        def values(*all_values: Value) -> tuple[Value, ...]:
            p, g, *buffer = all_values[:count]
            by = all_values[count].cast(p.dtype) if len(all_values) > count else rate
            g = -g if options["maximize"] else g
            g = p.fma(decay, g) if decay != 0 else g
            if has_momentum:
                first = options["is_first_step"]
                kept = g if first else buffer[0] * momentum + g * (1 - options["dampening"])
                g = kept.fma(momentum, g) if options["nesterov"] else kept
                return (-g).fma(by, p), kept
            return ((-g).fma(by, p),)

        rates = [rate] if isinstance(rate, Tensor) else []
        results = stepped(values, operands, [param, param][: 2 if has_momentum else 1], rates)
        new_params.append(results[0])
        new_buffers += results[1:]
    return tuple(new_params), tuple(grads), tuple(new_buffers) if has_momentum else tuple(buffers)


def refuse_scaling(options: dict[str, Any]) -> None:
    if options.get("grad_scale") is not None or options.get("found_inf") is not None:
        raise NotLowered("gradients that are scaled")


def stepped(
    function: Callable[..., Any], operands: Sequence[Tensor], results: Sequence[Tensor], exact: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """A step computed in the wide type of the parameter; ``exact`` are further operands, of their own types."""
    tensors = builders.broadcast(*(builders.cast(operand, wide(operands[0].dtype)) for operand in operands), *exact)
    found = function(*(Value(tensor.expr) for tensor in tensors))
    pairs = zip(found, results, strict=False)
    return tuple(Tensor(tensors[0].shape, value.cast(result.dtype).expr) for value, result in pairs)


lowers(aten._fused_adam.default, aten._fused_adam.tensor_lr)(functools.partial(adam, False))
lowers(aten._fused_adamw.default, aten._fused_adamw.tensor_lr)(functools.partial(adam, True))
lowers(aten._fused_sgd.default, aten._fused_sgd.tensor_lr)(sgd)
lowers_dynamic_floats((aten._fused_adam.default, aten._fused_adamw.default, aten._fused_sgd.default))
