"""Memory that a step frees stays in the process for the next step.

A training step takes and frees the same megabytes each time. glibc gives what is free at the end of its heap back to
the system as soon as that is twice the largest block it ever had to map on its own and saw freed; the system hands it
out again page by page, zeroed. On a small U-Net that was a quarter of the time. That measure grows by itself, up to
32 MB, whenever a larger block is freed: so one such block, never touched, is taken and freed before the first program
runs. Whoever sets malloc's thresholds (``MALLOC_TRIM_THRESHOLD_``) has decided otherwise, and this changes nothing.
"""

from __future__ import annotations

import ctypes
import functools
import os

LARGEST_MAPPED = 32 * 1024 * 1024  # where glibc's own measure stops growing
ROOM_FOR_HEADER = 8192


@functools.cache
def keep_freed_memory() -> None:
    """Once in a process, and only where malloc is glibc's."""
    if "CS_GNU_LIBC_VERSION" not in getattr(os, "confstr_names", {}):
        return
    library = ctypes.CDLL(None)
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    library.free.restype, library.free.argtypes = None, [ctypes.c_void_p]
    library.free(library.malloc(LARGEST_MAPPED - ROOM_FOR_HEADER))
