"""What tests of data movement share: inputs in many layouts, and a program through the backend beside eager."""

from __future__ import annotations

import contextlib
import unittest.mock
from collections.abc import Callable, Iterator
from typing import Any

import torch

import kiln
from kiln.loops.steps import Lowered
from kiln.lower.lowering import Lowering

LAYOUTS = ("contiguous", "transposed", "sliced", "expanded", "channels_last")


def tensor(shape: tuple[int, ...], layout: str = "contiguous", dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Numbers that are all different (modulo the type), in memory of some layout."""
    torch.manual_seed(len(shape))
    if layout == "expanded":
        small = [1 if d == 0 else size for d, size in enumerate(shape)]
        return filled(small, dtype).expand(shape)
    if layout == "transposed":
        return filled(list(reversed(shape)), dtype).permute(*reversed(range(len(shape))))
    if layout == "sliced":
        wide = filled([2 * size + 1 for size in shape], dtype)
        return wide[tuple(slice(1, 1 + 2 * size, 2) for size in shape)]
    made = filled(list(shape), dtype)
    if layout == "channels_last" and len(shape) == 4:
        return made.contiguous(memory_format=torch.channels_last)
    return made


def filled(shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    if dtype is torch.bool:
        return torch.rand(shape) < 0.5
    return torch.randn(shape).to(dtype) if dtype.is_floating_point else torch.randint(0, 100, shape).to(dtype)


def check(
    function: Callable[..., Any],
    *inputs: Any,
    called: tuple[str, ...] | None = (),
    exact: bool = True,
    grads: bool = True,
    strides: bool = True,
) -> None:
    """Results, and gradients of what is floating, are eager's; only these operators are called from ATen."""
    expected = results(function, inputs, grads)
    with kiln.config.patch(cache=False), operators_called() as seen_called:
        found = results(kiln.compile(function, backend="kiln", fullgraph=True), inputs, grads)
    assert called is None or sorted(seen_called) == sorted(called)
    tolerance = {"rtol": 0, "atol": 0} if exact else {}
    for wanted, seen in zip(expected, found, strict=True):
        torch.testing.assert_close(seen, wanted, equal_nan=True, check_stride=False, **tolerance)
    if not strides:
        return
    count = len(torch.utils._pytree.tree_leaves(function(*inputs)))
    assert [one.stride() for one in found[:count]] == [one.stride() for one in expected[:count]]


@contextlib.contextmanager
def operators_called() -> Iterator[set[str]]:
    """What the graphs that are lowered meanwhile leave to ATen."""
    found: set[str] = set()
    run = Lowering.run

    def recorded(lowering: Lowering) -> Lowered:
        lowered = run(lowering)
        found.update(reason.split(":")[0] for reason in lowered.called.values())
        return lowered

    with unittest.mock.patch.object(Lowering, "run", recorded):
        yield found


def results(function: Callable[..., Any], inputs: tuple[Any, ...], grads: bool) -> list[torch.Tensor]:
    """What a program gives, and the gradients of its inputs; they are not made anew, so that layouts stay."""
    wanted = [one for one in inputs if isinstance(one, torch.Tensor) and one.is_floating_point()] if grads else []
    leaves = [one.detach().requires_grad_() for one in wanted]
    given = iter(leaves)
    taken = [next(given) if any(one is other for other in wanted) else one for one in inputs]
    found = torch.utils._pytree.tree_leaves(function(*taken))
    differentiable = [one for one in found if one.requires_grad]
    if not differentiable:
        return found
    weights = [torch.linspace(-1, 1, one.numel()).reshape(one.shape).to(one.dtype) for one in differentiable]
    gradients = torch.autograd.grad(differentiable, leaves, weights, allow_unused=True)
    return [one.detach() for one in found] + [one for one in gradients if one is not None]
