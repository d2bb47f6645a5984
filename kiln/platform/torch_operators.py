"""Operators, their schemas and where their kernels are. Known for torch 2.11 to 2.15.

The classes and the attributes have been there since torch 1.13. Without one of them, importing this module fails.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._C import Argument, DispatchKey, FunctionSchema, ScriptObject
from torch._C import _dispatch_library as new_library
from torch._decomp import core_aten_decompositions, get_decompositions
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch._ops import _OpNamespace as OpNamespace
from torch._ops import _Ops as Ops
from torch._prims_common import suggest_memory_format

from ..operator_functions import attrgetter, methodcaller

__all__ = [
    "Argument",
    "FunctionSchema",
    "HigherOrderOperator",
    "OpNamespace",
    "OpOverload",
    "OpOverloadPacket",
    "Ops",
    "ScriptObject",
    "core_aten_decompositions",  # the table of the operators that torch splits by default
    "get_decompositions",
    "suggest_memory_format",  # the memory format of a tensor, by its strides
]

schema_of: Callable[[Any], FunctionSchema] = attrgetter("_schema")
operator_name: Callable[[Any], str] = attrgetter("_opname")
"""The name of an overload without namespace and overload: ``add`` of ``aten.add.Tensor``."""
overload_name: Callable[[Any], str] = attrgetter("_overloadname")
qualified_name: Callable[[OpOverload], str] = methodcaller("name")
"""The name of an overload as the dispatcher knows it: ``aten::add.Tensor``."""
overload_names: Callable[[OpOverloadPacket], list[str]] = methodcaller("overloads")

find_schema = torch._C._get_schema
has_kernel_for_key = torch._C._dispatch_has_kernel_for_dispatch_key
has_kernel: Callable[[str], bool] = torch._C._dispatch_has_kernel
"""Whether the dispatcher knows an operator; those of TorchScript on lists and numbers it does not."""

NATIVE_MODULES = [getattr(torch._C, name) for name in ("_nn", "_linalg", "_fft", "_special", "_sparse", "_nested")]
"""The modules of C++ functions that torch.nn.functional, torch.linalg and others are written in."""
VARIABLE_FUNCTIONS = torch._C._VariableFunctions
"""The class with the C++ functions of the namespace ``torch``."""


def python_kernels(operator: OpOverload) -> dict[DispatchKey, Callable[..., Any]]:
    """The kernels of an operator that are written in Python, by dispatch key."""
    return operator.py_kernels


def dispatch_cache(operator: OpOverload) -> dict[DispatchKey, Any]:
    """The kernels that an operator has looked up; to be cleared when `python_kernels` changes."""
    return operator._dispatch_cache


def define_operators(namespace: str, functions: dict[str, Callable[..., Any]]) -> tuple[Any, list[OpOverload]]:
    """Operators that functions of Python compute, by their schemas; they are there as long as the first result lives.
    `torch.library` would note them in tables that users see, `torch.ops` the namespace in its list."""
    library: Any = new_library("FRAGMENT", namespace, "")
    names = [schema.partition("(")[0] for schema in functions]
    for name, (schema, function) in zip(names, functions.items(), strict=True):
        library.define(schema, "", ())
        library.impl(name, "CompositeExplicitAutograd", function, False)
    listed = list(torch.ops._dir)
    overloads = [getattr(getattr(torch.ops, namespace), name).default for name in names]
    torch.ops._dir[:] = listed
    return library, overloads
