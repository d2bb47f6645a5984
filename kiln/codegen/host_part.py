"""What a graph for a GPU computes of values on the CPU alone: a program of its own, with kernels for the CPU.

In a program for a GPU, values on the CPU only pass through calls of ATen. An optimizer that counts the steps of each
parameter on the CPU makes hundreds of them. So a graph with that many is cut in two: the host part runs first, and
gives the rest what it reads. Only operators without effects are taken, so the order of all others stays. The host part
writes nothing into inputs: should the rest raise an error, they are as before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.fx
from torch.fx import Node

from .. import operator_functions as operator
from ..platform.light_dataclass import dataclass
from ..platform.torch_operators import OpOverload
from ..program import graph_meta
from ..program.graph_modules import output_values, placeholders
from ..program.operators.operator_table import operator_of
from ..target.native_program import Boxed

FEWEST_CALLS = 16  # of ATen that a host part saves; running a second program takes as long as a few


@dataclass(frozen=True)
class Parts:
    """A graph as two. Inputs are places of the graph's inputs. ``handed``: which results of the host part are the last
    inputs of the rest. ``results``: for each result of the graph whether the host part gives it, and its place there.
    """

    host: torch.fx.GraphModule
    rest: torch.fx.GraphModule
    host_inputs: list[int]
    rest_inputs: list[int]
    handed: list[int]
    results: list[tuple[bool, int]]


class TwoPrograms:
    """Runs both parts, as one function of a list that it empties."""

    _boxed_call = True

    def __init__(self, host: Boxed, rest: Boxed, parts: Parts) -> None:
        self.host, self.rest, self.parts = host, rest, parts
        written = getattr(rest, "written_inputs", ())
        self.written_inputs = frozenset(
            place for place, (by_host, number) in enumerate(parts.results) if not by_host and number in written
        )

    def __call__(self, arguments: list[Any]) -> tuple[Any, ...]:
        parts = self.parts
        given = [arguments[index] for index in parts.host_inputs]
        others = [arguments[index] for index in parts.rest_inputs]
        arguments.clear()
        computed = self.host(given)
        others += [computed[number] for number in parts.handed]
        found = self.rest(others)
        return tuple([computed[number] if by_host else found[number] for by_host, number in parts.results])


# ---- cutting ---------------------------------------------------------------------------------------------------------


def parts_of(module: torch.fx.GraphModule) -> Parts | None:
    """A graph for a GPU cut in two; None where the host has little to compute."""
    on_host = nodes_on_host(module)
    if sum(map(calls_of, on_host)) < FEWEST_CALLS:
        return None
    inputs, outputs = placeholders(module), output_values(module)
    others = [node for node in module.graph.nodes if node.op == "call_function" and node not in on_host]
    read_by_host = {source for node in on_host for source in node.all_input_nodes}
    read_by_rest = {source for node in others for source in node.all_input_nodes}
    given_back = {value for value in outputs if isinstance(value, Node)}
    computed = [node for node in on_host if node in read_by_rest or node in given_back]
    if not all(isinstance(node.meta["val"], torch.Tensor) for node in computed):
        return None
    handed = [number for number, node in enumerate(computed) if node in read_by_rest]
    left = [value for value in outputs if not (isinstance(value, Node) and value in on_host)]
    host_inputs = [index for index, node in enumerate(inputs) if node in read_by_host]
    rest_inputs = [index for index, node in enumerate(inputs) if needs(node, read_by_host, read_by_rest, given_back)]
    host = graph_of(module, [inputs[index] for index in host_inputs], on_host, computed)
    handed_over = [computed[number] for number in handed]
    rest = graph_of(module, [*(inputs[index] for index in rest_inputs), *handed_over], others, left)
    places, counted = {node: number for number, node in enumerate(computed)}, iter(range(len(left)))
    results = [
        (True, places[value]) if isinstance(value, Node) and value in on_host else (False, next(counted))
        for value in outputs
    ]
    note_changed_inputs(module, rest, results, host_inputs, rest_inputs)
    return Parts(host, rest, host_inputs, rest_inputs, handed, results)


def needs(node: Node, read_by_host: set[Node], read_by_rest: set[Node], given_back: set[Node]) -> bool:
    """Whether the rest takes an input; it takes what nobody reads."""
    return node in read_by_rest or node in given_back or node not in read_by_host


def graph_of(
    module: torch.fx.GraphModule,
    inputs: Sequence[Node],
    nodes: Sequence[Node] | dict[Node, None],
    outputs: Sequence[Any],
) -> torch.fx.GraphModule:
    """The graph of some nodes of another; tensors of the module that they read are attributes of it too."""
    graph = torch.fx.Graph()
    copies: dict[Node, Node] = {}
    for node in inputs:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    read = {source for node in nodes for source in node.all_input_nodes} | {
        one for one in outputs if isinstance(one, Node)
    }
    for node in module.graph.find_nodes(op="get_attr"):
        if node in read:
            copies[node] = graph.node_copy(node)
    for node in nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output([copies[one] if isinstance(one, Node) else one for one in outputs])
    return torch.fx.GraphModule(module, graph)


def note_changed_inputs(
    module: torch.fx.GraphModule,
    rest: torch.fx.GraphModule,
    results: Sequence[tuple[bool, int]],
    host_inputs: Sequence[int],
    rest_inputs: Sequence[int],
) -> None:
    """The rest may write new contents into inputs that the host part has not seen."""
    changed = {}
    for place, index in graph_meta.changed_inputs(module).items():
        by_host, number = results[place]
        if not by_host and index in rest_inputs and index not in host_inputs:
            changed[number] = rest_inputs.index(index)
    graph_meta.set_changed_inputs(rest, changed)


# ---- what the host computes ------------------------------------------------------------------------------------------


def nodes_on_host(module: torch.fx.GraphModule) -> dict[Node, None]:
    """The nodes whose values are computed from tensors on the CPU, in order."""
    known: set[Node] = set()
    found: dict[Node, None] = {}
    for node in module.graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            if is_on_host(node):
                known.add(node)
        elif node.op == "call_function" and is_pure(node) and is_on_host(node):
            sources = node.all_input_nodes
            if sources and known.issuperset(sources):
                known.add(node)
                found[node] = None
    return found


def is_pure(node: Node) -> bool:
    if node.target is operator.getitem:
        return True
    if type(node.target) is not OpOverload:
        return False
    called = operator_of(node.target)
    return called.is_own and not called.random and not called.in_place and len(called.schema.returns) > 0


def is_on_host(node: Node) -> bool:
    """Whether its value is a tensor on the CPU, or several, of sizes that are known."""
    values = list(tensors_in(node.meta.get("val")))
    return bool(values) and all(isinstance(value, torch.Tensor) and is_plain(value) for value in values)


def tensors_in(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for part in value:
            yield from tensors_in(part)
    else:
        yield value


def is_plain(tensor: torch.Tensor) -> bool:
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        return False
    return all(type(number) is int for number in (*tensor.shape, *tensor.stride(), tensor.storage_offset()))


def calls_of(node: Node) -> int:
    """How many small operations ATen would run."""
    if type(node.target) is not OpOverload or operator_of(node.target).is_view:
        return 0
    return sum(1 for _ in tensors_in(node.meta["val"]))
