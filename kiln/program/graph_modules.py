"""Graph modules whose Python text is written when somebody asks for it.

Between the trace and what runs there are several graphs that nobody calls or reads, and writing their text would take
most of the time of compiling.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.fx

from ..platform.fx_graphs import LAZY_FORWARD, LazyGraphModule


def graph_module(root: Any, graph: torch.fx.Graph, name: str) -> torch.fx.GraphModule:
    """A module of a graph; attributes come from a module or dictionary."""
    return LazyGraphModule(root, graph, name)


def module_behind(compiled: Callable[..., Any]) -> torch.fx.GraphModule | None:
    """The module that a callable only runs: the module itself, or its ``forward``."""
    if isinstance(compiled, torch.fx.GraphModule):
        return compiled
    owner = getattr(compiled, "__self__", None)
    runs = getattr(compiled, "__name__", "") in ("forward", LAZY_FORWARD)
    return owner if runs and isinstance(owner, torch.fx.GraphModule) else None
