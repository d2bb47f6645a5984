"""The built-in backends, and what a backend is given.

A backend is ``f(graph_module, example_inputs) -> callable``, the ecosystem's protocol.

Besides tensors and numbers, a graph may take *slots* of hooks that it registers on tensors it computes: placeholders
whose ``meta["hook_slot"]`` names the kind (``register_hook``, ``register_node_hook`` …). Their only use is in a call of
that function of ``kiln.program.hook_slots`` with the tensor and the slot; what the backend makes of the graph has to
do the same, on the tensor that the gradient flows through. Hooks on inputs that the graph leaves alone are not in it.

A graph may also take a *list* of tensors, which it empties once it has taken them out (``program/consumed_lists.py``):
the example is then a list, with None where the graph takes nothing. Calling the graph module itself is right; code that
takes the tensors out and clears the list, as the graph does, frees each at its last use.

Placeholders of tensors have ``meta["input_state"]``, what the input is before the program changes it
(``kiln.program.graph_meta.InputState``); nodes that call a ``torch.autograd.Function`` have
``meta["traceable_backward"]`` and, where it is False, ``meta["traceable_reason"]``. ``kiln.program.graph_meta`` has
typed accessors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch.fx

from .program.backend_registry import list_backends, lookup_backend, register_backend

__all__ = [
    "aot_eager",
    "cudagraphs",
    "eager",
    "kiln",
    "list_backends",
    "lookup_backend",
    "print_graph",
    "register_backend",
]


def eager(graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Run the captured graph op by op."""
    if any(isinstance(example, list) for example in example_inputs):
        from .aot.captured_graphs import run_captured

        return run_captured(graph_module, example_inputs) or graph_module.forward
    return graph_module.forward


def print_graph(graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Show each graph, then run it op by op."""
    print(graph_module.print_readable(print_output=False))
    return graph_module.forward


def aot_eager(graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Differentiate the graph ahead of time, and run forward and backward op by op."""
    from .aot.api import op_by_op

    compiled: Callable[..., Any] = op_by_op(graph_module, example_inputs)
    return compiled


def kiln(
    graph_module: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    check: bool = False,
    disable_kernels: Iterable[str] = (),
    cuda_graphs: bool = False,
    autotune: bool = False,
) -> Callable[..., Any]:
    """Differentiate the graph ahead of time, and compile forward and backward to machine code. ``check``: each kernel
    runs beside eager, and the first that differs is an error. ``disable_kernels``: names of operators or kernels that
    ATen is to run. ``cuda_graphs``: programs on a GPU are recorded into CUDA graphs. ``autotune``: on a GPU, calls of
    libraries are measured where there are several ways to make them."""
    from .codegen.graph_compiler import compile_captured_graph

    compiled: Callable[..., Any] = compile_captured_graph(
        graph_module,
        example_inputs,
        check=check,
        disable_kernels=disable_kernels,
        cuda_graphs=cuda_graphs,
        autotune=autotune,
    )
    return compiled


def cudagraphs(graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Differentiate the graph ahead of time, and record the operators of forward and backward into CUDA graphs."""
    from .codegen.graph_compiler import record_captured_graph

    compiled: Callable[..., Any] = record_captured_graph(graph_module, example_inputs)
    return compiled


register_backend(kiln, name="kiln")
register_backend(eager, name="eager")
register_backend(aot_eager, name="aot_eager")
register_backend(cudagraphs, name="cudagraphs")
register_backend(print_graph, name="print")
