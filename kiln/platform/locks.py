"""Locks that a forked process can take, whatever other threads of its parent were doing.

``threading`` makes its own locks anew after a fork by the same private method. Known for CPython 3.11 to 3.14.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

_LOCKS: weakref.WeakSet[Any] = weakref.WeakSet()


def new_lock() -> Any:
    """A re-entrant lock which, in a forked child, is free unless the forking thread itself holds it."""
    lock = threading.RLock()
    _LOCKS.add(lock)
    return lock


def _release_in_child() -> None:
    for lock in list(_LOCKS):
        if not lock._is_owned():
            lock._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_in_child)
