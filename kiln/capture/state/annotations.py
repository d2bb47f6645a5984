"""Annotations for torch's compiler in other people's libraries: Kiln honours them, without loading that compiler.

They are recognised by what they leave behind: attributes of functions and tensors, and tables in modules that the
library itself has loaded. Where Kiln stands under torch's names there is nothing to recognise: they are Kiln's own.
"""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from ...platform.torch_compiler import (
    COMPILER,
    dimension_marks,
    disabled_by,
    functions_in_tables,
    is_disabled_for_torch,
)
from ...program.user_marks import DISABLED, DYNAMIC, STATIC
from ..guards.descriptions import module_of_globals
from ..guards.source import getattr_static_dict
from .operations import Args, Kwargs, operations

if TYPE_CHECKING:
    from .trace import Trace

# -- functions ------------------------------------------------------------------------------------------------------


def is_excluded(function: types.FunctionType) -> bool:
    """Whether ``disable`` (Kiln's or torch's) keeps a function out of graphs."""
    names = function.__dict__
    return bool(names) and (names.get(DISABLED, False) is True or is_disabled_for_torch(function))


def reason_for_exclusion(function: types.FunctionType) -> str:
    if function.__dict__.get(DISABLED, False) is True:
        return f"a call to {function.__qualname__}, which kiln.disable keeps out of graphs"
    by, why = disabled_by(function)
    reason = f"a call to {function.__qualname__}, which torch's {by} keeps out of graphs"
    return f"{reason}: {why}" if type(why) is str else reason


class AnnotationTables:
    """Functions that ``allow_in_graph`` and ``disallow_in_graph`` were told of, by their ids."""

    def __init__(self) -> None:
        self.allowed, self.disallowed = functions_in_tables()
        self.all = self.allowed | self.disallowed


def call_annotated(trace: Trace, function: Any, args: Args, kwargs: Kwargs) -> tuple[object] | None:
    """The result of calling a function that is in the tables, in a tuple; None where they change nothing."""
    if id(function) in trace.outside.annotated.disallowed:
        name = getattr(function, "__name__", "") or type(function).__name__
        if (getattr(function, "__module__", None) or "").startswith(COMPILER):
            return call_of_torch_compiler(trace, function, args, kwargs)
        raise trace.fail(f"a call to {name}, which torch's disallow_in_graph keeps out of graphs")
    if not is_hashable(function):
        return None
    ALLOWED.add(function)
    return (operations.call_torch(trace, function, args, kwargs),)


def call_of_torch_compiler(
    trace: Trace, function: types.FunctionType, args: Args, kwargs: Kwargs
) -> tuple[object] | None:
    """What a function of torch's compiler means in a graph of Kiln's, in a tuple; None where it is left to Python."""
    if function.__name__ == "graph_break":
        if is_asked_by_torch(trace):
            return (None,)  # in the optimizers, for reasons of their own
        raise trace.fail("graph_break()", "remove the call")
    if function.__name__ in ("is_compiling", "is_dynamo_compiling"):
        return (not is_asked_by_torch(trace),)
    return None


def is_asked_by_torch(trace: Trace) -> bool:
    """Whether torch's own code asks, which must do what it does in eager; not one of its functions that pass on
    what somebody else asks."""
    frames = [frame for frame in trace.frames if frame.code.co_name not in ("is_compiling", "is_dynamo_compiling")]
    return bool(frames) and module_of_globals(frames[-1].globals).startswith("torch.")


# -- tensors --------------------------------------------------------------------------------------------------------


def marked_dimensions(tensor: torch.Tensor) -> tuple[frozenset[int], frozenset[int]]:
    """Dimensions that were marked as varying and as static, by Kiln's functions or by torch's."""
    names = getattr_static_dict(tensor) or {}
    dynamic, static = names.get(DYNAMIC, frozenset()), names.get(STATIC, frozenset())
    marks = dimension_marks(names)
    if marks is None:
        return dynamic, static
    varying = dimensions(tensor, marks[0])
    return dynamic | varying, static | (dimensions(tensor, marks[1]) - varying)


def dimensions(tensor: torch.Tensor, marked: Iterable[int]) -> frozenset[int]:
    return frozenset([index % tensor.dim() for index in marked if -tensor.dim() <= index < tensor.dim()])


ALLOWED: set[object] = set()  # kiln.allow_in_graph


def is_hashable(function: object) -> bool:
    return getattr(type(function), "__hash__", None) is not None
