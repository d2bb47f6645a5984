"""What tests of elementwise operators share: values that are hard, and how far results may be from eager's."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from kiln.codegen import graph_compiler
from kiln.lower.lowering import Lowering
from tests.support.codegen_programs import graph_of

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
INF, NAN = float("inf"), float("nan")
SPECIAL = [NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, 3.0, -3.0, 6.0, 20.5, -20.5, 88.5, -100.0, 1e30]
BITS = {torch.float32: torch.int32, torch.float64: torch.int64, torch.bfloat16: torch.int16, torch.float16: torch.int16}

Function = Callable[..., Any]


def name_of(value: Any) -> str:
    return str(value).removeprefix("torch.")


def compiled(functions: dict[str, Function], inputs: Sequence[torch.Tensor]) -> tuple[list[Any], dict[str, str]]:
    """All functions as one program: its results, and what of it was left to ATen."""

    def together(*tensors: torch.Tensor) -> list[Any]:
        return [function(*tensors) for function in functions.values()]

    graph = graph_of(together, inputs)
    called = Lowering(graph).run().called
    return list(graph_compiler.compile_graph(graph)(list(inputs))), called


def distance(found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """How many floats lie between two, element by element; NaN is as far away as can be from what is none."""
    kind = BITS[found.dtype]
    ordered = []
    for tensor in (found, wanted):
        bits = tensor.contiguous().view(kind).to(torch.int64)
        ordered.append(torch.where(bits < 0, torch.iinfo(kind).min - bits, bits))
    is_far = ordered[0].double().sub(ordered[1].double()).abs() > 2.0**53
    apart = torch.where(is_far, INF, (ordered[0] - ordered[1]).abs().double())
    apart = torch.where(found.isnan() & wanted.isnan(), 0.0, apart)
    return torch.where(found.isnan() != wanted.isnan(), INF, apart)


def assert_same(
    name: str, found: torch.Tensor, wanted: torch.Tensor, ulps: float = 0, truth: torch.Tensor | None = None
) -> None:
    """What was found is within so many steps of eager's result, or of the truth where eager is further away."""
    assert found.dtype is wanted.dtype and found.shape == wanted.shape, name
    assert found.stride() == wanted.stride() or found.numel() < 2, name
    if not wanted.dtype.is_floating_point:
        assert torch.equal(found, wanted), name
        return
    wrong = distance(found, wanted) > ulps
    if truth is not None:
        error = (found.double() - truth).abs()
        wrong &= ~(error <= ulps * torch.finfo(found.dtype).eps) | (truth.abs() > 1)
        wrong &= distance(found, truth.to(found.dtype)) > ulps
    if ulps == 0:  # zeros of the wrong sign are one step away, and count
        wrong |= (found == 0) & (wanted == 0) & (found.signbit() != wanted.signbit())
    if wrong.any():
        place = tuple(wrong.nonzero()[0].tolist())
        raise AssertionError(f"{name}: {found[place].item()!r} at {place}, {wanted[place].item()!r} in eager")


def check(functions: dict[str, Function], inputs: Sequence[torch.Tensor], ulps: float = 0) -> None:
    """All functions give what they give in eager (or, if so many steps are allowed, in float64), and none is left to
    ATen."""
    results, called = compiled(functions, inputs)
    assert not called
    for (name, function), found in zip(functions.items(), results, strict=True):
        exact = [tensor.double() for tensor in inputs] if ulps and inputs[0].is_floating_point() else None
        assert_same(name, found, function(*inputs), ulps, exact and function(*exact).double())


def values(dtype: torch.dtype, count: int = 300) -> torch.Tensor:
    """Special values, the extreme ones of the type, and ordinary ones."""
    torch.manual_seed(0)
    if not dtype.is_floating_point:
        limits = torch.iinfo(dtype)
        edges = [limits.min, limits.min + 1, limits.max, limits.max - 1, 0, 1, 2, 3, 5, 7]
        rest = torch.randint(max(limits.min, -100), 100, (count,), dtype=dtype)
        return torch.cat([torch.tensor(edges, dtype=dtype), rest])
    limits = torch.finfo(dtype)
    edges = [limits.max, limits.min, limits.tiny, -limits.tiny, limits.smallest_normal / 4, limits.eps, 1 + limits.eps]
    special = torch.tensor([*SPECIAL, *edges], dtype=torch.float64).to(dtype)
    return whole_vectors(torch.cat([special, torch.randn(count, dtype=dtype) * 3]))


def whole_vectors(tensor: torch.Tensor) -> torch.Tensor:
    """Without what eager computes apart, and rounds otherwise: the last elements, if they fill no vector."""
    return tensor[: len(tensor) // 64 * 64] if len(tensor) > 64 else tensor


def pairs(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Each special value with each, and ordinary pairs."""
    few = values(dtype, 0)
    crossed = torch.tensor(list(itertools.product(range(len(few)), repeat=2)))
    many = values(dtype, 300)[len(few) :]
    found = torch.cat([few[crossed[:, 0]], many]), torch.cat([few[crossed[:, 1]], many.flip(0)])
    return whole_vectors(found[0]), whole_vectors(found[1])
