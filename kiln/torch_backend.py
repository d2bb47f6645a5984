"""The backend ``kiln`` of ``torch.compile``: torch's own compiler finds it as an entry point of the installed package.

torch captures the program and guards it; Kiln differentiates and compiles the graph that torch hands over. Sizes are
symbols of torch's shape environment: what the trace assumes of them becomes a guard there, before torch compiles its
guards. Nothing here imports torch's compiler, which has called it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.fx
from torch.nn import Parameter

from . import backends
from ._native import GlobalState
from .aot.torch_graphs import TorchGraph
from .platform.torch_compiler import outside_torch_compiler
from .platform.torch_fake import FakeTensor
from .program.backend_registry import check_options
from .program.modes import options_of
from .program.shapes.fake_tensors import make_mode
from .report import events

NAME = "kiln"
PLAIN = (torch.Tensor, Parameter, FakeTensor)
NUMBERS = (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)


def compile_graph(
    graph_module: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile a graph that torch has captured. ``mode`` and ``options`` are those of ``kiln.compile``."""
    asked = options_of(mode, options)
    check_options(backends.kiln, NAME, asked)
    refused = next((type(each).__name__ for each in example_inputs if not is_plain(each)), None)
    if refused is not None:
        events.runs_in_eager(f"an input of torch's graph that is a {refused}")
        return graph_module.forward
    state = GlobalState()
    try:
        with outside_torch_compiler() as (shapes, contexts):
            graph = TorchGraph(graph_module, example_inputs)
            compiled = backends.kiln(graph.module, fakes_of(graph.inputs, shapes, contexts), **asked)
            return graph.called_as_torch_does(compiled)
    finally:
        state.restore()  # a trace that ended early may have left a mode of the program's on


def is_plain(example: Any) -> bool:
    return type(example) in PLAIN or isinstance(example, NUMBERS)


def fakes_of(examples: Sequence[Any], shapes: Any, contexts: Mapping[torch.Tensor, Any]) -> list[Any]:
    """Tensors without data in the place of the examples, with torch's symbols for their sizes."""
    given = next((example.fake_mode for example in examples if isinstance(example, FakeTensor)), None)
    mode = given if given is not None else make_mode(shape_env=shapes)

    def fake_of(example: Any) -> Any:
        if not isinstance(example, torch.Tensor) or isinstance(example, FakeTensor):
            return example
        context = contexts.get(example)
        if context is None:
            return mode.from_tensor(example, static_shapes=True)
        return mode.from_tensor(example, source=context.tensor_source, symbolic_context=context, trace=False)

    return [fake_of(example) for example in examples]
