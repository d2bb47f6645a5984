"""``torch.utils.checkpoint``: captured as a part of the graph that the backward pass still recomputes.

The function is interpreted in place. When the graph is complete, the nodes that came of it move into a graph module of
their own, and one node calls torch's ``checkpoint`` with that. A function that changes Python objects would do so again
in the backward pass: it is left to eager.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any

import torch
import torch.fx
import torch.utils.checkpoint
from torch import is_grad_enabled  # the program may put another function in its place

from ... import operator_functions as operator
from ...platform.fx_graphs import is_erased, root_of
from ...platform.light_dataclass import dataclass
from ...platform.torch_autograd import call_with_options
from ...platform.torch_devices import DeviceContext
from ...program.checkpoint_call import CHECKPOINT, checkpointed
from ..interpreter.call_rules import rule
from ..interpreter.calls import call, call_function
from ..shadows.tensors import constant_node
from ..shadows.wrap import force
from ..state.operations import Args, Kwargs, operations
from ..state.trace import Trace
from ..state.values import Lazy
from ..writeback.outside_state import OutsideState
from .selective_checkpoints import real_contexts

OPTIONS = ["use_reentrant", "preserve_rng_state", "determinism_check", "early_stop", "debug"]
if call_with_options is not None:  # from torch 2.14 on
    OPTIONS.append("respect_saved_tensors_hooks")


@dataclass(eq=False)
class Region:
    """The nodes of one checkpointed call: all after ``before``, up to ``last``."""

    before: torch.fx.Node
    last: torch.fx.Node
    options: dict[str, Any]
    arguments: list[torch.fx.Node]  # tensors that were passed; everything else is closed over
    contexts: object = None  # the program's context_fn, where it does something
    nodes: list[torch.fx.Node] = field(default_factory=list)

    def replace(self, old: list[torch.fx.Node], new: list[torch.fx.Node], parts: dict[Any, Any]) -> None:
        """Nodes have moved into another region: one that this one contains, or one before it."""
        self.arguments = [parts.get(node, node) for node in self.arguments]
        if old[0] in self.nodes:
            place, gone = self.nodes.index(old[0]), set(old)
            self.nodes = [*self.nodes[:place], *new, *(node for node in self.nodes[place:] if node not in gone)]


@rule(torch.utils.checkpoint.checkpoint)
def rule_checkpoint(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    options = {name: value for name, value in kwargs.items() if name in (*OPTIONS, "context_fn")}
    rest = {name: value for name, value in kwargs.items() if name not in options}
    if not args or not is_captured(trace, options):
        return call_function(trace, CHECKPOINT, args, kwargs)
    return call_checkpointed(trace, args, rest, options)


@rule(*([] if call_with_options is None else [call_with_options]))
def rule_call_with_options(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    """``checkpoint(use_reentrant=False)(function)(…)`` calls this."""
    passed = force(trace, args[1]) if len(args) == 3 else None
    if type(passed) is not tuple or not is_captured(trace, kwargs):
        return call_function(trace, call_with_options, args, kwargs)
    function, _, rest = args
    return call_checkpointed(trace, (function, *passed), operations.plain_mapping(trace, rest), kwargs)


def is_captured(trace: Trace, options: Kwargs) -> bool:
    """Whether options say that backward computes again, without recording operators for error messages."""
    debug = "debug" in options and force(trace, options["debug"])
    return "use_reentrant" in options and force(trace, options["use_reentrant"]) is False and not debug


def call_checkpointed(trace: Trace, args: Args, rest: Kwargs, given: Kwargs) -> object:
    options = {name: force(trace, given[name]) for name in OPTIONS if name in given}
    contexts = real_contexts(trace, given["context_fn"]) if "context_fn" in given else None
    if not is_grad_enabled():
        return call(trace, args[0], args[1:], rest)
    if any(type(force(trace, mode)) is not DeviceContext for mode in trace.overrides.modes):
        raise trace.fail("a checkpoint under a torch-function mode, which backward computes again without the mode")
    before, state = root_of(trace.graph).prev, OutsideState(trace, args)
    result = call(trace, args[0], args[1:], rest)
    if state.is_changed(trace):
        raise trace.fail("a checkpointed function that changes Python objects: backward would do that again")
    region = Region(before, root_of(trace.graph).prev, options, tensors_passed(trace, args[1:]), contexts)
    trace.autograd.checkpoint_regions.append(region)
    return result


def tensors_passed(trace: Trace, args: Args) -> list[torch.fx.Node]:
    seen = [arg.value if type(arg) is Lazy else arg for arg in args]  # lazy values are in no graph
    return [trace.tensor_info(value).node for value in seen if isinstance(value, torch.Tensor)]


def outline(trace: Trace) -> None:
    """Move the nodes of each region into a graph module that torch's ``checkpoint`` calls; inner regions come first."""
    for region in trace.autograd.checkpoint_regions:
        region.nodes = nodes_of(region)
    for number, region in enumerate(trace.autograd.checkpoint_regions):
        members = set(region.nodes)
        outputs = [node for node in region.nodes if any(user not in members for user in node.users)]
        if outputs:
            inside = region.nodes
            new, parts = outline_region(trace, number, region, outputs)
            for later in trace.autograd.checkpoint_regions[number + 1 :]:
                later.replace(inside, new, parts)


