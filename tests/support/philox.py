"""The random numbers of ATen on GPUs, computed on the CPU: an independent reference for what kernels draw.

Philox 4x32 with ten rounds. A thread of ATen's kernels has a subsequence of its own; its n-th call of the generator
takes the counter offset / 4 + n. How elements are given to threads depends on the kernel.
"""

from __future__ import annotations

import torch

MASK = 0xFFFFFFFF


def philox(seed: int, counter: torch.Tensor, subsequence: torch.Tensor) -> torch.Tensor:
    """Four numbers of 32 bits (as int64) along the last axis."""
    c = [counter & MASK, (counter >> 32) & MASK, subsequence & MASK, (subsequence >> 32) & MASK]
    keys = [seed & MASK, (seed >> 32) & MASK]
    for _ in range(10):
        low, high = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [
            ((high >> 32) & MASK) ^ c[1] ^ keys[0],
            high & MASK,
            ((low >> 32) & MASK) ^ c[3] ^ keys[1],
            low & MASK,
        ]
        keys = [(keys[0] + 0x9E3779B9) & MASK, (keys[1] + 0xBB67AE85) & MASK]
    return torch.stack(c, -1)


def threads_of(count: int, processors: int = 132, threads_of_processor: int = 2048) -> int:
    """The threads that ATen starts for so many elements."""
    return 256 * min(processors * (threads_of_processor // 256), -(-count // 256))


def increment_of(count: int, threads: int, unroll: int = 4) -> int:
    """How far the generator's offset moves."""
    return ((count - 1) // (threads * unroll) + 1) * 4


def vector_bits(seed: int, offset: int, count: int, threads: int, vector: int) -> torch.Tensor:
    """The numbers of the elements, where a thread takes ``vector`` neighbours at a time (2, 4 or 8)."""
    element = torch.arange(count)
    chunk, lane = element // vector, element % vector
    call = chunk // threads * max(1, vector // 4) + lane // 4
    drawn = philox(seed, offset // 4 + call, chunk % threads)
    return drawn.gather(-1, (lane % 4)[:, None])[:, 0]


def strided_bits(seed: int, offset: int, count: int, threads: int) -> torch.Tensor:
    """The same where the four numbers of a call are for elements that are ``threads`` apart."""
    element = torch.arange(count)
    place = element // threads
    drawn = philox(seed, offset // 4 + place // 4, element % threads)
    return drawn.gather(-1, (place % 4)[:, None])[:, 0]


def strided_wide_bits(seed: int, offset: int, count: int, threads: int) -> torch.Tensor:
    """Pairs of numbers, of which a call gives two."""
    element = torch.arange(count)
    place = element // threads
    drawn = philox(seed, offset // 4 + place // 2, element % threads)
    return torch.where((place % 2 == 0)[:, None], drawn[:, :2], drawn[:, 2:])


def uniform(bits: torch.Tensor) -> torch.Tensor:
    """In (0, 1], float32."""
    return bits.float() * 2.0**-32 + 2.0**-33


def uniform_double(pairs: torch.Tensor) -> torch.Tensor:
    """In (0, 1], float64."""
    return (pairs[:, 0] ^ (pairs[:, 1] << 21)).double() * 2.0**-53 + 2.0**-54
