"""Kiln: a compiler for PyTorch programs. ``kiln.compile`` is where to begin."""

import torch  # noqa: F401  (first: the native extension links against it)

from . import aot, compiled_autograd, exc, operator_functions  # noqa: F401  (the last: before programs replace one)
from .api import (
    allow_in_graph,
    compile,
    disable,
    disallow_in_graph,
    graph_break,
    is_compiling,
    mark_dynamic,
    mark_static,
    on_recompile,
    reset,
)
from .backends import list_backends, register_backend
from .compat import install, uninstall
from .config import config
from .explain import explain, export
from .version import VERSION

__version__ = VERSION

__all__ = [
    "allow_in_graph",
    "aot",
    "compile",
    "compiled_autograd",
    "config",
    "disable",
    "disallow_in_graph",
    "exc",
    "explain",
    "export",
    "graph_break",
    "install",
    "is_compiling",
    "list_backends",
    "mark_dynamic",
    "mark_static",
    "on_recompile",
    "register_backend",
    "reset",
    "uninstall",
]
