"""Kiln's settings: one typed object, `kiln.config`, that can be assigned to or patched for a while.

Assign, or patch as a context manager or a decorator:

    kiln.config.recompile_limit = 4

    with kiln.config.patch(recompile_limit=4):
        ...

    @kiln.config.patch(recompile_limit=4)
    def test_something(): ...
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, fields
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from kiln.exc import UnknownSetting, did_you_mean

from .platform.light_dataclass import dataclass
from .platform.locks import new_lock

LOG_ARTEFACTS = frozenset(
    {
        "graph",
        "guards",
        "recompiles",
        "breaks",
        "code",
        "cuda_graphs",
        "aot",
        "backward",
        "engine",
        "trace",
        "ir",
        "kernels",
        "platform",
        "ptx",
        "stages",
    }
)
BREAK_EVERY_CHOICES = (None, "line", "instruction")

P = ParamSpec("P")
R = TypeVar("R")

_lock = new_lock()


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"kiln.config.{name} is True or False, not {value!r} of type {type(value).__name__}")
    return value


def _count(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"kiln.config.{name} is an int, not {value!r} of type {type(value).__name__}")
    if value < 0:
        raise ValueError(f"kiln.config.{name} cannot be negative, got {value}")
    return value


def _name(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"kiln.config.{name} is a string, not {value!r} of type {type(value).__name__}")
    return value


def _break_every(name: str, value: object) -> str | None:
    if value is not None and not isinstance(value, str):
        raise TypeError(f"kiln.config.{name} is None or a string, not {value!r} of type {type(value).__name__}")
    if value not in BREAK_EVERY_CHOICES:
        raise ValueError(f"kiln.config.{name} is one of {BREAK_EVERY_CHOICES}, not {value!r}")
    return value


def _artefacts(name: str, value: object) -> frozenset[str]:
    if isinstance(value, str) or not isinstance(value, Iterable) or not all(isinstance(item, str) for item in value):
        raise TypeError(f"kiln.config.{name} is a set of strings, not {value!r} of type {type(value).__name__}")
    for item in value:
        if item not in LOG_ARTEFACTS:
            raise ValueError(f"kiln.config.{name}: unknown artefact {item!r}, {did_you_mean(item, LOG_ARTEFACTS)}")
    return frozenset(value)


def _names(name: str, value: object) -> frozenset[str]:
    if isinstance(value, str) or not isinstance(value, Iterable) or not all(isinstance(item, str) for item in value):
        raise TypeError(f"kiln.config.{name} is a set of strings, not {value!r} of type {type(value).__name__}")
    return frozenset(value)


def names_from_environment(text: str) -> frozenset[str]:
    return frozenset(name.strip() for name in text.split(",") if name.strip())


def log_from_environment(text: str) -> frozenset[str]:
    """The artefacts that a `KILN_LOG` text names; an unknown name is warned about, since a typo must not go unseen."""
    names = {name.strip() for name in text.split(",") if name.strip()}
    for name in sorted(names - LOG_ARTEFACTS):
        warnings.warn(f"KILN_LOG: unknown artefact {name!r}, {did_you_mean(name, LOG_ARTEFACTS)}", stacklevel=2)
    return frozenset(names & LOG_ARTEFACTS)


def _setting(default: Any, check: Callable[[str, object], Any], doc: str) -> Any:
    """A field of `Config`: its default, what a new value must pass, and what it is for."""
    return field(default=default, metadata={"check": check, "doc": doc})


@dataclass(eq=False)
class Config:
    """Kiln's settings. Assigning an unknown name or a value of the wrong type raises at once."""

    recompile_limit: int = _setting(
        8, _count, "How many entries one function may have before Kiln leaves new inputs to plain Python."
    )
    backend: str = _setting("kiln", _name, "The backend of kiln.compile where none is named.")
    automatic_dynamic: bool = _setting(
        True, _flag, "Treat a size or number that was seen to vary as symbolic from the first recompile on."
    )
    error_on_recompile: bool = _setting(
        False, _flag, "Raise kiln.exc.RecompileError where a function would be compiled again, with the reason."
    )
    suppress_errors: bool = _setting(
        False, _flag, "Run a function in plain Python where a backend fails, with a warning, and do not raise."
    )
    raise_internal_errors: bool = _setting(
        False, _flag, "For tests: raise where Kiln itself has a bug, in place of a warning and plain Python."
    )
    max_inline_depth: int = _setting(
        200, _count, "How deep calls are followed into user functions before the call is left to plain Python."
    )
    max_instructions: int = _setting(
        200_000, _count, "How many jumps (steps of loops) one capture may interpret before it gives up on the frame."
    )
    max_idle_steps: int = _setting(
        30_000, _count, "How many steps and calls without a tensor operation one capture may interpret."
    )
    guard_module_hooks: bool = _setting(
        True, _flag, "Notice hooks that are added to, removed from or replaced on a module after it was compiled."
    )
    compiled_autograd: bool = _setting(
        False, _flag, "Read by kiln.compile: backward passes that start in what it compiles are compiled as well."
    )
    cache: bool = _setting(
        True, _flag, "Keep compiled programs on disk (KILN_CACHE_DIR, else ~/.cache/kiln) and start from them."
    )
    cache_limit: int = _setting(1000, _count, "How many megabytes they may take; the least recently used go first.")
    disable_kernels: frozenset[str] = _setting(
        frozenset(), _names, "Operators or kernels that ATen is to run; at import taken from KILN_DISABLE_KERNELS."
    )
    cuda_graph_limit: int = _setting(
        16, _count, "How many CUDA graphs of one program are recorded; further sizes run without."
    )
    break_every: str | None = _setting(
        None, _break_every, "For tests: force a graph break at each new 'line' or 'instruction' of the outermost frame."
    )
    log: frozenset[str] = _setting(
        frozenset(), _artefacts, "Artefacts to print while compiling; at import taken from KILN_LOG (comma separated)."
    )

    def __setattr__(self, name: str, value: Any) -> None:
        check = _CHECKS.get(name)
        if check is None:
            raise UnknownSetting(name, _CHECKS)
        checked = check(name, value)
        with _lock:
            object.__setattr__(self, name, checked)

    def __getattr__(self, name: str) -> Any:  # reached only for names that are not there
        raise UnknownSetting(name, _CHECKS)

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a setting cannot be deleted; kiln.config.reset({name!r}) gives it its default back")

    def __repr__(self) -> str:
        return "\n".join(["kiln.config:"] + [f"  {name} = {value!r}" for name, value in self.as_dict().items()])

    def as_dict(self) -> dict[str, Any]:
        """All settings and their values now."""
        return {name: getattr(self, name) for name in _CHECKS}

    def describe(self, name: str) -> str:
        """What a setting is for."""
        for setting in fields(self):
            if setting.name == name:
                return str(setting.metadata["doc"])
        raise UnknownSetting(name, _CHECKS)

    def reset(self, *names: str) -> None:
        """Give the named settings, or all of them, their defaults back."""
        for name in names:
            if name not in _CHECKS:
                raise UnknownSetting(name, _CHECKS)
        for setting in fields(self):
            if not names or setting.name in names:
                setattr(self, setting.name, setting.default)

    def patch(self, changes: Mapping[str, Any] | None = None, /, **more: Any) -> Patch:
        """Change settings for the length of a `with` block or of each call of a decorated function."""
        return Patch(self, {**(changes or {}), **more})


