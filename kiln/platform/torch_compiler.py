"""Parts of torch that exist for its compiler, and what its users leave behind. Known for torch 2.11 to 2.15.

A missing class makes the import fail. What takes long to load, or needs other packages, is imported inside functions.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch._compile import _disable_dynamo as keep_out
from torch._guards import ChainedSource, GuardSource, Source, TracingContext, tracing

from .._native import is_instance as isinstance

__all__ = ["ChainedSource", "GuardSource", "Source"]  # where values come from, which shape environments ask for


def functorch_config() -> types.ModuleType:
    """Settings of ``torch.func``, which fake tensors and other parts of torch read."""
    from torch._functorch import config

    return config


def artifact_logger(module: str, artefact: str) -> logging.Logger:
    """The logger that ``torch._logging.set_logs(artefact=True)`` turns on."""
    from torch._logging._internal import getArtifactLogger

    return getArtifactLogger(module, artefact)


def is_compiling_higher_order() -> bool:
    """Whether torch compiles on behalf of an operator that takes functions, to see what those use."""
    from torch._higher_order_ops import utils

    return bool(getattr(utils, "_in_hop_compile", bool)())


def test_helpers() -> tuple[Any, Any]:
    """torch's ``TestCase`` and ``run_tests``. They need packages that torch does not: may raise `ImportError`."""
    from torch.testing._internal.common_utils import TestCase, run_tests

    return TestCase, run_tests


COMPILER = "torch._dynamo"

# ---- while torch's compiler calls Kiln -------------------------------------------------------------------------------


@contextlib.contextmanager
def outside_torch_compiler() -> Iterator[tuple[Any, Mapping[torch.Tensor, Any]]]:
    """A block in which torch does not know that it is compiling: parts of it would take the fake mode of its compiler
    for the one in use. Gives the shape environment of what it compiles (None: it compiles nothing, or all sizes are
    fixed), and how it made the sizes of each input symbolic."""
    context = TracingContext.try_get()
    with tracing(None):
        if context is None:
            yield None, {}
        else:
            yield getattr(context.fake_mode, "shape_env", None), context.tensor_to_context


hooking_module = COMPILER
"""The module that is loaded where a hook on frames may be the one of torch's compiler. Native code reads it."""


def expect_hooks(expected: bool) -> None:
    """Say whether that compiler may hook frames: while Kiln stands in for it, a hook is somebody else's."""
    global hooking_module
    hooking_module = COMPILER if expected else ""


@keep_out
def call_unseen(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function while something that torch compiled runs: torch's compiler hooks the frames of all Python
    functions then, and does not see this one's. Native code calls it, where that compiler is loaded."""
    return function(*args, **kwargs)


# ---- annotations of functions ----------------------------------------------------------------------------------------

ORIGINAL = "_torchdynamo_orig_callable"
"""The attribute of a function that torch's compiler made, by which libraries find the original."""
_POLYFILL = "__torch_dynamo_polyfill__"


def is_disabled_for_torch(function: types.FunctionType) -> bool:
    """Whether ``torch.compiler.disable`` made this; ``functools.wraps`` copies its marks to wrappers around it."""
    names = function.__dict__
    disabled = names.get("_torchdynamo_disable", False) is True or names.get("_dynamo_forbidden", False) is True
    return disabled and names.get("_torchdynamo_wrapper_id", id(function)) == id(function)


def disabled_by(function: types.FunctionType) -> tuple[str, object]:
    """Which function of torch's disabled this one, and why."""
    names = function.__dict__
    by = "disable" if "_torchdynamo_disable" in names else "forbid_in_graph"
    return by, names.get("_torchdynamo_disable_msg")


def substitute_for(function: types.FunctionType) -> object:
    """What is captured in place of a function: the original of one that torch's compiler wraps, or what
    ``substitute_in_graph`` gives for one; None where it is the function itself."""
    names = function.__dict__
    if _POLYFILL in names:
        return names[_POLYFILL]
    made = names.get("_torchdynamo_wrapper_id") == id(function) and not is_disabled_for_torch(function)
    return names.get(ORIGINAL) if made else None


def functions_in_tables() -> tuple[frozenset[int], frozenset[int]]:
    """The ids of the functions that ``allow_in_graph`` and ``disallow_in_graph`` were told of."""
    names = names_in(f"{COMPILER}.trace_rules")
    allowed = ids_in(names, "_allowed_callable_ids") | ids_in(names, "_nonstrict_trace_callable_ids")
    return allowed, ids_in(names, "_disallowed_callable_ids")


def ids_in(names: dict[str, Any], table: str) -> frozenset[int]:
    found = getattr(names.get(table), "__dict__", {}).get("function_ids")
    return frozenset(found) if isinstance(found, set) else frozenset()


def names_in(module: str) -> dict[str, Any]:
    """The names of a module, if it is loaded."""
    found = sys.modules.get(module)
    return found.__dict__ if type(found) is types.ModuleType else {}


# ---- annotations of tensors ------------------------------------------------------------------------------------------

_DYNAMIC = (
    *("_dynamo_dynamic_indices", "_dynamo_weak_dynamic_indices"),
    *("_dynamo_unbacked_indices", "_dynamo_strict_unbacked_indices"),
)
_STATIC = "_dynamo_static_indices"
_MARKS = frozenset({*_DYNAMIC, _STATIC})


def dimension_marks(names: Mapping[str, Any]) -> tuple[set[int], Iterable[int]] | None:
    """The dimensions that ``mark_dynamic`` and the like, and ``mark_static`` marked, by the names of a tensor."""
    if names.keys().isdisjoint(_MARKS):
        return None
    return set().union(*[names.get(mark, ()) for mark in _DYNAMIC]), names.get(_STATIC, ())


# ---- the stance ------------------------------------------------------------------------------------------------------

STANCES = f"{COMPILER}.eval_frame"


def stances() -> dict[str, Any] | None:
    """The names of the module in which ``torch.compiler.set_stance`` sets the stance, if that is loaded."""
    names = names_in(STANCES)
    return names if "_stance" in names else None


def stance() -> str:
    """What compiled functions are to do, all of them, by ``torch.compiler.set_stance``."""
    names = stances()
    return "default" if names is None else str(getattr(names["_stance"], "stance", "default"))


CHECK_STANCE = "if _k_stances['_stance'].stance == 'force_eager': return False"


class StanceImportWatch:
    """An import hook that finds no modules: it calls ``arrived`` when torch's module of stances is imported.

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
