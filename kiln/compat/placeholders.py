"""Placeholders for names of torch's compiler that Kiln has no counterpart of: importable, and raise when used.

The names come from the text of torch's source files (`outlines.py`). A name that torch does not have is missing here as
well; plain data (a list of device types) is the same data; what a file of torch's imports is imported from there.
"""

from __future__ import annotations

import ast
import functools
import importlib
import logging
from collections.abc import Iterator
from typing import Any

from .. import exc
from .outlines import NOTHING, evaluated, outline

# What is to come, and what to do until then. A row of `names.py` that says ``later("codegen")`` becomes the thing.
TOPICS = {"codegen": ("code generation", "leave backend= out, or use backend='eager'")}
NO_COUNTERPART = (
    "it is a part of torch's own compiler, for which Kiln stands in",
    "run this program without Kiln (kiln.uninstall), or do without the name",
)


def not_available(name: str, topic: str | None = None) -> exc.NotAvailable:
    """The error that using a missing name raises."""
    if topic is None:
        return exc.NotAvailable(name, *NO_COUNTERPART)
    what, hint = TOPICS[topic]
    return exc.NotAvailable(name, f"{what} is not there yet", hint)


_installed = False


def set_installed(installed: bool) -> None:
    """Tell placeholders whether torch's names mean Kiln now."""
    global _installed
    _installed = installed


def real_thing(name: str, topic: str | None = None) -> Any:
    """What a missing name is: an error, or, for files of torch's that have kept it after Kiln went, torch's own."""
    if _installed:
        raise not_available(name, topic)
    module, _, own = name.rpartition(".")
    return getattr(importlib.import_module(module), own)


class Placeholder:
    """A function or value that Kiln has no counterpart of. Importing it, storing it, naming it in types is no use."""

    def __init__(self, name: str, topic: str | None = None):
        self.__dict__.update(_name=name, _topic=topic, __name__=name.rpartition(".")[2], __qualname__=name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return real_thing(self._name, self._topic)(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("__", "_pytest")):
            raise AttributeError(name)
        return getattr(real_thing(self.__dict__["_name"], self.__dict__["_topic"]), name)

    def _in_annotation(self, other: Any) -> Any:
        return Any

    __getitem__ = __or__ = __ror__ = _in_annotation

    def __iter__(self) -> Iterator[Any]:
        """Without this, Python would ask for item after item, without an end."""
        return iter(real_thing(self._name, self._topic))

    def __repr__(self) -> str:
        return f"<{self._name}, which Kiln does not have>"


class PlaceholderType(type):
    """The class of classes that Kiln has no counterpart of: they can be subclassed and asked about, not made."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return real_thing(cls._placeholder_name)(*args, **kwargs)

    def __getattr__(cls, name: str) -> Any:
        if name.startswith(("__", "_placeholder")):
            raise AttributeError(name)
        return getattr(real_thing(cls._placeholder_name), name)

    def __instancecheck__(cls, instance: Any) -> bool:
        if _installed or "_placeholder_name" not in vars(cls):
            return super().__instancecheck__(instance)
        return isinstance(instance, real_thing(cls._placeholder_name))


def later(topic: str) -> Any:
    """A row for a name that comes with a topic."""
    return functools.partial(Placeholder, topic=topic)


def placeholder_class(name: str, is_error: bool = False) -> type:
    """A stand-in for a class; one for an exception can be named in ``except``."""
    module, _, own = name.rpartition(".")
    names = {"__module__": module, "__qualname__": own, "_placeholder_name": name}
    if is_error:
        return type(own, (Exception,), names)
    return PlaceholderType(own, (), {**names, "__class_getitem__": classmethod(lambda cls, item: cls)})


def from_outline(module: str, name: str) -> Any:
    """What to answer for a name that torch's module defines; `NOTHING` where it does not."""
    found = outline(module)
    whole = f"{module}.{name}"
    if name in found.classes:
        bases = [ast.unparse(base) for base in found.classes[name].bases]
        return placeholder_class(whole, any(base.endswith(("Error", "Exception", "Failed")) for base in bases))
    if name in found.functions:
        return Placeholder(whole)
    if name in found.values:
        if name == "log":
            return logging.getLogger(module)
        value = evaluated(found.values[name])
        return Placeholder(whole) if value is NOTHING else value
    if name in found.imports:
        return _imported(*found.imports[name], whole)
    return NOTHING


def _imported(module: str, name: str, whole: str) -> Any:
    try:
        owner = importlib.import_module(module)
        return (
            getattr(owner, name)
            if name and hasattr(owner, name)
            else importlib.import_module(f"{module}.{name}")
            if name
            else owner
        )
    except ImportError:
        return Placeholder(whole)
