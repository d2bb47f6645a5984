"""Autograd: modes, nodes, the engine, hooks on saved tensors. Known for torch 2.11 to 2.15.

Without one of the functions, importing this module fails.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.checkpoint
from torch.autograd import forward_ad
from torch.autograd.graph import _MultiHandle as MultiHandle

from ..operator_functions import attrgetter, methodcaller

__all__ = ["MultiHandle"]  # the handle of one hook on several tensors

FunctionBase = torch._C._FunctionBase
"""The class of nodes, and contexts, of autograd functions in Python."""
InferenceModeGuard = torch._C._InferenceMode
set_grad_enabled = torch._C._set_grad_enabled
is_any_autocast_enabled = torch._C._is_any_autocast_enabled

current_node = torch._C._current_autograd_node
current_graph_task_id = torch._C._current_graph_task_id
"""The number of the backward pass that runs in this thread, -1 outside."""
will_execute = torch._C._will_engine_execute_node
engine_queue_callback = torch._C._ImperativeEngine.queue_callback
next_sequence_number: Callable[[], int] = getattr(torch.autograd, "_get_sequence_nr")  # noqa: B009  no stub
"""The number that the next node of the graph gets in this thread."""
sequence_number_of: Callable[[Any], int] = methodcaller("_sequence_nr")
input_metadata_of: Callable[[Any], Any] = attrgetter("_input_metadata")
"""What a node expects of each incoming gradient: dtype, shape, device."""

is_profiling: Callable[[], bool] = torch._C._autograd._profiler_enabled
"""Whether torch's profiler notes what this thread runs."""

top_saved_tensors_hooks: Callable[[bool], Any] = torch._C._autograd._top_saved_tensors_default_hooks
pop_saved_tensors_hooks: Callable[[], None] = torch._C._autograd._pop_saved_tensors_default_hooks
push_saved_tensors_hooks: Callable[..., None] = torch._C._autograd._push_saved_tensors_default_hooks


_APPLY: Any = vars(torch.autograd.Function)["apply"]
_PYTHON_APPLY = getattr(_APPLY, "__func__", None)


def function_of_apply(value: Any) -> Any:
    """The autograd function whose ``apply`` a bound method is; None if it is another method.

    ``torch.autograd.Function.apply`` is a class method in Python up to torch 2.13, and in C from 2.14 on.
    """
    owner = value.__self__
    if not isinstance(owner, type) or not issubclass(owner, torch.autograd.Function):
        return None
    if _PYTHON_APPLY is not None:
        return owner if isinstance(value, types.MethodType) and value.__func__ is _PYTHON_APPLY else None
    return owner if isinstance(value, types.BuiltinMethodType) and value == apply_of(owner) else None


def apply_of(function: type) -> Callable[..., Any]:
    """``torch.autograd.Function.apply`` bound to an autograd function, which may have another ``apply`` of its own."""
    bound: Callable[..., Any] = _APPLY.__get__(None, function)
    return bound


call_with_options = getattr(torch.utils.checkpoint, "_checkpoint_impl", None)
"""What both forms of ``torch.utils.checkpoint.checkpoint`` call, the decorator as well; None before torch 2.14."""


def forward_class_of(node_class: type, default: Any = None) -> Any:
    """The autograd function that a class of nodes belongs to."""
    return getattr(node_class, "_forward_cls", default)


def execution_engine() -> Any:
    """The object that ``torch.autograd.backward`` calls; a program may have replaced it."""
    return torch.autograd.Variable._execution_engine


def set_execution_engine(engine: Any) -> None:
    """Have ``torch.autograd.backward`` call another engine. Only `kiln.compiled_autograd` does this."""
    torch.autograd.Variable._execution_engine = engine


def forward_mode_level() -> int:
    """The innermost level of forward-mode differentiation, -1 outside."""
    return forward_ad._current_level
