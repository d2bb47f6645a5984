"""Lists of tensors that a graph module consumes: the graph takes the whole list, and empties it.

What runs a backward pass has the only references to most of the tensors that the pass needs, in a list. A graph module
whose ``meta["locals_to_steal"]`` names that parameter promises that its caller has no more use for the list. Its graph
has one input for the list and takes the tensors out of it, so that each is freed at its last use.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.fx

from .. import operator_functions as operator
from ..platform.light_dataclass import dataclass
from .graph import fix_names

META = "locals_to_steal"


def set_locals_to_steal(module: object, names: Iterable[str]) -> None:
    """Let compiled calls of a graph module consume the lists that these parameters hold."""
    if isinstance(module, torch.fx.GraphModule):
        module.meta[META] = list(names)


def get_locals_to_steal(module: object) -> list[str]:
    """The parameters whose lists a graph module consumes."""
    return list(module.meta.get(META, ())) if isinstance(module, torch.fx.GraphModule) else []


def list_places(module: torch.fx.GraphModule) -> list[int]:
    """Which inputs of a graph are lists that it empties."""
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    return [place for place, node in enumerate(placeholders) if isinstance(node.meta.get("example_value"), list)]


def spread(module: torch.fx.GraphModule, examples: Sequence[Any]) -> tuple[torch.fx.GraphModule, list[Any], list[Any]]:
    """The graph with an input for each tensor in place of lists, example inputs for it, and where each comes from.

    A place is the number of an input, or (its number, the item of the list).
    """
    graph = torch.fx.Graph()
    known: dict[torch.fx.Node, torch.fx.Node] = {}
    inputs: list[Any] = []
    places: list[Any] = []

    def add(node: torch.fx.Node, example: Any, place: Any) -> None:
        made = known[node] = graph.placeholder(node.name)
        made.meta = dict(node.meta)
        inputs.append(example)
        places.append(place)

    lists: list[torch.fx.Node] = []
    number = 0
    for node in module.graph.nodes:
        if node.op != "placeholder":
            continue
        example = examples[number]
        if isinstance(example, list):
            lists.append(node)
            for user in list(node.users):
                if user.target is operator.getitem:
                    add(user, example[user.args[1]], (number, user.args[1]))
        else:
            add(node, example, number)
        number += 1
    for node in module.graph.nodes:
        if node.op == "placeholder" or node in known or any(each in lists for each in node.all_input_nodes):
            continue
        known[node] = graph.node_copy(node, known.__getitem__)
    return fix_names(torch.fx.GraphModule(module, graph, type(module).__name__)), inputs, places


@dataclass(eq=False)  # never changed
class ConsumedLists:
    """What is known of the lists that a function takes."""

    names: tuple[str, ...] = ()  # parameters whose lists it consumes
    examples: Any = None  # what is known of items of lists (capture's `Examples`)


_CONSUMED: weakref.WeakKeyDictionary[types.FunctionType, ConsumedLists] = weakref.WeakKeyDictionary()


def set_consumed(function: types.FunctionType, lists: ConsumedLists) -> None:
    _CONSUMED[function] = lists


def consumed(function: types.FunctionType) -> ConsumedLists:
    return _CONSUMED.get(function, ConsumedLists())
