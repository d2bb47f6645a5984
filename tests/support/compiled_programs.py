"""What tests of lowerings share: functions compiled ahead of time to machine code, beside eager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree

import kiln
from kiln.aot import aot_function
from kiln.codegen.graph_compiler import compile_graph
from kiln.testing.observe import _weights as weights

LOW = (torch.float16, torch.bfloat16)


def compiled(function: Callable[..., Any], dynamic: bool = False) -> Callable[..., Any]:
    return aot_function(function, fw_compiler=compile_graph, bw_compiler=compile_graph, dynamic=dynamic)


def results_of(function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    """Results, then gradients of those inputs that require them."""
    fresh = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in inputs]
    results = pytree.tree_leaves(function(*fresh))
    differentiable = [result for result in results if result.requires_grad]
    wanted = [tensor for tensor in fresh if tensor.requires_grad]
    if not differentiable or not wanted:
        return results
    ones = [weights(result) for result in differentiable]
    return results + list(torch.autograd.grad(differentiable, wanted, ones, allow_unused=True))


def check(function: Callable[..., Any], *inputs: torch.Tensor, dynamic: bool = False, **tolerance: Any) -> None:
    """The compiled function gives eager's values, types, shapes, strides and gradients. In float16 and bfloat16, where
    eager rounds in the middle of some sums, it is no further from the truth."""
    expected = results_of(function, inputs)
    with kiln.config.patch(raise_internal_errors=True):
        found = results_of(compiled(function, dynamic), inputs)
    exact = results_of(function, [wide(tensor) for tensor in inputs]) if any(t.dtype in LOW for t in inputs) else None
    for place, (one, other) in enumerate(zip(found, expected, strict=True)):
        if one is None or other is None:
            assert one is other, place
            continue
        assert one.stride() == other.stride() or one.numel() < 2, place
        if exact is not None and other.is_floating_point():
            assert (one.dtype, one.shape) == (other.dtype, other.shape), place
            check_distance(place, one, other, exact[place])
        else:
            torch.testing.assert_close(one, other, equal_nan=True, msg=lambda t, at=place: f"{at}: {t}", **tolerance)


def check_accuracy(function: Callable[..., Any], *inputs: torch.Tensor) -> None:
    """Against float64, the compiled function is no worse than eager (with room for luck)."""
    exact = results_of(function, [wide(tensor) for tensor in inputs])
    eager = results_of(function, inputs)
    with kiln.config.patch(raise_internal_errors=True):
        found = results_of(compiled(function), inputs)
    for place, results in enumerate(zip(found, eager, exact, strict=True)):
        check_distance(place, *results)


def check_distance(place: int, found: Any, eager: Any, exact: Any) -> None:
    """One result is at most twice as far from the exact one as eager's, or a rounding or two away from it."""
    found, eager, exact = (result.detach() for result in (found, eager, exact))
    assert torch.equal(found.isnan(), eager.isnan()), f"result {place}: not the same are numbers"
    assert torch.equal(found.isinf(), eager.isinf()), f"result {place}: not the same are infinite"
    if not found.isfinite().any():
        return
    exact = exact.to(torch.float64)
    scale = float(exact[found.isfinite()].abs().max()) * torch.finfo(found.dtype).eps
    worst, allowed = (float((one.double() - exact)[found.isfinite()].abs().max()) for one in (found, eager))
    assert worst <= 2 * allowed + 2 * scale, f"result {place}: {worst} from the truth, eager {allowed}"


def wide(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.is_floating_point():
        return tensor
    return tensor.detach().double().requires_grad_(tensor.requires_grad)
