"""Silence while tracing: an operation warns when the graph runs it, not when it runs on fake tensors.

Operations run on fake tensors once more than the program runs them, so their warnings must neither be shown nor count
as shown (torch and Python both warn "once"), and torch's log of failures on fake tensors is not for users.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from ..platform.cpython import warning_filters
from ..platform.torch_fake import LOGGER


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No warnings and no log lines from operations on fake tensors in the block."""
    always = torch.is_warn_always_enabled()
    log = logging.getLogger(LOGGER)
    with warnings.catch_warnings():
        outer = list(warning_filters())
        SILENCED.append((outer, always))
        warnings.simplefilter("ignore")
        for category in (DeprecationWarning, RuntimeWarning):  # what builtins warn of, native_calls.py leaves to Python
            warnings.filterwarnings("error", category=category, module=r"kiln\.capture\.interpreter\.native_calls")
        torch.set_warn_always(True)  # a warning that comes once is then not used up
        log.addFilter(refuse)  # setLevel would have all loggers of the process forget what they know
        try:
            yield
        finally:
            SILENCED.pop()
            log.removeFilter(refuse)
            torch.set_warn_always(always)


def refuse(record: logging.LogRecord) -> bool:
    """A filter of log lines that lets none through."""
    return False


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """No garbage collections in the block: what capture makes lives to its end, and looking through it is in vain."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def without_frequent_collections() -> contextlib.AbstractContextManager[None]:
    """The same where the program has collections come after every few objects: compiling makes a great many."""
    return without_collections() if gc.get_threshold()[0] < FREQUENT else contextlib.nullcontext()


FREQUENT = 100  # new objects between collections; Python's own setting is 700


SILENCED: list[tuple[list[Any], bool]] = []  # filters of warnings, and torch's switch, as they are outside


@contextlib.contextmanager
def unsilenced() -> Iterator[None]:
    """Inside `quiet`: code that runs for real, and may warn."""
    if not SILENCED:
        yield
        return
    filters, always = SILENCED[-1]
    with warnings.catch_warnings():
        warning_filters()[:] = filters
        torch.set_warn_always(always)
        try:
            yield
        finally:
            torch.set_warn_always(True)
