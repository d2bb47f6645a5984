"""Storages that a program resizes (``x.untyped_storage().resize_``) while it is traced.

No operator records it, and a fake storage does not show what the real one was: FSDP gives parameters their memory back
that way. So the method is replaced while programs run on fake tensors; it acts only on storages of the trace in its own
thread.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch

from ...platform.torch_tensors import address_of
from ...program.unsupported import Unsupported
from .functional_graph import FunctionalGraph


class Traced(threading.local):
    """The graph that is being made in this thread."""

    graph: FunctionalGraph | None = None


_traced = Traced()
_lock = threading.Lock()
_count = 0  # of traces, in all threads
_resize: Any = torch.UntypedStorage.resize_


def resize(storage: torch.UntypedStorage, size: int) -> Any:
    """Replaces the method while there is a trace."""
    graph = _traced.graph
    if graph is not None and address_of(storage) in graph.storages:
        raise Unsupported("resizing a storage")
    return _resize(storage, size)


@contextlib.contextmanager
def refuse_resizes(graph: FunctionalGraph) -> Iterator[None]:
    """In the block, resizing the storage of a tensor of this graph ends the trace."""
    global _count
    kind: Any = torch.UntypedStorage
    before, _traced.graph = _traced.graph, graph
    with _lock:
        if not _count:
            kind.resize_ = resize
        _count += 1
    try:
        yield
    finally:
        _traced.graph = before
        with _lock:
            _count -= 1
            if not _count:
                del kind.resize_  # the base class has the method
