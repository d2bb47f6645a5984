"""Kernels called from Python, for checks and tests: as a launch does it, but one thread's share after another."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from kiln.loops.kernel import Kernel

from .emit.kernel_plan import plan_of
from .workload import extent_of

Entry = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


def call_kernel(kernel: Kernel, address: int, pointers: Sequence[int], sizes: Sequence[int], shares: int = 1) -> None:
    """Run a kernel's code on memory, as if on so many threads; ``sizes`` are those of ``kernel.sizes``."""
    extent = extent_of(plan_of(kernel))
    units = int(extent.units(kernel.sizes_of_launch(sizes)))
    shares = 1 if extent.is_whole else min(shares, units)
    given = (ctypes.c_void_p * max(len(pointers), 1))(*pointers), (ctypes.c_int64 * max(len(sizes), 1))(*sizes)
    for share in range(shares if units else 0):
        Entry(address)(*given, units * share // shares, units * (share + 1) // shares)
