"""``torch.nn.Module``: its tables, and the code by which modules are called. Known for torch 2.11 to 2.15.

Without one of the methods, importing this module fails.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch.fx
from torch.nn import Module
from torch.nn.modules.lazy import LazyModuleMixin

from ..operator_functions import attrgetter

parameters_of: Callable[[Module], dict[str, Any]] = attrgetter("_parameters")
"""The table of a module's own parameters, by name."""
buffers_of: Callable[[Module], dict[str, Any]] = attrgetter("_buffers")
forward_hooks_of: Callable[[Module], dict[int, Any]] = attrgetter("_forward_hooks")
forward_pre_hooks_of: Callable[[Module], dict[int, Any]] = attrgetter("_forward_pre_hooks")
infer_parameters = LazyModuleMixin._infer_parameters
"""The hook by which a lazy module finds its sizes at its first call."""

# The same tables as keys of a module's dictionary.
MODULES = "_modules"
FORWARD_HOOKS, FORWARD_PRE_HOOKS = "_forward_hooks", "_forward_pre_hooks"
BACKWARD_HOOKS, BACKWARD_PRE_HOOKS = "_backward_hooks", "_backward_pre_hooks"

CALLING_CODES = (Module._wrapped_call_impl.__code__, Module._call_impl.__code__)
"""The code of ``Module.__call__``."""
COLLECTING_CODES = (Module._get_backward_hooks.__code__, Module._get_backward_pre_hooks.__code__)
"""The code that collects a module's backward hooks for a call."""
_CALL_OF_GRAPHS = getattr(torch.fx.graph_module._WrappedCall.__call__, "__code__", None)
GRAPH_CALLING_CODES = (_CALL_OF_GRAPHS,) if isinstance(_CALL_OF_GRAPHS, types.CodeType) else ()
"""The code of ``GraphModule.__call__``."""
