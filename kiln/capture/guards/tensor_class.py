"""The class ``torch.Tensor``: what a program may have put in place of its methods.

Operators (``x + y``, ``abs(x)``, ``len(x)``) reach the special methods of the class without a look at it, and functions
of torch call others. Every entry that works with tensors assumes them all to be what they were. While an operator is
replaced, or what capture itself asks of fake tensors, calls are left to Python.
"""

from __future__ import annotations

import types
from typing import Any

import torch

from ... import _native
from ...platform.python_objects import words
from .source import lookup

NAMES = frozenset(dir(torch.Tensor)) - words("__doc__ __module__ __dict__ __weakref__ __annotations__ __slotnames__")
METHODS = {name: lookup(torch.Tensor, name) for name in NAMES}
LAYOUT = words("size stride dim numel storage_offset element_size untyped_storage is_contiguous data_ptr")
# Special methods that no operator calls, and that capture does not rely on: it looks them up, or breaks the graph.
ASIDE = words(
    "__repr__ __str__ __format__ __dir__ __reduce__ __reduce_ex__ __getstate__ __setstate__ __deepcopy__ __array__ "
    "__array_wrap__ __dlpack__ __dlpack_device__ __cuda_array_interface__ __init__ __new__"
)
RELIED_ON = {name for name in NAMES if name in LAYOUT or (name.startswith("__") and name not in ASIDE)}


class TensorMethods:
    """What was found when the class last changed."""

    version = 0
    methods: dict[str, object] = {}  # noqa: RUF012
    replaced = False


def current_methods() -> type[TensorMethods]:
    version = _native.type_version(torch.Tensor)
    if version != TensorMethods.version or not version:
        TensorMethods.methods = {name: value for name, value in vars(torch.Tensor).items() if name in NAMES}
        TensorMethods.replaced = any(map(is_replaced, RELIED_ON))
        TensorMethods.version = version
    return TensorMethods


def is_replaced(name: str) -> bool:
    found = lookup(torch.Tensor, name)
    return found is not METHODS[name] and type(found) not in NATIVE_METHODS


NATIVE_METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType, types.BuiltinFunctionType)


def methods_of_tensors() -> dict[str, object]:
    """The attributes that the class has itself, of those that it or its base had at first."""
    return current_methods().methods


def operator_is_replaced() -> bool:
    """Whether an operator of tensors, or what capture asks of them, is the program's own now."""
    return current_methods().replaced


def original_method(function: Any) -> Any:
    """The method that torch has reached where it tells a mode of a function: ``abs(x)`` is told of as what tensors have
    for ``abs`` now."""
    if type(function) is not types.FunctionType or METHODS.get(function.__name__) is function:
        return function
    return next((METHODS[name] for name, value in methods_of_tensors().items() if value is function), function)
