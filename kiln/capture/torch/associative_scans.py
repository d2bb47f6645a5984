"""``associative_scan`` of torch, in log2(length) steps.

torch's own splits the length by recursion and maps the function over slices, which needs transforms that graphs cannot
hold. Here each step combines every element with the one a power of two before it, so a graph serves all lengths between
two powers. That is correct for pointwise functions, and only those are captured.
"""

from __future__ import annotations

import types
from typing import Any

import torch

from ...platform.fx_graphs import root_of
from ...platform.python_objects import words
from ...platform.torch_pytree import tree_flatten, tree_unflatten
from ..guards.descriptions import module_of
from ..interpreter.argument_binding import bind_arguments
from ..interpreter.call_rules import rule
from ..interpreter.calls import call
from ..interpreter.frame import run_function
from ..python.standard_library import FINDERS
from ..shadows.tensors import tensor_leaves
from ..shadows.wrap import force
from ..state.operations import Args, Kwargs
from ..state.trace import Trace

POINTWISE = words(
    "add sub mul truediv div neg abs exp log log1p expm1 sqrt rsqrt sigmoid tanh relu maximum minimum logaddexp where "
    "pow clamp iadd imul isub and_ or_ xor logical_and logical_or logical_xor float double half bfloat16"
)


def combine_pairs(function: Any, left: Any, right: Any) -> Any:
    """The function on all pairs at once."""
    return function(left, right)


@rule(combine_pairs)
def rule_combined(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    last = root_of(trace.graph).prev
    result = call(trace, args[0], args[1:], {})
    while last.next is not root_of(trace.graph):
        last = last.next
        name = getattr(last.target, "__name__", last.target)
        if last.op not in ("placeholder", "get_attr") and name not in POINTWISE:
            raise trace.fail(f"a scan with a function that calls {name}, which may look at more than one element")
    return result


def scan(combine_fn: Any, xs: Any, dim: int, reverse: bool = False, combine_mode: str = "pointwise") -> Any:
    """Interpreted. It has no nested functions: functions of Kiln are not interpreted."""
    given, spec = tree_flatten(xs)
    leaves = []
    for leaf in given:
        moved = leaf.movedim(dim, 0)
        leaves.append(moved.flip(0) if reverse else moved)
    step, length = 1, leaves[0].shape[0]
    while step < length:  # at full length: a rest of length one would be specialised
        before, grown = [], []
        for leaf in leaves:
            before.append(leaf.roll(step, 0))
        made = combine_pairs(combine_fn, tree_unflatten(before, spec), tree_unflatten(leaves, spec))
        for leaf, new in zip(leaves, tree_flatten(made)[0], strict=True):
            grown.append(torch.cat((leaf[:step], new[step:])))
        leaves = grown
        step *= 2
    result = []
    for leaf in leaves:
        result.append((leaf.flip(0) if reverse else leaf).movedim(0, dim))
    return tree_unflatten(result, spec)


def is_scan(function: types.FunctionType) -> bool:
    return function.__name__ == "associative_scan" and module_of(function).startswith("torch._higher_order_ops")


def call_scan(trace: Trace, function: types.FunctionType, args: Args, kwargs: Kwargs) -> tuple[object] | None:
    """Interpret the scan above, unless torch's own would reject the arguments."""
    bound = bind_arguments(trace, function, args, kwargs)
    leaves = tensor_leaves(force(trace, bound["xs"]))
    on_cpu = any(leaf.device.type == "cpu" for leaf in leaves)
    if not leaves or (on_cpu and force(trace, bound["combine_mode"]) != "generic"):
        return None
    trace.outside.pinned(scan)
    return (run_function(trace, scan, bind_arguments(trace, scan, args, kwargs)),)


FINDERS.append(lambda function: call_scan if is_scan(function) else None)
