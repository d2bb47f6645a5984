"""Backends that count what they are given: graphs (frames) and the operations in them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch.fx

from kiln.program.graph import count_operations

Backend = Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any]]


class CompileCounter:
    """A backend that runs graphs as they are and counts them: `frame_count`, `op_count`; `graphs` keeps them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # compiled functions may be called, and so compiled, from several threads
        self.clear()

    def clear(self) -> None:
        """Start counting from zero."""
        self.frame_count = 0
        self.op_count = 0
        self.graphs: list[torch.fx.GraphModule] = []

    def __call__(self, graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        with self._lock:
            self.frame_count += 1
            self.op_count += count_operations(graph_module.graph)
            self.graphs.append(graph_module)
        return self._compile(graph_module, example_inputs)

    def _compile(self, graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        return graph_module.forward


class CompileCounterWithBackend(CompileCounter):
    """A compile counter that hands each graph on to another backend, given by name or as a function."""

    def __init__(self, backend: str | Backend) -> None:
        super().__init__()
        self.backend = backend

    def _compile(self, graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        return find_backend(self.backend)(graph_module, example_inputs)


def find_backend(backend: str | Backend) -> Backend:
    """The backend function behind a name; a function is its own."""
    if not isinstance(backend, str):
        return backend
    if backend == "eager":  # needs no registry, so that counting works without the rest of Kiln
        return lambda graph_module, example_inputs: graph_module.forward
    from kiln.program.backend_registry import lookup_backend

    found: Backend = lookup_backend(backend)
    return found