def outline_region(
    trace: Trace, number: int, region: Region, outputs: list[torch.fx.Node]
) -> tuple[list[torch.fx.Node], dict[torch.fx.Node, torch.fx.Node]]:
    """Move one region; returns the nodes in its place, and the node that replaces each output."""
    inside, members = region.nodes, set(region.nodes)
    inputs = [n for n in dict.fromkeys(i for node in inside for i in node.all_input_nodes) if n not in members]
    passed = [node for node in inputs if node in region.arguments]
    closed = [node for node in inputs if node not in region.arguments and node.op != "get_attr"]
    name = f"checkpointed_{number}"
    held = [node for node in inputs if node.op == "get_attr"]
    trace.inputs.constants[name] = extract_module(trace, inside, [*passed, *closed, *held], outputs)
    with trace.graph.inserting_before(inside[0]):
        new = [trace.graph.get_attr(name)]
        options = dict(region.options)
        if region.contexts is not None:
            new.append(constant_node(trace, region.contexts))
            options["context_fn"] = new[-1]
        made = trace.graph.call_function(checkpointed, (new[0], tuple(passed), tuple(closed)), options)
        made.meta["example_value"] = tuple(node.meta.get("example_value") for node in outputs)
        made.meta["stack_trace"] = inside[0].meta.get("stack_trace")
        parts = {}
        for index, node in enumerate(outputs):
            part = parts[node] = trace.graph.call_function(operator.getitem, (made, index))
            part.meta = dict(node.meta)
            node.replace_all_uses_with(part, lambda user: user not in members)
    for node in reversed(inside):
        trace.graph.erase_node(node)
    return [*new, made, *parts.values()], parts


def nodes_of(region: Region) -> list[torch.fx.Node]:
    nodes = []
    region.before, region.last = surviving_node(region.before), surviving_node(region.last)
    while region.before is not region.last:
        region.before = region.before.next
        nodes.append(region.before)
    return [node for node in nodes if node.op not in ("placeholder", "output")]


def surviving_node(node: torch.fx.Node) -> torch.fx.Node:
    """A node, or the last one before it that was not erased: conversions of classes are removed from graphs."""
    while is_erased(node):
        node = node.prev
    return node


def extract_module(
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
            copies[node] = graph.get_attr(str(node.target))
    for node in inside:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple([copies[node] for node in outputs]))
    return torch.fx.GraphModule(dict(trace.inputs.constants), graph, "KilnCheckpointed")
