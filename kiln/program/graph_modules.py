"""Inputs and outputs of graph modules, and the modules behind callables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.fx

from ..platform.fx_graphs import LAZY_FORWARD


def module_behind(compiled: Callable[..., Any]) -> torch.fx.GraphModule | None:
    """The module that a callable only runs: the module itself, or its ``forward``."""
    if isinstance(compiled, torch.fx.GraphModule):
        return compiled
    owner = getattr(compiled, "__self__", None)
    runs = getattr(compiled, "__name__", "") in ("forward", LAZY_FORWARD)
    return owner if runs and isinstance(owner, torch.fx.GraphModule) else None


def placeholders(module: torch.fx.GraphModule) -> list[torch.fx.Node]:
    return module.graph.find_nodes(op="placeholder")


def output_values(module: torch.fx.GraphModule) -> list[Any]:
    """What the graph returns: nodes and constants."""
    values: Any = module.graph.output_node().args[0]
    return list(values)
