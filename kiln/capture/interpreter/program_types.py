"""The class that the program sees of a value, and its name in CPython's messages."""

from __future__ import annotations

import types

import torch

from ..._native import is_instance as isinstance
from ..._native import type_name
from ..shadows.symbolic_numbers import is_symbolic
from ..shadows.unknown_text import is_unknown
from ..shadows.wrap import force
from ..state.trace import Trace
from ..state.values import HandleNumber, InterpretedIterator, Trampoline


def type_of(trace: Trace, value: object) -> type:
    """The class that the program sees."""
    value = force(trace, value)
    if isinstance(value, torch.Tensor):
        return trace.tensor_info(value).kind
    if is_symbolic(value):
        return {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}[type(value)]
    if type(value) is Trampoline:
        return type(value.function)
    if issubclass(type(value), InterpretedIterator):
        return types.GeneratorType
    if id(value) in trace.autograd.nodes:
        raise trace.fail("the class of a node of autograd's graph", "ask for it outside the compiled function")
    if type(value) is HandleNumber:
        return int
    return str if is_unknown(value) else type(value)


def native_name(trace: Trace, value: object) -> str:
    """The class of a value in CPython's messages: often with its module, if it was written in C."""
    return type_name(type_of(trace, value))
