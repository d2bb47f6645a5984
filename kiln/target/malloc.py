"""Keeps memory that a step frees in the process, for the next step.

A training step allocates and frees the same megabytes each time. glibc returns free memory at the end of its heap to
the system when it exceeds twice the largest block that was mapped and freed; the system then zeroes it again, page by
page. That took a quarter of the time of a small U-Net. The threshold grows up to 32 MB when a larger block is freed. So
one such block, never touched, is allocated and freed before the first program runs. It has no effect where the user
sets malloc's thresholds (``MALLOC_TRIM_THRESHOLD_``).
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
