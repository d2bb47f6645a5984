"""Lists of tensors that a graph module consumes: the graph takes the whole list, and empties it.

What runs a backward pass has the only references to most of the tensors that the pass needs, in a list. A graph module
whose ``meta["locals_to_steal"]`` names that parameter promises that its caller has no more use for the list. Its graph
then has one input for the list and takes the tensors out of it, so that each dies at its last use; a compiled call
leaves the list empty. Tensors that are needed after the graph (to get their gradient) are kept apart before the call,
in variables such as ``inputs_ref_0``.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.fx
from torch.nn import Module

from ... import operator_functions as operator
from ...platform.light_dataclass import dataclass
from ...platform.torch_modules import forward_hooks_of, forward_pre_hooks_of
from ...program.consumed_lists import ConsumedLists, get_locals_to_steal, set_consumed
from ..guards.source import Item, Local, Source
from ..state.values import Lazy, TensorInfo
from .list_examples import Examples

if TYPE_CHECKING:
    from ..state.trace import Trace
    from ..writeback.rebuild import Rebuilder


def consuming_forward(module: Module) -> types.FunctionType | None:
    """The function to compile for a graph module that consumes lists: its own, with nothing around it."""
    names = get_locals_to_steal(module)
    function = vars(type(module)).get("forward")
    if not names or not isinstance(function, types.FunctionType):
        return None
    if forward_hooks_of(module) or forward_pre_hooks_of(module) or "forward" in vars(module):
        return None
    assert isinstance(module, torch.fx.GraphModule)
    set_consumed(function, ConsumedLists(tuple(names), Examples(module)))
    return function


def set_examples(function: types.FunctionType, examples: Examples | None) -> None:
    """What is known of a graph module's values, for a function that goes on after a graph break."""
    if examples is not None:
        set_consumed(function, ConsumedLists(examples=examples))


# -- in a trace -----------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class ListInput:
    """A list as a graph input."""

    source: Source
    node: torch.fx.Node
    value: list[Any]  # of the fakes, None where the program looked at nothing


def lists_to_consume(trace: Trace, rebuilder: Rebuilder) -> list[str]:
    """The lists that the graph may have: those of no more use after it."""
    found = []
    for name in trace.inputs.consumed:
        value = trace.root.arguments.get(name)
        if type(value) is not Lazy or type(value.real) is not list or name in rebuilder.kept:
            continue
        trace.guards.add(Local(name), "type", list)
        found.append(name)
    return found


def take_from_lists(trace: Trace, names: Sequence[str], inputs: list[Any]) -> list[Any]:
    """Have the graph take its inputs out of the lists; gives the inputs that it then has."""
    for name in names:
        inputs = take_from_list(trace, Local(name), inputs)
    return inputs


def take_from_list(trace: Trace, source: Local, inputs: list[Any]) -> list[Any]:
    items = [item for item in inputs if isinstance(item, TensorInfo) and is_item(item.source, source)]
    if not items:
        return inputs
    graph, record = trace.graph, next(one for one in trace.outside.by_shadow.values() if one.source == source)
    fakes: list[Any] = [None] * len(record.items)
    with graph.inserting_before(next(iter(graph.nodes))):
        node = graph.placeholder(f"l_{source.name}")
    node.target = node.name
    last = next(one for one in reversed(list(graph.nodes)) if one.op == "placeholder")
    for item in items:
        assert isinstance(item.source, Item) and isinstance(item.source.key, int)
        place = item.source.key
        with graph.inserting_after(last):
            last = graph.call_function(operator.getitem, (node, place))
        last.meta = item.node.meta
        item.node.replace_all_uses_with(last)
        graph.erase_node(item.node)
        item.node = last
        fakes[place] = item.fake
    with graph.inserting_after(last):
        graph.call_method("clear", (node,))
    node.meta["example_value"] = fakes
    taken = set(map(id, items))
    return [ListInput(source, node, fakes), *(item for item in inputs if id(item) not in taken)]


def is_item(source: object, base: Source) -> bool:
    return type(source) is Item and source.base == base and type(source.key) is int


def emptying(graph: Callable[..., Any], places: tuple[int, ...]) -> Callable[..., Any]:
    """A graph that leaves these of its arguments empty, whatever its backend makes of them."""

    def run(*arguments: Any) -> Any:
        try:
            return graph(*arguments)
        finally:
            for place in places:
                arguments[place].clear()

    return run


# -- for backends that want tensors ----------------------------------------------------------------------------------
