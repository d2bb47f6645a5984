"""Modules that stand where torch's compiler is imported from, and how they get there and away again.

A finder in front of all others answers for the names below `ROOTS`. What was loaded under those names before is put
aside, and comes back, the very same objects, with :func:`restore`.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Callable
from typing import Any

from .outlines import NOTHING, is_package, source_file
from .placeholders import Placeholder, from_outline

# Nothing at or below these names is torch's while Kiln is installed.
ROOTS = (
    "torch._dynamo",
    "torch._inductor",
    "torch._functorch.aot_autograd",
    "torch._functorch._aot_autograd",
    "torch._functorch.partitioners",
    "torch._functorch.compilers",
    "torch._functorch.config",
    "functorch.compile",
    "torch.testing._internal.inductor_utils",
)

ALWAYS_THERE = ("torch._dynamo", "torch._inductor")  # as attributes of torch, without an import


def is_below_roots(name: str) -> bool:
    return any(name == root or name.startswith(root + ".") for root in ROOTS)


class Live:
    """A row whose value is asked for each time it is read."""

    def __init__(self, read: Callable[[], Any]):
        self.read = read


def make_standin(name: str, contents: dict[str, Any]) -> types.ModuleType:
    """A module with these names; for others that torch's module has, placeholders; for the rest, no attribute."""
    module = types.ModuleType(name, f"Kiln's stand-in for {name}.")
    live = {own: value for own, value in contents.items() if isinstance(value, Live)}
    for own, value in contents.items():
        if own not in live:
            module.__dict__[own] = value(f"{name}.{own}") if is_later(value) else value
    module.__dict__["__getattr__"] = fallback(name, module, live)
    return module


def is_later(value: Any) -> bool:
    return getattr(value, "func", None) is Placeholder


def fallback(name: str, module: types.ModuleType, live: dict[str, Live]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a stand-in."""

    def __getattr__(attribute: str) -> Any:
        if attribute in live:
            return live[attribute].read()
        if attribute.startswith("__"):
            raise AttributeError(f"module {name!r} has no attribute {attribute!r}")
        below = f"{name}.{attribute}"
        if source_file(below) is not None and name in sys.modules:
            return importlib.import_module(below)
        value = from_outline(name, attribute)
        if value is NOTHING:
            raise AttributeError(f"module {name!r} has no attribute {attribute!r}")
        module.__dict__[attribute] = value
        return value

    return __getattr__


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds stand-ins: those of a table, and empty ones for the other modules that torch has below `ROOTS`."""

    def __init__(self, make: Callable[[str], types.ModuleType | None]):
        self.make = make
        self.made: dict[str, types.ModuleType] = {}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if not is_below_roots(name) or self.module(name) is None:
            return None
        spec = importlib.machinery.ModuleSpec(name, self, origin=source_file(name), is_package=self.has_children(name))
        return spec

    def has_children(self, name: str) -> bool:
        return is_package(name) or source_file(name) is None

    def module(self, name: str) -> types.ModuleType | None:
        """The stand-in of this name, made once: settings last over uninstalling and installing again."""
        if name not in self.made:
            module = self.make(name)
            if module is None:
                return None
            module.__dict__["__file__"] = source_file(name) or f"<kiln.compat: {name}>"
            self.made[name] = module
        return self.made[name]

    def return_modules(self) -> None:
        """Put back what was loaded when Kiln was last installed: stand-ins are attributes of one another."""
        for name, module in self.made.items():
            if module.__spec__ is not None:
                sys.modules[name] = module
                parent, _, own = name.rpartition(".")
                if parent in sys.modules:
                    setattr(sys.modules[parent], own, module)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        return self.module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """All is there already."""


class DisplacedModules:
    """What was loaded under the names that Kiln takes, to be put back."""

    def __init__(self) -> None:
        self.modules = {name: module for name, module in sys.modules.items() if is_below_roots(name)}
        self.attributes: list[tuple[types.ModuleType, str, Any]] = []
        for name in self.modules:
            del sys.modules[name]
        for root in ROOTS:
            parent, _, own = root.rpartition(".")
            owner = sys.modules.get(parent)
            if owner is not None and not is_below_roots(parent):
                self.attributes.append((owner, own, owner.__dict__.pop(own, NOTHING)))

    def restore(self) -> None:
        for name in [name for name in sys.modules if is_below_roots(name)]:
            del sys.modules[name]
        sys.modules.update(self.modules)
        for root in ROOTS:  # a parent that was first imported meanwhile
            parent, _, own = root.rpartition(".")
            if parent in sys.modules and not is_below_roots(parent):
                sys.modules[parent].__dict__.pop(own, None)
        for owner, own, value in self.attributes:
            if value is not NOTHING:
                owner.__dict__[own] = value
