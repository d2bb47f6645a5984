"""Wrapper subclasses: tensors made of tensors (``__tensor_flatten__``). Graphs have the inner tensors.

A subclass is unwrapped outside the graph and wrapped again inside while tracing: its own ``__torch_dispatch__`` does
the operations on the inner tensors. Results go the other way. Both steps are autograd functions: the gradient of an
unwrapped tensor is wrapped, that of a wrapped one is unwrapped. So gradients are subclasses, at any order, and nothing
else of ahead-of-time autograd handles subclasses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from ..platform.light_dataclass import dataclass
from ..platform.torch_dispatch import is_traceable_wrapper_subclass
from ..platform.torch_tensors import version_of
from ..program.unsupported import Unsupported


@dataclass(frozen=True, eq=False)
class WrapPlan:
    """How to make a subclass from its inner tensors; a part that is None is a plain tensor."""

    kind: Any  # the class
    names: tuple[str, ...]
    parts: tuple[WrapPlan | None, ...]
    context: Any
    size: torch.Size
    stride: tuple[int, ...]

    @property
    def count(self) -> int:
        """How many plain tensors there are in it."""
        return sum(1 if part is None else part.count for part in self.parts)

    def key(self) -> tuple[Any, ...]:
        """Equal for tensors that are made in the same way; contexts are compared by their text."""
        parts = tuple(None if part is None else part.key() for part in self.parts)
        return self.kind, self.names, parts, repr(self.context), self.size, self.stride

    def build(self, plain: Iterator[torch.Tensor]) -> torch.Tensor:
        """The subclass, from the next plain tensors."""
        inner = {
            name: next(plain) if part is None else part.build(plain)
            for name, part in zip(self.names, self.parts, strict=True)
        }
        made: torch.Tensor = self.kind.__tensor_unflatten__(inner, self.context, self.size, self.stride)
        return made


def plan_of(tensor: torch.Tensor) -> WrapPlan | None:
    """How a tensor is made of others; None for a plain one."""
    if not is_traceable_wrapper_subclass(tensor):
        return None
    names, context = tensor.__tensor_flatten__()
    parts = tuple(plan_of(getattr(tensor, name)) for name in names)
    return WrapPlan(type(tensor), tuple(names), parts, context, tensor.size(), tensor.stride())


def inner_tensors(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The plain tensors in a tensor."""
    if not is_traceable_wrapper_subclass(tensor):
        yield tensor
        return
    names, _ = tensor.__tensor_flatten__()
    for name in names:
        yield from inner_tensors(getattr(tensor, name))


class Unwrap(torch.autograd.Function):
    """The inner tensors of a subclass, with its history. ``is_own``: not as aliases, as they are new."""

    @staticmethod
    def forward(ctx: Any, outer: torch.Tensor, is_own: bool) -> tuple[torch.Tensor, ...]:
        ctx.plan = plan_of(outer)
        return tuple(inner if is_own else inner.detach() for inner in inner_tensors(outer))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        return wrapped(ctx.plan, gradients), None


class Wrap(torch.autograd.Function):
    """A subclass from its inner tensors."""

    @staticmethod
    def forward(ctx: Any, plan: WrapPlan, *plain: torch.Tensor) -> torch.Tensor:
        ctx.plan = plan
        return plan.build(iter([each.detach() for each in plain]))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        found = unwrapped(gradient)
        if len(found) != ctx.plan.count:
            expected, seen = ctx.plan.kind.__name__, type(gradient).__name__
            raise RuntimeError(f"The gradient of a {expected} is to be a {expected}, not a {seen}.")
        return None, *found


apply_unwrap: Callable[..., Any] = Unwrap.apply
apply_wrap: Callable[..., Any] = Wrap.apply


def unwrapped(tensor: torch.Tensor, is_own: bool = False) -> tuple[torch.Tensor, ...]:
    """The plain tensors in a tensor, with its history."""
    if not is_traceable_wrapper_subclass(tensor):
        return (tensor,)
    if tensor.requires_grad and torch.is_grad_enabled():
        return tuple(apply_unwrap(tensor, is_own))
    return tuple(inner_tensors(tensor))


def wrapped(plan: WrapPlan, plain: Iterable[torch.Tensor]) -> torch.Tensor:
    """The subclass that plain tensors make up, with their history."""
    inner = list(plain)
    if torch.is_grad_enabled() and any(each.requires_grad for each in inner):
        made: torch.Tensor = apply_wrap(plan, *inner)
        return made
    return plan.build(iter(inner))


class UnwrappedProgram:
    """A program over tensors some of which are subclasses, as one over plain tensors."""

    def __init__(self, program: Callable[..., Sequence[Any]], inputs: Sequence[Any]):
        self.program = program
        self.input_plans = [plan_of(value) if isinstance(value, torch.Tensor) else None for value in inputs]
        self.output_plans: list[WrapPlan | int | None] = []  # an int: that input itself

    @property
    def has_subclasses(self) -> bool:
        return any(plan is not None for plan in (*self.input_plans, *self.output_plans))

    def plain(self, inputs: Sequence[Any]) -> list[Any]:
        """The inputs of the graph, from those of the program."""
        found: list[Any] = []
        for value, plan in zip(inputs, self.input_plans, strict=True):
            found += [value] if plan is None else unwrapped(value)
        return found

    def __call__(self, *plain: Any) -> list[Any]:
        """The program on the graph's inputs: what is traced."""
        remaining = iter(plain)
        inputs = [
            next(remaining) if plan is None else wrapped(plan, [next(remaining) for _ in range(plan.count)])
            for plan in self.input_plans
        ]
        made = [value for value, plan in zip(inputs, self.input_plans, strict=True) if plan is not None]
        versions = [version_of(value) for value in made]
        outputs = list(self.program(*inputs))
        for value, version in zip(made, versions, strict=True):
            if version_of(value) != version:
                raise Unsupported(f"an input of class {type(value).__name__} that is changed in place")
        return self.unwrap_outputs(inputs, outputs)

    def unwrap_outputs(self, inputs: list[Any], outputs: list[Any]) -> list[Any]:
        known = {id(value): index for index, value in enumerate(inputs) if self.input_plans[index] is not None}
        found: list[Any] = []
        self.output_plans = []
        parts: dict[int, tuple[torch.Tensor, ...]] = {}
        for output in outputs:
            if id(output) in known:
                self.output_plans.append(known[id(output)])
                continue
            plan = plan_of(output) if isinstance(output, torch.Tensor) else None
            self.output_plans.append(plan)
            if plan is not None and id(output) not in parts:
                parts[id(output)] = unwrapped(output, is_own=True)
            found += [output] if plan is None else parts[id(output)]
        return found

    def wrap_outputs(self, inputs: Sequence[Any], plain: Sequence[Any]) -> list[Any]:
        """The program's outputs, from those of the graph."""
        remaining = iter(plain)
        outputs: list[Any] = []
        for plan in self.output_plans:
            if isinstance(plan, int):
                outputs.append(inputs[plan])
            elif plan is None:
                outputs.append(next(remaining))
            else:
                outputs.append(wrapped(plan, [next(remaining) for _ in range(plan.count)]))
        return outputs
