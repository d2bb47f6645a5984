"""Private functions of the namespace ``torch`` that programs reach through public ones. Known for torch 2.11 to 2.15.

Capture has rules for them, or writes them into graphs. Without one of them, importing this module fails.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch._jit_internal
import torch._utils
from torch.testing._comparison import TensorLikePair

assert_async: Callable[..., None] = getattr(torch, "_assert_async")  # noqa: B009  no stub
check_with = torch._check_with
check_tensor_all_with = torch._check_tensor_all_with
compare_regular_values = TensorLikePair._compare_regular_values_close
"""What ``torch.testing.assert_close`` compares two tensors with, once they have one dtype and layout."""

foreach_add, foreach_add_ = torch._foreach_add, torch._foreach_add_
foreach_addcdiv_, foreach_addcmul_ = torch._foreach_addcdiv_, torch._foreach_addcmul_
foreach_div_, foreach_lerp_ = torch._foreach_div_, torch._foreach_lerp_
foreach_maximum_, foreach_neg, foreach_sqrt = torch._foreach_maximum_, torch._foreach_neg, torch._foreach_sqrt
foreach_mul, foreach_mul_ = torch._foreach_mul, torch._foreach_mul_
group_tensors: Callable[..., Any] = torch._C._group_tensors_by_device_and_dtype

is_compiling = torch._utils.is_compiling
is_scripting = torch._jit_internal.is_scripting
tracing_state = torch._C._get_tracing_state
"""The state of ``torch.jit.trace``, None where nothing is traced."""
is_tracing: Callable[[], bool] = torch._C._is_tracing
"""Whether ``torch.jit.trace`` runs. Modules ask it at each call from torch 2.15 on."""
log_api_usage = torch._C._log_api_usage_once
disable_in_compiler: Callable[..., Any] = getattr(torch, "_disable_dynamo")  # noqa: B009  no stub
"""The decorator by which torch keeps functions of its own out of its compiler."""


def inlined_function(script: object) -> object:
    """The Python function that ``torch.jit.script_if_tracing`` and others have left for compilers; None without."""
    return getattr(script, "_torchdynamo_inline", None)


def native_functions(*names: str) -> list[Any]:
    """Functions of ``torch._C`` by name, those that the running torch has."""
    return [getattr(torch._C, name) for name in names if hasattr(torch._C, name)]
