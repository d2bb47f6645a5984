"""``with torch.device(...)``: the mode behind it; streams and generators of GPUs. Known for torch 2.11 to 2.15.

Importing it loads ``torch.utils._device``, which importing torch does not.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable
from pathlib import Path

import torch
from torch.utils._device import DeviceContext
from torch.utils._device import _device_constructors as device_constructors

__all__ = [
    "DeviceContext",
    "device_constructors",  # the functions that such a mode gives a device
    "draw_address",
    "raw_stream_reader",
]


def raw_stream_reader() -> Callable[[int], int]:
    """The function that gives torch's current stream of a GPU as the driver knows it. Only builds with CUDA have it."""
    return torch._C._cuda_getCurrentRawStream


# at::CUDAGeneratorImpl::philox_cuda_state(uint64_t), which the native program calls (native/platform/random.h)
DRAW = "_ZN2at17CUDAGeneratorImpl17philox_cuda_stateEm"


@functools.cache
def draw_address() -> int:
    """The address of the function that takes numbers from a GPU's random generator; 0 where torch has none."""
    path = Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"
    try:
        library = ctypes.CDLL(str(path), mode=os.RTLD_LAZY | os.RTLD_NOLOAD)
        return ctypes.cast(getattr(library, DRAW), ctypes.c_void_p).value or 0
    except (OSError, AttributeError):
        return 0