class Patch:
    """Settings that hold while a block or a decorated function runs; what was there before comes back in any case."""

    def __init__(self, target: Config, changes: dict[str, Any]) -> None:
        for name, value in changes.items():  # complain where the patch is written, not where it is entered
            if name not in _CHECKS:
                raise UnknownSetting(name, _CHECKS)
            _CHECKS[name](name, value)
        self._target = target
        self._changes = changes
        self._before: list[dict[str, Any]] = []  # a stack: one patch may be entered again inside itself

    def __enter__(self) -> Config:
        with _lock:
            self._before.append({name: getattr(self._target, name) for name in self._changes})
            self._apply(self._changes)
        return self._target

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        with _lock:
            self._apply(self._before.pop())

    def _apply(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            setattr(self._target, name, value)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def patched(*args: P.args, **kwargs: P.kwargs) -> R:
            with Patch(self._target, self._changes):
                return function(*args, **kwargs)

        return patched


def defaults() -> dict[str, Any]:
    """The settings where neither the program nor the environment has changed one."""
    return {item.name: item.default for item in fields(Config)}


_CHECKS: dict[str, Callable[[str, object], Any]] = {item.name: item.metadata["check"] for item in fields(Config)}

config = Config(
    log=log_from_environment(os.environ.get("KILN_LOG", "")),
    disable_kernels=names_from_environment(os.environ.get("KILN_DISABLE_KERNELS", "")),
)
