"""Marks that ``kiln.disable``, ``kiln.mark_dynamic`` and ``kiln.mark_static`` leave on the user's objects, and the
functions of Kiln's own that are never captured."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch

AnyCallable = TypeVar("AnyCallable", bound=Callable[..., Any])

DISABLED = "_kiln_disabled"  # on functions: True
DYNAMIC = "_kiln_dynamic"  # on tensors: a frozenset of dimensions
STATIC = "_kiln_static"

PYTHON_ONLY: dict[Callable[..., Any], str] = {}
"""Functions of the public API, and their names: a graph ends before a call of one."""


def python_only(function: AnyCallable) -> AnyCallable:
    """Keep calls of a function of the public API out of graphs."""
    PYTHON_ONLY[function] = f"kiln.{function.__name__}"
    return function


def mark_disabled(function: AnyCallable) -> AnyCallable:
    setattr(function, DISABLED, True)
    return function


def mark_dimensions(tensor: torch.Tensor, is_dynamic: bool, dimensions: Iterable[int]) -> None:
    mark = DYNAMIC if is_dynamic else STATIC
    setattr(tensor, mark, getattr(tensor, mark, frozenset()) | frozenset(dimensions))
