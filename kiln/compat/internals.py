"""What torch itself asks of its compiler while no compiler is at work: harmless answers, so that it goes on working."""

from __future__ import annotations

import contextlib
import functools
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from .. import exc
from ..platform.torch_compiler import is_compiling_higher_order
from ..platform.torch_fake import detect_fake_mode
from ..platform.torch_pytree import tree_leaves
from .placeholders import Placeholder


class LazyString:
    """Text that is made when it is read."""

    def __init__(self, func: Callable[..., str], *args: Any, **kwargs: Any):
        self.func = functools.partial(func, *args, **kwargs)

    def __str__(self) -> str:
        return self.func()


@contextlib.contextmanager
def nothing(*args: Any, **kwargs: Any) -> Iterator[None]:
    """A block that changes nothing."""
    yield


@functools.cache
def warn_once(message: str, stacklevel: int = 1) -> None:
    warnings.warn(message, stacklevel=stacklevel + 2)


def unimplemented(*args: Any, **words: Any) -> Any:
    """Torch's own code gives up on something."""
    raise exc.Unsupported(str(words.get("context") or words.get("explanation") or (args and args[0]) or "this"))


UTILS: dict[str, Any] = {
    "LazyString": LazyString,
    "detect_fake_mode": detect_fake_mode,
    "disable_cache_limit": nothing,
    "dynamo_timed": nothing,
    "get_current_node": lambda: None,
    "is_compile_supported": lambda device_type: True,
    "warn_once": warn_once,
}

TRACE_RULES: dict[str, Any] = {
    "_as_posix_path": lambda path: str(path).replace("\\", "/"),
    "LEGACY_MOD_INLINELIST": set(),
    "get_legacy_mod_inlinelist": functools.cache(lambda: set()),
}

CUDAGRAPH_TREES: dict[str, Any] = {"mark_step_begin": lambda: None, "reset_cudagraph_trees": lambda: None}


class CompilerBisector:
    """Torch's tool for searching a wrong pass: not searching."""

    bisection_enabled = False

    @classmethod
    def disable_subsystem(cls, *args: Any) -> bool:
        return False

    @classmethod
    def get_backend(cls) -> None:
        return None

    @classmethod
    def get_config_change(cls, subsystem: str) -> None:
        return None


class TransformGetItemToIndex(TorchFunctionMode):
    """Indexing by tensors stays indexing by tensors: under ``vmap``, an index of one element has no single value.

    Libraries take it from torch's compiler to build attention masks.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__getitem__:
            indices = tree_leaves(args[1])
            if indices and all(isinstance(index, torch.Tensor) for index in indices):
                return torch.ops.aten.index(args[0], indices)
        return func(*args, **(kwargs or {}))


# -- operators that take functions ----------------------------------------------------------------------------------


def in_higher_order_operator() -> bool:
    """Whether torch compiles on behalf of an operator that takes functions, to see what those use."""
    return is_compiling_higher_order()


def higher_order_operator(wrapper: Any) -> Any:
    """What an operator that takes functions does in plain Python, gradients of what those capture included."""
    return OPERATORS.get(wrapper.__name__) or Placeholder(wrapper.__module__)


def cond(pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Any) -> Any:
    """``torch.cond``."""
    return (true_fn if pred else false_fn)(*operands)


OPERATORS: dict[str, Callable[..., Any]] = {"_cond_op_wrapper": cond}


# -- what else is asked ---------------------------------------------------------------------------------------------


class PyCodeCache:
    """Torch's native code asks it, for each line of a traceback, for the program that generated that line."""

    @classmethod
    def stack_frames_for_code(cls, path: str, lineno: int) -> None:
        return None


class GenerationTracker:
    """``torch._dynamo.mutation_guard``: the generation in which a module was first asked about.

    Every block of ``optimize`` begins one. Kiln guards what it uses of a module, and needs none.
    """

    generation = 0
    generation_values: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    @classmethod
    def tag(cls, obj: Any) -> None:
        cls.generation_values[obj] = cls.generation

    @classmethod
    def get_generation_value(cls, obj: Any) -> int:
        return cls.generation_values.setdefault(obj, cls.generation)

    @classmethod
    def check(cls, obj: Any) -> bool:
        return cls.get_generation_value(obj) == cls.generation

    @classmethod
    def clear(cls) -> None:
        cls.generation = 0
        cls.generation_values = weakref.WeakKeyDictionary()
