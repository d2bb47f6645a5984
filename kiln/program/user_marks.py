"""Marks that ``kiln.disable``, ``kiln.mark_dynamic`` and ``kiln.mark_static`` leave on the user's objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch

AnyCallable = TypeVar("AnyCallable", bound=Callable[..., Any])

DISABLED = "_kiln_disabled"  # on functions: True
DYNAMIC = "_kiln_dynamic"  # on tensors: a frozenset of dimensions
STATIC = "_kiln_static"


def mark_disabled(function: AnyCallable) -> AnyCallable:
    setattr(function, DISABLED, True)
    return function


def mark_dimensions(tensor: torch.Tensor, is_dynamic: bool, dimensions: Iterable[int]) -> None:
    mark = DYNAMIC if is_dynamic else STATIC
    setattr(tensor, mark, getattr(tensor, mark, frozenset()) | frozenset(dimensions))
