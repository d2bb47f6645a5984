"""The captured graph as a module."""

from __future__ import annotations

import weakref
from typing import Any

import torch
import torch.fx

from ..._native import is_instance as isinstance
from ...platform.fx_graphs import forget_text
from ...program.graph import fix_names
from ..autograd.checkpoints import outline
from ..guards.descriptions import error_text
from ..shadows.consumed_inputs import take_from_lists
from ..state.trace import Trace
from ..state.values import TensorInfo


def finish_graph(trace: Trace, outputs: list[torch.fx.Node], lists: list[str]) -> list[Any]:
    """Close the graph: outputs, dead code, unused inputs, lists that it consumes. Gives the inputs that are left."""
    trace.graph.output(tuple(outputs))
    outline(trace)
    used = []
    for item in trace.inputs.items:
        if item.node.users:
            used.append(item)
        else:
            trace.graph.erase_node(item.node)
    return take_from_lists(trace, lists, used)


def make_graph_module(trace: Trace) -> torch.fx.GraphModule:
    """The graph as a module; what torch.fx keeps of its text for tracebacks goes when the module goes."""
    try:
        module = torch.fx.GraphModule(dict(trace.inputs.constants), trace.graph, "KilnGraph")
    except Exception as error:
        if can_write_graphs():
            raise
        why = f"a graph: torch.fx cannot write its text after a change to torch ({error_text(error)})"
        raise trace.fail(why) from error
    file = module.forward.__code__.co_filename
    weakref.finalize(module, forget_text, file).atexit = False
    if trace.autograd.checkpoint_regions:  # their modules are inside, and torch.fx has just written their texts anew
        for part in module.modules():
            if isinstance(part, torch.fx.GraphModule):
                fix_names(part)
    return fix_names(module)


def can_write_graphs() -> bool:
    """Whether torch.fx can write the text of an empty graph: it looks names up in torch, which a program may change."""
    graph = torch.fx.Graph()
    graph.output(())
    try:
        torch.fx.GraphModule({}, graph)
    except Exception:
        return False
    return True


def has_work(graph: torch.fx.Graph) -> bool:
    return any(node.op not in ("placeholder", "output") for node in graph.nodes)


def example_inputs(inputs: list[Any]) -> list[object]:
    return [item.fake if isinstance(item, TensorInfo) else item.value for item in inputs]
