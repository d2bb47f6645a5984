"""Random numbers of GPUs: Philox 4x32 with ten rounds, given to elements as ATen's kernels give them.

A thread of such a kernel has a subsequence of its own, and each of its calls of the generator gives four numbers of 32
bits. `Draws` says which thread, which call and which of the four numbers is an element's. The expression
``ir.philox(seed, offset, element, draws)`` is that number, as int64.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import sympy
import torch

from .sizes import Size

ROUNDS = 10
FACTORS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
WORD = 0xFFFFFFFF
NUMBERS_OF_CALL = 4
BLOCK = 256  # threads of a block in ATen's kernels


class Draws(NamedTuple):
    """How a kernel of ATen with so many threads gives numbers to elements.

    ``vector`` is 1 where the numbers of a call are for elements that are ``threads`` apart; otherwise a thread takes
    2, 4 or 8 neighbours at a time. ``is_wide``: an element gets two numbers, as the high and the low half of 64 bits.
    """

    elements: Size
    threads: Size
    vector: int = 1
    is_wide: bool = False

    @property
    def unroll(self) -> int:
        """Elements that a call is for."""
        return NUMBERS_OF_CALL // 2 if self.is_wide else NUMBERS_OF_CALL

    @property
    def increment(self) -> Size:
        """How far the generator's offset moves."""
        calls = quotient(self.elements - 1, self.threads * self.unroll) + 1
        return calls * NUMBERS_OF_CALL

    @property
    def group(self) -> int:
        """Neighbouring elements that are given numbers of one call."""
        return min(self.vector, NUMBERS_OF_CALL)


def quotient(a: Size, b: Size) -> Size:
    """Rounded down."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    from ..platform.torch_shapes import FloorDiv

    return FloorDiv(sympy.sympify(a), sympy.sympify(b))


def threads_for(count: Size, processors: int, threads_of_processor: int) -> Size:
    """The threads that ATen starts for so many elements on a GPU; one block for no elements."""
    most = processors * (threads_of_processor // BLOCK)
    blocks = quotient(count + (BLOCK - 1), BLOCK)
    if isinstance(blocks, int):
        return BLOCK * max(1, min(most, blocks))
    return BLOCK * sympy.Max(1, sympy.Min(most, blocks))


def drawn_bits(draws: Draws, seed: torch.Tensor, offset: torch.Tensor, element: torch.Tensor) -> torch.Tensor:
    """The numbers of elements, computed with torch; ``draws`` has no dynamic sizes."""
    assert isinstance(draws.threads, int)
    if draws.vector > 1:
        chunk, lane = element // draws.vector, element % draws.vector
        call = chunk // draws.threads * max(1, draws.vector // NUMBERS_OF_CALL) + lane // NUMBERS_OF_CALL
        subsequence, which = chunk % draws.threads, lane % NUMBERS_OF_CALL
    else:
        place = element // draws.threads
        call, subsequence, which = place // draws.unroll, element % draws.threads, place % draws.unroll
    words = torch.stack(philox(seed, (offset >> 2) + call, subsequence))
    if draws.is_wide:
        return (words.gather(0, 2 * which[None])[0] << 32) | words.gather(0, 2 * which[None] + 1)[0]
    return words.gather(0, which[None])[0]


def philox(seed: torch.Tensor, counter: torch.Tensor, subsequence: torch.Tensor) -> list[torch.Tensor]:
    """The four numbers of one call."""
    a, b, c, d = (one & WORD for one in (counter, counter >> 32, subsequence, subsequence >> 32))
    keys = [seed & WORD, (seed >> 32) & WORD]
    for _ in range(ROUNDS):
        first, second = a * FACTORS[0], c * FACTORS[1]
        a, b = ((second >> 32) & WORD) ^ b ^ keys[0], second & WORD
        c, d = ((first >> 32) & WORD) ^ d ^ keys[1], first & WORD
        keys = [(key + step) & WORD for key, step in zip(keys, KEY_STEPS, strict=True)]
    return [a, b, c, d]


def rounded_to_float32(value: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def uniform_of(bits: int) -> float:
    """The number in (0, 1] that ATen makes of 32 bits, in float32."""
    return rounded_to_float32(rounded_to_float32(float(bits)) * 2.0**-32 + 2.0**-33)


def count_below(bound: float) -> int:
    """How many of the numbers of 32 bits become less than a bound: exactly those that are less than this."""
    low, high = 0, WORD + 1
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if uniform_of(middle) < bound else (low, middle)
    return low
