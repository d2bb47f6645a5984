"""Kiln under torch's names: programs and test-suites written for ``torch.compile`` and its modules run on Kiln.

``kiln.install()`` puts Kiln there, ``kiln.uninstall()`` takes it away again; ``python -m kiln run script.py`` and
``pytest -p kiln.compat.auto`` install it before anything else runs. Nothing here imports what it stands in for: the
names are only strings (`names.py` is the table of them).
"""

from __future__ import annotations

import importlib
import sys
from types import TracebackType
from typing import Any

from ..exc import SwitchedOff
from ..platform.locks import new_lock
from ..platform.support.switches import CAPTURE, reason_off

_lock = new_lock()
_state: Any = None


class Installation:
    """What ``kiln.install()`` returns: as a ``with`` block it takes away at the end what it has put there."""

    def __init__(self, fresh: bool):
        self._fresh = fresh  # one inside another leaves Kiln installed for the outer one

    def __enter__(self) -> Installation:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._fresh:
            uninstall()


def install() -> Installation:
    """Put Kiln where torch's compiler is: ``torch.compile``, ``torch._dynamo`` and what else docs/compat.md lists.

    Doing so twice is doing it once. The result can be used as a ``with`` block.
    """
    if reason := reason_off(CAPTURE):
        raise SwitchedOff("kiln.install", reason)
    global _state
    with _lock:
        fresh = _state is None
        if fresh:
            _state = _Installed()
            _tell_placeholders(True)
    return Installation(fresh)


def uninstall() -> None:
    """Put back everything that was there before ``kiln.install()``; does nothing where Kiln is not installed."""
    global _state
    with _lock:
        if _state is not None:
            _state.remove()
            _state = None
            _tell_placeholders(False)


def _tell_placeholders(installed: bool) -> None:
    from .placeholders import set_installed

    set_installed(installed)


def _expect_hooks(expected: bool) -> None:
    from ..platform.torch_compiler import expect_hooks  # binds private names of torch: not while Kiln is imported

    expect_hooks(expected)


def is_installed() -> bool:
    """Whether torch's names mean Kiln now."""
    return _state is not None


_finder: Any = None
_ABSENT: Any = object()


def _standins() -> Any:
    """The finder, made once per process: its modules keep their settings."""
    global _finder
    if _finder is None:
        from .names import make
        from .standins import Finder

        _finder = Finder(make)
    return _finder


class _Installed:
    """Everything that is changed while Kiln is installed."""

    def __init__(self) -> None:
        from . import names
        from .standins import DisplacedModules

        finder = _standins()
        self.replaced = [(owner, own, vars(owner).get(own, _ABSENT)) for owner, own, _ in names.replacements()]
        self.displaced = DisplacedModules()
        sys.meta_path.insert(0, finder)
        try:
            self._put_there(finder)
        except BaseException:
            self.remove()
            raise

    def _put_there(self, finder: Any) -> None:
        from . import counting, engine, names
        from .standins import ALWAYS_THERE, ROOTS

        finder.return_modules()
        for root in ROOTS:
            if root in self.displaced.modules or root in ALWAYS_THERE:
                importlib.import_module(root)
        for owner, own, value in names.replacements():
            setattr(owner, own, value)
        counting.start()
        engine.start()
        _expect_hooks(False)

    def remove(self) -> None:
        from ..capture.entry.dispatchers import update_stance_watch
        from . import counting, dynamo, engine

        _expect_hooks(True)
        counting.stop()
        engine.stop()
        for owner, own, value in self.replaced:
            if value is not _ABSENT:
                setattr(owner, own, value)
            elif own in vars(owner):
                delattr(owner, own)
        sys.meta_path.remove(_finder)
        self.displaced.restore()
        dynamo.forget_kept_out()
        update_stance_watch()
