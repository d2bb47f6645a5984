"""The dispatcher's state in this thread: keys, modes, overrides, functorch's transforms. Known for torch 2.11 to 2.15.

Without one of the functions, importing this module fails.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._C import DispatchKey
from torch.overrides import _get_current_function_mode
from torch.overrides import _pop_mode_temporarily as without_function_mode
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._python_dispatch import _disable_current_modes as disable_current_modes
from torch.utils._python_dispatch import _get_current_dispatch_mode as current_dispatch_mode

__all__ = [
    "DispatchKey",
    "TorchDispatchMode",
    "current_dispatch_mode",
    "current_function_mode",
    "disable_current_modes",
    "is_traceable_wrapper_subclass",
    "without_function_mode",
]

current_function_mode: Callable[[], Any] = _get_current_function_mode
DisableTorchFunction = torch._C.DisableTorchFunction
"""No ``__torch_function__`` is called, neither of classes nor of modes."""
DisableTorchFunctionSubclass = torch._C.DisableTorchFunctionSubclass
"""No ``__torch_function__`` of classes is called; those of modes are."""
disabled_torch_function = torch._C._disabled_torch_function_impl
disabled_torch_dispatch = torch._C._disabled_torch_dispatch_impl
is_torch_function_all_disabled: Callable[[], bool] = torch._C._is_torch_function_all_disabled
is_torch_function_enabled = torch._C._is_torch_function_enabled
is_torch_function_mode_enabled = torch._C._is_torch_function_mode_enabled

count_function_modes = torch._C._len_torch_function_stack
function_mode_at = torch._C._get_function_stack_at
pop_function_mode = torch._C._pop_torch_function_stack
push_function_mode = torch._C._push_on_torch_function_stack
count_dispatch_modes = torch._C._len_torch_dispatch_stack
dispatch_mode_of_key: Callable[..., Any] = torch._C._get_dispatch_mode

AutoDispatchBelowAutograd = torch._C._AutoDispatchBelowAutograd
DisableTorchDispatch = torch._C._DisableTorchDispatch
DisablePythonDispatcher = torch._C._DisablePythonDispatcher
EnablePythonDispatcher: Callable[[], Any] = torch._C._EnablePythonDispatcher
"""Kernels in Python are called, in this thread."""
dispatch_keys_of = torch._C._dispatch_keys
is_key_excluded = torch._C._dispatch_tls_is_dispatch_key_excluded
is_key_included = torch._C._dispatch_tls_is_dispatch_key_included

_FAKE = torch._C._TorchDispatchModeKey.FAKE


class PlainDispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no annotations
    """A dispatch mode for Kiln's own tracing; torch does not load its compiler for it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """torch asks when a class of modes is made. For True it loads its compiler at the first use of the mode."""
        return False


def active_fake_mode() -> Any:
    """The FakeTensorMode that is active in this thread, or None."""
    return dispatch_mode_of_key(_FAKE)


are_transforms_active = torch._C._are_functorch_transforms_active
"""Whether ``torch.func.grad``, ``vmap`` or another of functorch's transforms is running."""
innermost_transform = torch._C._functorch.peek_interpreter_stack
"""The transform that operations go to first, None outside."""
is_wrapped_by_transform = torch._C._functorch.is_functorch_wrapped_tensor
