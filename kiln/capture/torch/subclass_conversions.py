"""Classes of results under overrides: conversions in the graph, and those taken out of it."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from ..._native import is_instance as isinstance
from ...platform.torch_dispatch import DisableTorchFunction
from ...platform.torch_operators import NATIVE_MODULES, VARIABLE_FUNCTIONS
from ...program.operators.operator_table import operator_named
from ..shadows.tensors import constant_node, plain_subclass
from ..shadows.wrap import force
from ..state.operations import Args, Kwargs
from ..state.trace import Trace
from ..state.values import TensorInfo

LEAF_MODULES = frozenset({"torch.functional", "torch.nn.functional", "torch._tensor", "torch._C._nn", "torch.special"})

NATIVE_OWNERS = (VARIABLE_FUNCTIONS, *NATIVE_MODULES)


def is_native_function(function: types.BuiltinFunctionType) -> bool:
    """Whether a builtin is one of torch's functions in C++."""
    name = function.__name__
    return any([getattr(owner, name, None) is function for owner in NATIVE_OWNERS]) and not name.startswith("__")


def convert(trace: Trace, result: object, cls: type) -> object:
    if isinstance(result, torch.Tensor):
        return result if issubclass(trace.tensor_info(result).kind, cls) else as_subclass(trace, result, cls)
    if isinstance(result, (tuple, list)):
        return type(result)(convert(trace, force(trace, item), cls) for item in result)
    return result


def as_subclass(trace: Trace, tensor: torch.Tensor, cls: type) -> object:
    """The same tensor as an instance of a subclass."""
    trace.overrides.has_overriding = True
    info = trace.tensor_info(tensor)
    node = trace.graph.call_function(torch.Tensor.as_subclass, (info.node, constant_node(trace, cls)))
    node.meta["stack_trace"] = trace.stack_trace()
    with trace.fakes.mode:
        alias = torch.ops.aten.alias.default(tensor)
    node.meta["example_value"] = alias
    return trace.add_tensor(TensorInfo(alias, node, cls))


def as_subclass_handler(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    """``tensor.as_subclass(cls)``."""
    tensor, cls = (force(trace, arg) for arg in args)
    kind = force(trace, cls)
    if kwargs or not isinstance(kind, type) or not issubclass(kind, torch.Tensor):
        raise trace.fail("as_subclass with these arguments")

    if not plain_subclass(kind):
        raise trace.fail(f"as_subclass to {kind.__qualname__}, which defines __torch_dispatch__")
    return as_subclass(trace, tensor, kind)


def without_overrides(graph: Callable[..., Any], conversions: dict[int, type]) -> Callable[..., Any]:
    """Run a graph with overrides off, on plain tensors, and convert results to their classes."""

    def run(*inputs: Any) -> Any:
        with DisableTorchFunction():
            results = graph(*inputs)
            if not conversions:
                return results
            return [
                value.as_subclass(conversions[place]) if place in conversions else value
                for place, value in enumerate(results)
            ]

    return run


def remove_conversions(trace: Trace, outputs: list[torch.fx.Node]) -> None:
    """Move conversions to `without_overrides` where no operation depends on the class.

    With overrides off, operations do not care what class a tensor has, so a backend need not see it.
    """
    graph = trace.graph
    for node in reversed(graph.find_nodes(op="call_function", target=torch.Tensor.as_subclass)):
        tensor, cls = node.args
        inside = tensor.op != "placeholder" and all(ignores_class(user) for user in node.users)
        places = [place for place, output in enumerate(outputs) if output is node]
        if not inside:
            continue
        kind: Any = trace.inputs.constants[cls.target]
        for place in places:
            outputs[place] = tensor
            trace.overrides.conversions.setdefault(place, kind)
        node.replace_all_uses_with(tensor)
        graph.erase_node(node)
        if not cls.users:
            graph.erase_node(cls)


def ignores_class(node: torch.fx.Node) -> bool:
    """Whether an operation only computes. One that changes a tensor, or attaches something, needs the object itself."""
    target: Any = node.target
    if node.op == "call_method":
        return not operator_named(target).in_place and target not in ("register_hook", "retain_grad")
    own = getattr(target, "__module__", None) in (*LEAF_MODULES, "_operator")
    own = own or (isinstance(target, types.BuiltinFunctionType) and is_native_function(target))
    known = own or target in (getattr, torch.Tensor.as_subclass)
    return known and not operator_named(target.__name__).in_place
