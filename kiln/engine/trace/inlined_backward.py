"""Nodes that ``kiln.aot`` made: their backward graph is inlined into the graph of the pass.

The graph for the gradients at hand (which come in, which are wanted) is the one that the node would run. Its operations
run on the trace's fakes one by one, and so are recorded like those of any other node. Hooks inside of it belong to a
call and not to the graph; they become calls of functions of `calls/hook_calls.py`, as hooks elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from ... import operator_functions as operator
from ...aot.partition import random_replay
from ...aot.runtime.backward_table import BackwardTable
from ...aot.trace import autocast_state
from ...aot.trace import hook_calls as aot_hooks
from ...platform.torch_dispatch import disable_current_modes
from ...platform.torch_operators import OpOverload
from ..calls import hook_calls, node_calls
from ..walk.refusal import Refused

if TYPE_CHECKING:
    from ..._native import NodeCall
    from .tracer import Tracer

Node = torch.fx.Node


def inline(tracer: Tracer, call: NodeCall, values: list[Any]) -> Sequence[Any]:
    """Record the operations of the node's backward graph; gives its results."""
    backward = call.node.backward
    if type(backward) is not BackwardTable:
        raise Refused("a node of Kiln's whose backward is no graph")
    defined = mask([value is not None for value in values])
    needed = mask([edge is not None for edge in call.edges])
    with disable_current_modes():
        found = backward.graph_for(defined, needed)
    if found is None:
        raise Refused(f"the backward of {call.name} cannot be compiled for these gradients")
    module, places = found
    numbers = [tracer.sizes.values[position] for position in call.saved_sizes]
    saved = tracer.saved_fakes(call)
    arguments = [*numbers, *saved, *map(laid_out, backward.layouts, values)]
    inlining = Inlining(tracer, call, backward)
    with autocast_state.applied(()):
        results = inlining.run(module, [arguments[place] for place in places])
    outputs = results if backward.order is None else [results[place] for place in backward.order]
    check_outputs(tracer, call, outputs)
    if inlining.called_hooks:
        tracer.check_hooks_after(call, values, outputs)
    return outputs


def mask(bits: Sequence[bool]) -> int:
    return sum(1 << place for place, bit in enumerate(bits) if bit)


def laid_out(layout: Any, gradient: torch.Tensor | None) -> torch.Tensor | None:
    """A gradient with the strides that the graph was made for."""
    return gradient if gradient is None or gradient.stride() == layout.strides else layout.laid_out(gradient)


def check_outputs(tracer: Tracer, call: NodeCall, outputs: Sequence[Any]) -> None:
    """Refuse gradients that the next nodes do not expect: the program has replaced the data of a tensor since."""
    for edge, value in zip(call.edges, outputs, strict=True):
        if edge is None or value is None:
            continue
        index, place = edge
        known = tracer.calls[index].metadata[place]
        if known[1] is not None and (value.dtype != known[1] or tuple(value.shape) != tuple(tracer.sizes_at(known[0]))):
            raise Refused(f"{call.name} gives a gradient that is to be converted")


class Inlining:
    """Runs the nodes of one backward graph."""

    def __init__(self, tracer: Tracer, call: NodeCall, backward: BackwardTable) -> None:
        self.tracer, self.call, self.backward = tracer, call, backward
        self.called_hooks = False
        self.hooks: dict[Any, Callable[..., Any]] = {
            aot_hooks.run_hook: self.run_hook,
            aot_hooks.run_node_hook: self.run_node_hook,
            aot_hooks.run_node_prehook: self.run_node_prehook,
        }

    def run(self, module: torch.fx.GraphModule, arguments: Sequence[Any]) -> list[Any]:
        values: dict[Node, Any] = {}
        given = iter(arguments)
        for node in module.graph.nodes:
            if node.op == "placeholder":
                values[node] = next(given)
            elif node.op == "output":
                return list(torch.fx.node.map_arg(node.args[0], values.__getitem__))
            elif node.op == "call_function":
                args, keywords = torch.fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
                values[node] = self.call_function(node, args, keywords)
            elif node.op == "get_attr":
                values[node] = self.constant(operator.attrgetter(node.target)(module))
            else:
                raise Refused(f"{node.op} in a backward graph")
        raise AssertionError("a graph without output")

    def call_function(self, node: Node, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        target: Any = node.target
        if target in self.hooks:
            return self.hooks[target](*args)
        if target is random_replay.replay:
            return self.replay(*args, **keywords)
        if isinstance(target, OpOverload) or not has_tensors((args, keywords)) or target is operator.getitem:
            return target(*args, **keywords)
        raise Refused(f"{getattr(target, '__name__', target)} in a backward graph")

    def constant(self, tensor: Any) -> torch.Tensor:
        """A tensor constant of the compiled program."""
        if (
            type(tensor) is not torch.Tensor
            or tensor.layout is not torch.strided
            or tensor.is_conj()
            or tensor.is_neg()
        ):
            raise Refused("an attribute of a backward graph that is no plain tensor")
        tracer = self.tracer
        fake = tracer.empty_fake(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device)
        tracer.recorder.bind(fake, tracer.emit(node_calls.constant(tensor), (), fake))
        return fake

    def replay(self, state: torch.Tensor, function: Any, *args: Any, **keywords: Any) -> Any:
        """Random numbers of the forward, drawn again: the node of the random operator becomes one that replays it."""
        recorder = self.tracer.recorder
        result = function(*args, **keywords)
        node = next(node for node in reversed(recorder.graph.nodes) if node.target is function)
        if any(isinstance(value, torch.Generator) for value in (*args, *keywords.values())):
            raise Refused("a generator of the program's own in a backward graph")
        node.args = (recorder.nodes_of(state), function.name(), node.args, tuple(node.kwargs.items()))
        node.target, node.kwargs = node_calls.replay, {}
        return result

    # -- hooks ------------------------------------------------------------------------------------------------------

    def slots(self, number: int) -> list[int]:
        slots = [slot for registration, slot in self.call.inner_hooks if registration == number]
        self.called_hooks |= bool(slots)
        return slots

    def run_hook(self, number: int, gradient: torch.Tensor) -> torch.Tensor:
        for slot in self.slots(number):
            gradient = self.tracer.call_user(hook_calls.call_inner_hook, slot, gradient)
        return gradient

    def run_node_hook(self, number: int, inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        return self.call_tuple_hooks(hook_calls.call_inner_post_hook, number, inputs, self.tracer.nodes(outputs))

    def run_node_prehook(self, number: int, outputs: Sequence[Any]) -> Sequence[Any]:
        return self.call_tuple_hooks(hook_calls.call_inner_pre_hook, number, outputs)

    def call_tuple_hooks(
        self, function: Callable[..., Any], number: int, values: Sequence[Any], *more: Any
    ) -> Sequence[Any]:
        """Hooks on several gradients that return gradients exactly where they were given some."""
        slots = self.slots(number)
        return self.tracer.call_hooks(function, slots, values, *more) if slots else values


def has_tensors(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(has_tensors, value))
    if isinstance(value, dict):
        return any(map(has_tensors, value.values()))
    return isinstance(value, torch.Tensor)
