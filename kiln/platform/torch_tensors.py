"""Tensors and storages: versions, views, identity. Known for torch 2.11 to 2.15.

An attribute that another version does not have raises AttributeError at its first use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..operator_functions import attrgetter, methodcaller

version_of: Callable[[Tensor], int] = attrgetter("_version")
"""How often a tensor was changed in place. Inference tensors do not have one."""
base_of: Callable[[Tensor], Tensor | None] = attrgetter("_base")
"""The tensor that a view is a view of, as autograd sees it."""
is_view: Callable[[Tensor], bool] = methodcaller("_is_view")
is_zero_tensor: Callable[[Tensor], bool] = methodcaller("_is_zerotensor")
has_symbolic_sizes: Callable[[Tensor], bool] = attrgetter("_has_symbolic_sizes_strides")
address_of: Callable[[Any], int] = attrgetter("_cdata")
"""The address of the C++ object of a tensor or a storage: its identity while it lives."""
hooks_on: Callable[[Tensor], Mapping[int, Any] | None] = attrgetter("_backward_hooks")
accumulation_hooks_on: Callable[[Tensor], Mapping[int, Any] | None] = attrgetter("_post_accumulate_grad_hooks")

set_versions: Callable[[tuple[Tensor, ...], tuple[int, ...]], None] = torch._C._autograd._unsafe_set_version_counter
set_conj = torch._C._set_conj
set_neg = torch._C._set_neg

_creation_meta: Callable[[Tensor], object] = getattr(torch._C._autograd, "_get_creation_meta")  # noqa: B009  no stub
_DEFAULT_CREATION: object = getattr(torch._C._autograd, "CreationMeta").DEFAULT  # noqa: B009  no stub


def storage_address(tensor: Tensor) -> int:
    """The identity of a tensor's storage: the same for all that share it."""
    return address_of(tensor.untyped_storage())


def is_plain_view(tensor: Tensor) -> bool:
    """Whether a view was made with grad mode and views of one result as usual, so that it may be changed in place."""
    return _creation_meta(tensor) == _DEFAULT_CREATION


def is_marked_parameter(tensor: Tensor) -> bool:
    """Whether a fake tensor counts as a Parameter."""
    return getattr(tensor, "_is_param", False)


def mark_parameter(tensor: Any) -> None:
    """Have ``isinstance(tensor, Parameter)`` hold for a fake tensor."""
    tensor._is_param = True
