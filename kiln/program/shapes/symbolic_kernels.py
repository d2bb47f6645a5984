"""Operations on fakes whose sizes are symbolic: by torch's rules in Python, as many in C++ want plain numbers.

Some of those rules stand in for the operator above autograd, in terms of other operators: that is another graph than
eager's, with other rounding, derivatives and random numbers, and dropout where nothing is dropped gives a copy of its
input instead of the input. Where only shapes are asked for, this matters for the last; where a graph is recorded, only
rules that do what the real operator does are used.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._C import DispatchKey

aten = torch.ops.aten
ABOVE = (DispatchKey.CompositeImplicitAutograd, DispatchKey.AutogradCPU, DispatchKey.Autograd)
UNTRUE = frozenset({"dropout"})  # in shapes, or in what memory they are
FAITHFUL = frozenset("broadcast_tensors tensor_split pad_sequence one_hot unsafe_chunk empty".split())


class Ours(threading.local):
    """Whether an operator is left to its real kernel in this thread; rules for others are none of our business."""

    is_real: Callable[[str], bool] | None = None


_ours = Ours()


@contextlib.contextmanager
def symbolic_kernels(wanted: bool, recorded: bool = False) -> Iterator[None]:
    """Where sizes are symbolic, torch's rules in Python; for a graph that is recorded, faithful ones."""
    if not wanted:
        yield
        return
    from torch._dispatch.python import enable_python_dispatcher

    replace_rules()
    before = _ours.is_real
    _ours.is_real = (lambda name: name not in FAITHFUL) if recorded else UNTRUE.__contains__
    try:
        with enable_python_dispatcher():
            yield
    finally:
        _ours.is_real = before


@functools.cache
def replace_rules() -> None:
    """Have rules above autograd ask first."""
    from torch import _decomp  # noqa: F401  which brings them

    for name in dir(aten):
        packet = getattr(aten, name)
        for overload in packet.overloads() if isinstance(packet, torch._ops.OpOverloadPacket) else ():
            operator = getattr(packet, overload)
            for key in [key for key in ABOVE if key in operator.py_kernels]:
                rule = operator.py_kernels[key]
                operator.py_kernels[key] = functools.partial(ruled, operator, rule)
                operator._dispatch_cache.clear()


def ruled(operator: torch._ops.OpOverload, rule: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    if _ours.is_real is None or not _ours.is_real(operator._opname):
        return rule(*args, **keywords)
    if operator._overloadname == "vec":
        return resampled(operator, *args, **keywords)
    with torch._C._DisablePythonDispatcher():
        return operator(*args, **keywords)


@contextlib.contextmanager
def below_autograd() -> Iterator[bool]:
    """Where a real operator has come down to one without parts: rules again. Says whether sizes are symbolic."""
    if _ours.is_real is None:
        yield False
        return
    with torch._C._EnablePythonDispatcher():
        yield True


def resampled(operator: torch._ops.OpOverload, data: torch.Tensor, output_size: Any, *rest: Any) -> torch.Tensor:
    """What ``upsample_*.vec`` does, which in C++ reads sizes as numbers: find the new sizes and call the default."""
    *flags, factors = rest
    sizes = output_size
    if sizes is None:
        sizes = [times(size, factor) for size, factor in zip(data.shape[2:], factors, strict=True)]
    return operator.overloadpacket.default(data, sizes, *flags, *(factors or ()))  # type: ignore[no-any-return]


def times(size: Any, factor: float) -> Any:
    """Rounded down; without floats where that can be, which graphs of sizes do not have."""
    return size * int(factor) if factor.is_integer() else torch.sym_int(size * factor)
