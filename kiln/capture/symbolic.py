"""Operations on fakes whose sizes are symbolic: by torch's rules in Python, as many in C++ want plain numbers.

Those rules also stand in for operators that are made of others, and not all are true to them: the one for dropout draws
other random numbers and, where nothing is dropped, gives a copy of its input instead of the input. Such operators are
left to the real ones here, which for them do with symbolic sizes.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._C import DispatchKey

UNTRUE = (torch.ops.aten.dropout.default,)


class Ours(threading.local):
    """Whether this thread is in a block below; rules for others are none of our business."""

    depth = 0


_ours = Ours()


@contextlib.contextmanager
def symbolic_kernels(wanted: bool) -> Iterator[None]:
    """Where sizes are symbolic, torch's rules in Python."""
    if not wanted:
        yield
        return
    from torch._dispatch.python import enable_python_dispatcher

    replace_rules()
    _ours.depth += 1
    try:
        with enable_python_dispatcher():
            yield
    finally:
        _ours.depth -= 1


@functools.cache
def replace_rules() -> None:
    from torch import _decomp  # noqa: F401  which brings the rules

    for operator in UNTRUE:
        for key, rule in operator.py_kernels.items():
            operator.py_kernels[key] = functools.partial(run_real, operator, rule)
        operator._dispatch_cache.clear()


def run_real(operator: torch._ops.OpOverload, rule: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    if not _ours.depth:
        return rule(*args, **keywords)
    with torch._C._DisablePythonDispatcher():
        return operator._op_dk(DispatchKey.CompositeImplicitAutograd, *args, **keywords)
