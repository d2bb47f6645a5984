"""``with torch.device(...)``: the mode behind it; streams of GPUs. Known for torch 2.11 to 2.13.

Importing it loads ``torch.utils._device``, which importing torch does not.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.utils._device import DeviceContext
from torch.utils._device import _device_constructors as device_constructors

__all__ = [
    "DeviceContext",
    "device_constructors",  # the functions that such a mode gives a device
    "raw_stream_reader",
]


def raw_stream_reader() -> Callable[[int], int]:
    """The function that gives torch's current stream of a GPU as the driver knows it. Only builds with CUDA have it."""
    return torch._C._cuda_getCurrentRawStream
