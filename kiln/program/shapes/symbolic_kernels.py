"""Operations on fake tensors with symbolic sizes use torch's kernels in Python, because many in C++ need plain numbers.

Some of these kernels replace the operator above autograd by other operators. A graph of them differs from eager in
rounding, derivatives and random numbers, and dropout that drops nothing gives a copy of its input instead of the input.
Where only shapes are needed, only the latter matters. Where a graph is recorded, only kernels that do the same as the
real operator are used.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ...platform.locks import new_lock
from ...platform.torch_dispatch import DisablePythonDispatcher, DispatchKey, EnablePythonDispatcher
from ...platform.torch_operators import (
    OpOverload,
    OpOverloadPacket,
    dispatch_cache,
    overload_name,
    python_kernels,
)
from ..operators.operator_table import operator_of, overloads_of

aten = torch.ops.aten
ABOVE = (DispatchKey.CompositeImplicitAutograd, DispatchKey.AutogradCPU, DispatchKey.Autograd)
UNTRUE = (aten.dropout.default,)  # their rules are wrong in shapes, or in what memory results are
Kernels = dict[DispatchKey, Callable[..., Any]]


class Ours(threading.local):
    """Which operators are left to their real kernels in this thread; rules of others stay in place."""

    is_real: Callable[[OpOverload], bool] | None = None


_ours = Ours()


class ReplacedRules:
    """Rules above autograd that ask first, in the place of torch's while a thread needs them."""

    def __init__(self, find_operators: Callable[[], tuple[OpOverload, ...]]):
        self.find_operators = find_operators
        self.users = 0
        self.lock = new_lock()

    @functools.cached_property
    def tables(self) -> list[tuple[Kernels, Kernels, Kernels, dict[DispatchKey, Any]]]:
        """For each operator: its kernels in Python, torch's rules among them, ours, and what it has looked up."""
        found = []
        for operator in self.find_operators():
            kernels = python_kernels(operator)
            rules = {key: kernels[key] for key in kernels if key in ABOVE}
            ours: Kernels = {key: functools.partial(ruled, operator, rule) for key, rule in rules.items()}
            found.append((kernels, rules, ours, dispatch_cache(operator)))
        return found

    def enter(self) -> None:
        with self.lock:
            self.users += 1
            if self.users == 1:
                for kernels, _, ours, cache in self.tables:
                    kernels.update(ours)
                    cache.clear()

    def leave(self) -> None:
        with self.lock:
            self.users -= 1
            if self.users == 0:
                for kernels, rules, _, cache in self.tables:
                    kernels.update(rules)
                    cache.clear()


@functools.cache
def unfaithful() -> tuple[OpOverload, ...]:
    """The other operators with rules above autograd that compute something else than the real operator."""
    packets = [packet for name in dir(aten) if isinstance(packet := getattr(aten, name), OpOverloadPacket)]
    found = [overload for packet in packets for overload in overloads_of(packet)]
    ruled_above = [operator for operator in found if any(key in python_kernels(operator) for key in ABOVE)]
    return tuple([operator for operator in ruled_above if is_unfaithful(operator) and operator not in UNTRUE])


UNTRUE_RULES = ReplacedRules(lambda: UNTRUE)
UNFAITHFUL_RULES = ReplacedRules(unfaithful)


def symbolic_kernels(wanted: bool, recorded: bool = False) -> contextlib.AbstractContextManager[None]:
    """Where sizes are symbolic, torch's rules in Python; for a graph that is recorded, faithful ones."""
    if not wanted:
        return NOTHING
    return (
        RulesInPython((UNTRUE_RULES, UNFAITHFUL_RULES), is_unfaithful) if recorded else RulesInPython((UNTRUE_RULES,))
    )


NOTHING: contextlib.AbstractContextManager[None] = contextlib.nullcontext()


def is_unfaithful(operator: OpOverload) -> bool:
    return not operator_of(operator).faithful_in_python


class RulesInPython:
    """torch's rules are in use in this thread, except for operators that are left to their real kernels."""

    def __init__(self, rules: tuple[ReplacedRules, ...], is_real: Callable[[OpOverload], bool] = UNTRUE.__contains__):
        self.rules = rules
        self.is_real = is_real

    def __enter__(self) -> None:
        for rules in self.rules:
            rules.enter()
        self.before, _ours.is_real = _ours.is_real, self.is_real
        self.dispatcher = EnablePythonDispatcher()  # takes effect when it is made
        self.dispatcher.__enter__()

    def __exit__(self, *error: Any) -> None:
        self.dispatcher.__exit__(*error)
        _ours.is_real = self.before
        for rules in self.rules:
            rules.leave()


