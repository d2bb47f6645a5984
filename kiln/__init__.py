"""Kiln: a compiler for PyTorch programs. ``kiln.compile`` is where to begin."""

import warnings as _warnings

from .platform.support import startup as _startup
from .version import VERSION

# torch first, as the native module links against it. It is loaded here, or an ImportError says why it cannot be.
_warning = _startup.begin(globals())

# Without it, the command line alone gets here: ``python -m kiln doctor`` says what is wrong.
if not _startup.is_broken():
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
    from .report import events as _events

    if _warning is not None:
        _warnings.warn(_warning, exc.PlatformWarning, stacklevel=2)
    if _startup.findings is not None:
        _events.self_check(_startup.findings)

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
