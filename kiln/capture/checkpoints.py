"""``torch.utils.checkpoint``: captured as a part of the graph that is still computed anew in the backward pass.

The function is interpreted in place. When the graph is complete, the nodes that came of it move into a graph module of
their own, and one node calls torch's ``checkpoint`` with that. A function that changes Python objects would do so again
in the backward pass: it is left to eager.
"""

from __future__ import annotations

import inspect
import operator
from dataclasses import dataclass

import torch
import torch.fx
import torch.utils.checkpoint

from .autograd_function import OutsideState
from .natives import rule
from .trace import Trace
from .values import Lazy
from .wrap import force

CHECKPOINT = inspect.unwrap(torch.utils.checkpoint.checkpoint)
OPTIONS = ("use_reentrant", "preserve_rng_state", "determinism_check", "early_stop", "debug")


@dataclass
class Region:
    """The nodes of one checkpointed call: all after ``before``, up to ``last``."""

    before: torch.fx.Node
    last: torch.fx.Node
    options: dict[str, object]
    arguments: list[torch.fx.Node]  # tensors that were passed; everything else is closed over


def checkpointed(module: torch.fx.GraphModule, passed: tuple, closed: tuple, **options: object) -> object:
    """In graphs: torch's ``checkpoint``, which keeps watch over what is passed and not over what is closed over."""
    return CHECKPOINT(lambda *given: module(*given, *closed), *passed, **options)


@rule(torch.utils.checkpoint.checkpoint)
def rule_checkpoint(trace, args, kwargs):
    from .calls import call, call_function

    options = {name: force(trace, kwargs[name]) for name in OPTIONS if name in kwargs}
    rest = {name: value for name, value in kwargs.items() if name not in OPTIONS}
    if options.get("use_reentrant") is not False or options.get("debug") or "context_fn" in kwargs or not args:
        return call_function(trace, CHECKPOINT, args, kwargs)
    if not torch.is_grad_enabled():
        return call(trace, args[0], args[1:], rest)
    before, state, known = trace.graph._root.prev, OutsideState(trace, args), len(trace.regions)
    result = call(trace, args[0], args[1:], rest)
    if state.is_changed(trace):
        raise trace.fail("a checkpointed function that changes Python objects: backward would do that again")
    if len(trace.regions) != known:
        raise trace.fail("a checkpoint inside a checkpointed function")
    trace.regions.append(Region(before, trace.graph._root.prev, options, tensors_passed(trace, args[1:])))
    return result


def tensors_passed(trace: Trace, args: tuple) -> list[torch.fx.Node]:
    seen = [arg.value if type(arg) is Lazy else arg for arg in args]  # what nobody looked at is in no graph
    return [trace.tensor_info(value).node for value in seen if isinstance(value, torch.Tensor)]  # type: ignore[misc]


def outline(trace: Trace) -> None:
    """Move the nodes of each region into a graph module that torch's ``checkpoint`` calls."""
    for number, region in enumerate(trace.regions):
        inside = nodes_of(region)
        members = set(inside)
        inputs = [n for n in dict.fromkeys(i for node in inside for i in node.all_input_nodes) if n not in members]
        passed = [node for node in inputs if node in region.arguments]
        closed = [node for node in inputs if node not in region.arguments and node.op != "get_attr"]
        outputs = [node for node in inside if any(user not in members for user in node.users)]
        if not outputs:
            continue
        name = f"checkpointed_{number}"
        held = [node for node in inputs if node.op == "get_attr"]
        trace.constants[name] = extracted(trace, inside, [*passed, *closed, *held], outputs)
        with trace.graph.inserting_before(inside[0]):
            module = trace.graph.get_attr(name)
            made = trace.graph.call_function(checkpointed, (module, tuple(passed), tuple(closed)), dict(region.options))
            made.meta["example_value"] = tuple(node.meta.get("example_value") for node in outputs)
            made.meta["stack_trace"] = inside[0].meta.get("stack_trace")
            for index, node in enumerate(outputs):
                part = trace.graph.call_function(operator.getitem, (made, index))
                part.meta = dict(node.meta)
                node.replace_all_uses_with(part, lambda user: user not in members)
        for node in reversed(inside):
            trace.graph.erase_node(node)


def nodes_of(region: Region) -> list[torch.fx.Node]:
    nodes = []
    while region.before is not region.last:
        region.before = region.before.next
        nodes.append(region.before)
    return [node for node in nodes if node.op not in ("placeholder", "output")]


def extracted(
    trace: Trace, inside: list[torch.fx.Node], inputs: list[torch.fx.Node], outputs: list[torch.fx.Node]
) -> torch.fx.GraphModule:
    """The nodes as a module that takes what they use and returns what others use of them."""
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in inputs:
        if node.op != "get_attr":
            copies[node] = graph.placeholder(node.name)
    for node in inputs:
        if node.op == "get_attr":
            copies[node] = graph.get_attr(node.target)  # type: ignore[arg-type]
    for node in inside:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple([copies[node] for node in outputs]))
    return torch.fx.GraphModule(dict(trace.constants), graph, "KilnCheckpointed")
