"""Compares the random numbers that ATen draws on a GPU with those that kernels would draw (loops/philox.py).

For releases of torch whose kernels nobody has compared. It takes some milliseconds, once in a process.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from ..platform.torch_dispatch import DisableTorchFunction, disable_current_modes
from . import philox
from .philox import Draws

SEED, OFFSET = 0x1234_5678_9ABC, 40
KEPT = 0.75  # of the elements, by dropout
WIDEST = 16  # bytes that a thread of dropout takes at once
SHAPES_OF_DROPOUT = ((torch.float32, 1023), (torch.float32, 4098), (torch.float32, 4096), (torch.bfloat16, 4096))
FEW = 500


class Comparison(NamedTuple):
    draws: Draws
    draw: Callable[[], torch.Tensor]
    expected: Callable[[torch.Tensor], torch.Tensor]  # of the numbers of the elements


def agrees(device: torch.device, processors: int, threads_of_processor: int) -> bool:
    """Whether ATen draws what kernels would, in every way that they draw."""

    def draws_of(count: int, vector: int = 1, is_wide: bool = False) -> Draws:
        return Draws(count, philox.threads_for(count, processors, threads_of_processor), vector, is_wide)

    generator = torch.Generator(device)  # the program's own one stays as it is
    several_calls = 2 * processors * threads_of_processor * philox.NUMBERS_OF_CALL + 4
    with disable_current_modes(), DisableTorchFunction(), torch.no_grad(), torch.cuda.device(device):
        return all(is_as_expected(generator, one) for one in comparisons(generator, draws_of, several_calls))


def comparisons(generator: torch.Generator, draws_of: Callable[..., Draws], several_calls: int) -> Iterator[Comparison]:
    how: dict[str, Any] = {"device": generator.device, "generator": generator}
    below = philox.count_below(KEPT)
    for dtype, count in (*SHAPES_OF_DROPOUT, (torch.float32, several_calls), (torch.float32, several_calls - 1)):
        x = torch.ones(count, dtype=dtype, device=generator.device)
        draws = draws_of(count, math.gcd(WIDEST // dtype.itemsize, count))
        yield Comparison(draws, functools.partial(kept_by_dropout, x, generator), lambda bits: bits < below)
    few = draws_of(FEW)
    yield Comparison(few, lambda: torch.rand(FEW, **how), lambda bits: uniform(bits) % 1)
    yield Comparison(few, lambda: torch.randint(1000, (FEW,), **how), lambda bits: bits % 1000)
    truths = torch.empty(FEW, device=generator.device)
    yield Comparison(
        few, lambda: truths.bernoulli_(KEPT, generator=generator), lambda bits: (uniform(bits) < KEPT).float()
    )
    pairs = draws_of(FEW, is_wide=True)
    yield Comparison(pairs, lambda: torch.rand(FEW, dtype=torch.float64, **how), lambda bits: uniform_of_64(bits) % 1)


def kept_by_dropout(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """What ``native_dropout`` keeps, which itself takes no generator."""
    mask: torch.Tensor = torch.ops.aten._fused_dropout.default(x, KEPT, generator)[1]
    return mask.bool()


def uniform(bits: torch.Tensor) -> torch.Tensor:
    return bits.float() * 2.0**-32 + 2.0**-33


def uniform_of_64(bits: torch.Tensor) -> torch.Tensor:
    mixed = ((bits >> 32) & philox.WORD) ^ ((bits & philox.WORD) << 21)
    return mixed.double() * 2.0**-53 + 2.0**-54


def is_as_expected(generator: torch.Generator, comparison: Comparison) -> bool:
    generator.manual_seed(SEED)
    generator.set_offset(OFFSET)
    found = comparison.draw()
    if generator.get_offset() != OFFSET + comparison.draws.increment:
        return False
    seed, offset = (torch.tensor(value, device=found.device) for value in (SEED, OFFSET))
    numbers = torch.arange(found.numel(), device=found.device)
    bits = philox.drawn_bits(comparison.draws, seed, offset, numbers)
    return torch.equal(found, comparison.expected(bits))