def ruled(operator: OpOverload, rule: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    """The rule of an operator, or in a thread that asked for it the real kernel."""
    if _ours.is_real is None or not _ours.is_real(operator):
        return rule(*args, **keywords)
    if overload_name(operator) == "vec":
        return resampled(operator, *args, **keywords)
    if operator is aten.matmul.default and PRODUCTS_READ_SIZES:
        return product(*args)
    with DisablePythonDispatcher():
        return operator(*args, **keywords)


@contextlib.contextmanager
def below_autograd() -> Iterator[bool]:
    """Where a real operator has come down to one without parts: rules again. Says whether sizes are symbolic."""
    if _ours.is_real is None:
        yield False
        return
    with EnablePythonDispatcher():
        yield True


def resampled(operator: OpOverload, data: torch.Tensor, output_size: Any, *rest: Any) -> torch.Tensor:
    """What ``upsample_*.vec`` does, which in C++ reads sizes as numbers: find the new sizes and call the default."""
    *flags, factors = rest
    sizes = output_size
    if sizes is None:
        sizes = [times(size, factor) for size, factor in zip(data.shape[2:], factors, strict=True)]
    made: torch.Tensor = operator.overloadpacket.default(data, sizes, *flags, *(factors or ()))
    return made


sym_int: Callable[[Any], Any] = torch.sym_int


def times(size: Any, factor: float) -> Any:
    """Rounded down; without floats where that can be, which graphs of sizes do not have."""
    return size * int(factor) if factor.is_integer() else sym_int(size * factor)


# ---- products --------------------------------------------------------------------------------------------------------

# Torch 2.11 expands factors of batches in C++ to sizes that are numbers; 2.13 does not.
PRODUCTS_READ_SIZES = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13)


def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """``matmul`` as the operators that it consists of in eager."""
    ranks = x.dim(), y.dim()
    if ranks == (1, 1):
        return x.dot(y)
    if ranks == (2, 1):
        return x.mv(y)
    if ranks == (1, 2):
        return x.unsqueeze(0).mm(y).squeeze_(0)
    if ranks == (2, 2):
        return x.mm(y)
    if ranks == (3, 3):  # one matrix for all
        first, second = (isinstance(one.shape[0], int) and one.shape[0] == 1 for one in (x, y))
        if first != second:
            return product(x.squeeze(0), y) if first else product(x, y.squeeze(0))
    if min(ranks) == 0:
        raise RuntimeError(f"both arguments to matmul need to be at least 1D, but they are {ranks[0]}D and {ranks[1]}D")
    if ranks[0] >= ranks[1] and is_folded(x, y):
        return folded(x, y)
    if ranks[1] > ranks[0] and (x.requires_grad or ranks[0] == 1) and is_folded(y.mT, x):
        found = folded(y.mT, x.t() if ranks[0] == 2 else x)
        return found.mT.contiguous() if ranks[0] == 2 else found
    return of_batches(x, y)


def is_folded(batch: torch.Tensor, factor: torch.Tensor) -> bool:
    """Whether the rows of all matrices become those of one: that copies nothing, or saves a factor for each of them."""
    if batch.dim() < 3 or factor.dim() > 2:
        return False
    if factor.requires_grad or batch.numel() == 0:
        return True
    axes = zip(batch.stride()[:-2], batch.stride()[1:-1], batch.shape[1:-1], strict=True)
    return all(stride == inner * size for stride, inner, size in axes)


def folded(batch: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    outer = batch.shape[:-1]
    rows = batch.reshape(-1, batch.shape[-1])
    found = rows.mv(factor) if factor.dim() == 1 else rows.mm(factor)
    return aten._unsafe_view.default(found, [*outer, *factor.shape[1:]])  # type: ignore[no-any-return]


def of_batches(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    rows, columns = x.shape[-2:-1], y.shape[-1:] if y.dim() > 1 else ()
    left = x if x.dim() > 1 else x.unsqueeze(0)
    right = y if y.dim() > 1 else y.unsqueeze(1)
    outer: Any = torch.broadcast_shapes(left.shape[:-2], right.shape[:-2])  # type: ignore[no-untyped-call]
    factors = [one.expand(*outer, *one.shape[-2:]).reshape(-1, *one.shape[-2:]) for one in (left, right)]
    found = torch.bmm(*factors)
    return aten._unsafe_view.default(found, [*outer, *rows, *columns])  # type: ignore[no-any-return]
