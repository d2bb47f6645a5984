"""fx graphs: nodes, names, the text of graph modules. Known for torch 2.11 to 2.15.

A missing name makes the import fail; a missing attribute raises AttributeError at its first use.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any

import torch.fx
from torch.fx._lazy_graph_module import _LazyGraphModule as LazyGraphModule
from torch.fx.graph import _PyTreeCodeGen as PyTreeCodeGen
from torch.fx.graph import _PyTreeInfo as PyTreeInfo
from torch.fx.node import _get_qualified_name as qualified_name

from ..operator_functions import attrgetter

__all__ = [
    "LazyGraphModule",  # writes its text when somebody asks for it
    "PyTreeCodeGen",  # writes a forward that takes and returns containers
    "PyTreeInfo",
    "qualified_name",  # the name by which a graph's text calls a function
]

is_erased: Callable[[torch.fx.Node], bool] = attrgetter("_erased")
root_of: Callable[[torch.fx.Graph], torch.fx.Node] = attrgetter("_root")
"""The node before the first and after the last: ``root_of(graph).prev`` is the last."""
function_name_of: Callable[[Any], str] = attrgetter("_func_name")
"""The name of the function that a code generator of torch.fx writes."""
LAZY_FORWARD: str = LazyGraphModule._lazy_forward.__name__
"""The name of a graph module's forward that is compiled at its first call."""


def rename(node: torch.fx.Node, name: str) -> None:
    """Give a node another name, made unique in its graph."""
    node._rename(name)


def forget_text(file: str) -> None:
    """Drop the text of a graph module that torch.fx and linecache keep for tracebacks."""
    linecache.cache.pop(file, None)
    torch.fx.graph_module._loader.eval_cache.pop(file, None)
