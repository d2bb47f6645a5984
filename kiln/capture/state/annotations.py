"""Annotations for torch's compiler in other people's libraries: Kiln honours them, without loading that compiler.

They are recognised by what they leave behind: attributes of functions and tensors, and tables in modules that the
library itself has loaded. Where Kiln stands under torch's names there is nothing to recognise: they are Kiln's own.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from ..._native import is_instance as isinstance
from ...program.user_marks import DISABLED, DYNAMIC, STATIC
from ..guards.descriptions import module_of_globals
from ..guards.source import getattr_static_dict
from .operations import operations

if TYPE_CHECKING:
    from .trace import Trace

COMPILER = "torch._dynamo"
RULES = f"{COMPILER}.trace_rules"
STANCES = f"{COMPILER}.eval_frame"

# -- functions ------------------------------------------------------------------------------------------------------


def is_excluded(function: types.FunctionType) -> bool:
    """Whether ``disable`` (Kiln's or torch's) keeps a function out of graphs."""
    names = function.__dict__
    return bool(names) and (names.get(DISABLED, False) is True or is_disabled_for_torch(function))


def is_disabled_for_torch(function: types.FunctionType) -> bool:
    """Whether ``torch.compiler.disable`` made this; ``functools.wraps`` copies its marks to wrappers around it."""
    names = function.__dict__
    disabled = names.get("_torchdynamo_disable", False) is True or names.get("_dynamo_forbidden", False) is True
    return disabled and names.get("_torchdynamo_wrapper_id", id(function)) == id(function)


def reason_for_exclusion(function: types.FunctionType) -> str:
    names = function.__dict__
    if names.get(DISABLED, False) is True:
        return f"a call to {function.__qualname__}, which kiln.disable keeps out of graphs"
    why = names.get("_torchdynamo_disable_msg")
    by = "disable" if "_torchdynamo_disable" in names else "forbid_in_graph"
    reason = f"a call to {function.__qualname__}, which torch's {by} keeps out of graphs"
    return f"{reason}: {why}" if type(why) is str else reason


def substitute_for(function: types.FunctionType) -> object:
    """What is captured in place of a function: the original of one that torch's compiler wraps, or what
    ``substitute_in_graph`` gives for one; None where it is the function itself."""
    names = function.__dict__
    if "__torch_dynamo_polyfill__" in names:
        return names["__torch_dynamo_polyfill__"]
    made = names.get("_torchdynamo_wrapper_id") == id(function) and not is_disabled_for_torch(function)
    return names.get("_torchdynamo_orig_callable") if made else None


class AnnotationTables:
    """Functions that ``allow_in_graph`` and ``disallow_in_graph`` were told of, by their ids."""

    def __init__(self) -> None:
        module = sys.modules.get(RULES)
        names = module.__dict__ if type(module) is types.ModuleType else {}
        self.allowed = ids_in(names, "_allowed_callable_ids") | ids_in(names, "_nonstrict_trace_callable_ids")
        self.disallowed = ids_in(names, "_disallowed_callable_ids")
        self.all = self.allowed | self.disallowed


def ids_in(names: dict[str, object], table: str) -> frozenset[int]:
    found = getattr(names.get(table), "__dict__", {}).get("function_ids")
    return frozenset(found) if isinstance(found, set) else frozenset()


def call_annotated(trace: Trace, function: object, args: tuple, kwargs: dict) -> tuple[object] | None:
    """The result of calling a function that is in the tables, in a tuple; None where they change nothing."""
    if id(function) in trace.outside.annotated.disallowed:
        name = getattr(function, "__name__", "") or type(function).__name__
        if (getattr(function, "__module__", None) or "").startswith(COMPILER):
            return call_of_torch_compiler(trace, function, args, kwargs)  # type: ignore[arg-type]
        raise trace.fail(f"a call to {name}, which torch's disallow_in_graph keeps out of graphs")
    if not is_hashable(function):
        return None
    ALLOWED.add(function)
    return (operations.call_torch(trace, function, args, kwargs),)


def call_of_torch_compiler(
    trace: Trace, function: types.FunctionType, args: tuple, kwargs: dict
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

DYNAMIC_MARKS = ("_dynamo_dynamic_indices", "_dynamo_weak_dynamic_indices", "_dynamo_unbacked_indices")
DYNAMIC_MARKS += ("_dynamo_strict_unbacked_indices",)


def marked_dimensions(tensor: torch.Tensor) -> tuple[frozenset[int], frozenset[int]]:
    """Dimensions that were marked as varying and as static, by Kiln's functions or by torch's."""
    names = getattr_static_dict(tensor) or {}
    dynamic, static = names.get(DYNAMIC, frozenset()), names.get(STATIC, frozenset())
    if names.get("_has_dynamo_dim_marking", False) is not True:
        return dynamic, static
    varying = frozenset().union(*[dimensions(tensor, names.get(mark, ())) for mark in DYNAMIC_MARKS])
    return dynamic | varying, static | (dimensions(tensor, names.get("_dynamo_static_indices", ())) - varying)


def dimensions(tensor: torch.Tensor, marked: Iterable[int]) -> frozenset[int]:
    return frozenset([index % tensor.dim() for index in marked if -tensor.dim() <= index < tensor.dim()])


# -- the stance -----------------------------------------------------------------------------------------------------


def stances() -> dict[str, Any] | None:
    """The names of the module in which ``torch.compiler.set_stance`` sets the stance, if that is loaded."""
    module = sys.modules.get(STANCES)
    names = module.__dict__ if type(module) is types.ModuleType else {}
    return names if "_stance" in names else None


def stance() -> str:
    """What compiled functions are to do, all of them, by ``torch.compiler.set_stance``."""
    names = stances()
    return "default" if names is None else str(getattr(names["_stance"], "stance", "default"))


CHECK_STANCE = "if _k_stances['_stance'].stance == 'force_eager': return False"


class StanceImportWatch:
    """Sees imports and finds nothing: once the module of stances comes, checks have one thing more to look at.

    It is in ``sys.meta_path`` while something is compiled and torch's compiler is not loaded.
    """

    def __init__(self, arrived: Callable[[], None]):
        self.arrived = arrived

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == STANCES:
            self.arrived()

    def expect(self) -> None:
        """Wait for the module, unless it is there."""
        finders: list[Any] = sys.meta_path
        if (stances() is None) is not (self in finders):
            finders.remove(self) if self in finders else finders.insert(0, self)


ALLOWED: set[object] = set()  # kiln.allow_in_graph


def is_hashable(function: object) -> bool:
    return getattr(type(function), "__hash__", None) is not None
