"""Places of a graph where libraries can be called in several ways, found by rules.

A rule looks at a node and gives a `Site`: the tensors that it reads, and the alternatives, of which the first is the
graph as it is. An alternative says how to compute the same with tensors (to measure it) and with nodes (to write it).
A new rule is a function with ``@rule(aten.name.overload)`` in rules.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch.fx

from ...aot.partition.graph_cleanup import eliminate_dead
from ...platform.light_dataclass import dataclass
from ..graph_nodes import Node, add_call
from ..program_cache import argument, form

Rule = Callable[[Node], "Site | None"]
RULES: dict[Any, list[Rule]] = {}


@dataclass(frozen=True, eq=False)
class Alternative:
    """A function of tensors, which also works on nodes where ``call`` writes them: ``compute(call, *inputs)``.

    ``call(target, *args, **kwargs)`` calls an operator.
    """

    name: str
    compute: Callable[..., Any]


@dataclass(frozen=True, eq=False)
class Site:
    """A node whose value can be computed in several ways from the same inputs."""

    node: Node
    inputs: tuple[Node, ...]
    alternatives: tuple[Alternative, ...]
    preferred: int = 0  # the one to take where nothing is measured
    numbers: tuple[Any, ...] = ()  # that the alternatives depend on besides the inputs

    @property
    def text(self) -> str:
        """What times depend on: the alternatives, and types, shapes and strides of the inputs."""
        names = "|".join(one.name for one in self.alternatives)
        return f"{names} {argument(self.numbers)} {' '.join(form(node.meta['val']) for node in self.inputs)}"


def rule(*targets: Any) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        for target in targets:
            RULES.setdefault(target, []).append(function)
        return function

    return register


def rewrite_calls(module: torch.fx.GraphModule, choose: Callable[[Site], int]) -> dict[str, str]:
    """Writes the chosen alternatives into a graph. Gives the names of the nodes that were replaced, each with the name
    of what took its place."""
    found: dict[str, str] = {}
    for node in list(module.graph.nodes):
        for one in RULES.get(node.target, ()):
            site = one(node) if node.users else None
            number = choose(site) if site is not None else 0
            if site is not None and number:
                write(site, site.alternatives[number])
                found[node.name] = site.alternatives[number].name
                break
    if found:
        eliminate_dead(module.graph)
    return found


def write(site: Site, chosen: Alternative) -> None:
    """Lets readers of the site's node read nodes of an alternative."""
    node = site.node
    with node.graph.inserting_before(node):
        made = chosen.compute(functools.partial(add_call, node), *site.inputs)
    node.replace_all_uses_with(made)
