"""Constructors by class: ``torch.FloatTensor([1.0])`` is ``torch.tensor``, ``torch.Tensor(2, 3)`` ``torch.empty``."""

from __future__ import annotations

from typing import Any

import torch

from ..._native import is_instance as isinstance
from ...platform.python_objects import words
from ..interpreter.call_rules import rule
from ..shadows.tensors import prepare, record
from ..shadows.wrap import force
from ..state.operations import Args, Kwargs
from ..state.trace import Trace
from .torch_calls import handler

CLASSES: dict[type, torch.dtype] = {
    getattr(torch, name): getattr(torch, name).dtype
    for name in words("Float Double Half BFloat16 Byte Char Short Int Long Bool")
    for name in (f"{name}Tensor",)
}


def plain_numbers(value: object, integral: bool) -> bool:
    """Whether this is a nested list of numbers that the class takes without conversion."""
    if isinstance(value, (list, tuple)):
        return all(plain_numbers(item, integral) for item in value)
    return type(value) in ((int, bool) if integral else (int, bool, float))


def is_size(values: list[Any]) -> bool:
    """Whether these arguments are one ``torch.Size``: only that is a shape, any other sequence is data."""
    return len(values) == 1 and type(values[0]) is torch.Size


@handler(torch.Tensor.new)
def tensor_new(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    """``tensor.new(size)``; a graph has no ``torch.Size`` to tell a shape from data, so it has ``new_empty``."""
    values = [force(trace, arg) for arg in args]
    refuse_filled(trace, values[1:])
    if is_size(values[1:]):
        return record(trace, torch.Tensor.new_empty, tuple(values), kwargs, method="new_empty")
    return record(trace, torch.Tensor.new, args, kwargs, method="new")


def refuse_filled(trace: Trace, values: list[Any]) -> None:
    """Where torch fills new memory, these constructors do it in place: the tensor's version is 1, not 0."""
    fills = torch.are_deterministic_algorithms_enabled()
    if fills and (not values or is_size(values) or any(type(value) in (int, torch.SymInt) for value in values)):
        raise trace.fail("a tensor without data made by a legacy constructor, in deterministic mode", "use torch.empty")


def make(trace: Trace, cls: type, dtype: torch.dtype, args: Args, kwargs: Kwargs) -> object:
    values = [prepare(trace, force(trace, arg)) for arg in args]
    refuse_filled(trace, values)
    if not kwargs and torch.get_default_device().type == "cpu":
        if all(type(value) in (int, torch.SymInt) for value in values) and values:
            return record(trace, torch.empty, tuple(values), {"dtype": dtype})
        if is_size(values):
            return record(trace, torch.empty, tuple(values), {"dtype": dtype})
        integral = not dtype.is_floating_point
        if len(values) == 1 and isinstance(values[0], (list, tuple)) and plain_numbers(values[0], integral):
            return record(trace, torch.tensor, (values[0],), {"dtype": dtype})
    raise trace.fail(f"torch.{cls.__name__} called with these arguments", "use torch.tensor or torch.empty")


def register(cls: type, dtype: torch.dtype | None) -> None:
    @rule(cls)
    def made(trace: Trace, args: Args, kwargs: Kwargs) -> object:
        return make(trace, cls, torch.get_default_dtype() if dtype is None else dtype, args, kwargs)


for _class, _dtype in CLASSES.items():
    register(_class, _dtype)
register(torch.Tensor, None)


@rule(torch.autograd.Variable)
def rule_variable(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    """``Variable(tensor)``: a tensor without history on the same memory."""
    given = dict(zip(("data", "requires_grad"), args, strict=False)) | kwargs
    data, flag = force(trace, given.pop("data", None)), force(trace, given.pop("requires_grad", False))
    if len(args) > 2 or given or not isinstance(data, torch.Tensor) or type(flag) is not bool:
        raise trace.fail("torch.autograd.Variable called with these arguments", "use the tensor itself")
    made = record(trace, torch.Tensor.detach, (data,), {}, method="detach")
    return record(trace, torch.Tensor.requires_grad_, (made,), {}, method="requires_grad_") if flag else made
