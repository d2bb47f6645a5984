"""Kernels launched from Python, for checks: as the native program does it, on torch's current stream."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

from .driver import launcher

Launch = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3)


def call_kernel(
    name: str, function: int, device: int, shape: tuple[int, int, int], arguments: Sequence[int | bytes]
) -> None:
    """Launch a kernel, and wait for it. ``shape``: blocks, threads of a block, bytes of shared memory."""
    blocks, threads, shared = shape
    given: list[Any] = [
        ctypes.c_int64(one) if isinstance(one, int) else ctypes.create_string_buffer(one, len(one)) for one in arguments
    ]
    places = (ctypes.c_void_p * max(1, len(given)))(*(ctypes.addressof(one) for one in given))
    with torch.cuda.device(device):
        stream = torch.cuda.current_stream()
        if blocks:
            how = launcher()
            error = Launch(how.address)(function, blocks, 1, 1, threads, 1, 1, shared, stream.cuda_stream, places, None)
            if error:
                how.failed(name, error, device)
        stream.synchronize()
