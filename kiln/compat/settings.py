"""The ``config`` modules: what Kiln has a setting for is that setting, the rest is kept and has no effect.

A name that torch has and that was not set reads as torch's own default, if its source file has one that is plain data
(torch's own code reads some of them), and as None otherwise. A name that neither has is no attribute.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import types
import unittest
from collections.abc import Callable, Iterator
from typing import Any

from ..config import config as kiln_config
from ..platform import torch_compiler
from .outlines import NOTHING, evaluated, outline


class Setting:
    """A setting of Kiln's under another name; ``inverted`` where it says the opposite."""

    def __init__(self, name: str, inverted: bool = False):
        self.name = name
        self.inverted = inverted

    def read(self) -> Any:
        value = getattr(kiln_config, self.name)
        return not value if self.inverted else value

    def write(self, value: Any) -> None:
        kind = type(getattr(kiln_config, self.name))  # torch takes 1 for True
        setattr(kiln_config, self.name, kind(not value if self.inverted else value))


class ConfigModule(types.ModuleType):
    """A stand-in for a module of settings: readable, assignable, patchable as torch's are.

    ``behind`` is torch's own module where that is no part of its compiler, and read by the rest of torch.
    """

    def __init__(self, name: str, known: dict[str, Setting], values: dict[str, Any], behind: Any = None):
        super().__init__(name, f"Kiln's stand-in for {name}.")
        self.__dict__.update(_known=known, _values=dict(values), _hidden=set(), _behind=behind)

    def __getattr__(self, name: str) -> Any:
        own = self.__dict__
        if name.startswith("__") or name in own["_hidden"]:
            raise AttributeError(f"{self.__name__} has no setting {name!r}")
        if name in own["_known"]:
            return own["_known"][name].read()
        if name in own["_values"]:
            return own["_values"][name]
        value = self._default(name)
        if value is NOTHING:
            raise AttributeError(f"{self.__name__} has no setting {name!r}")
        return value

    def _default(self, name: str) -> Any:
        if self._behind is not None:
            return getattr(self._behind, name, NOTHING)
        found = outline(self.__name__)
        if name in found.values:
            value = evaluated(found.values[name])
            self._values[name] = None if value is NOTHING else value
        elif name in found.classes:
            self._values[name] = _group(found.classes[name])
        else:
            return NOTHING
        return self._values[name]

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__"):
            super().__setattr__(name, value)
            return
        self._hidden.discard(name)
        if name in self._known:
            self._known[name].write(value)
            return
        if self._behind is not None and hasattr(self._behind, name):
            setattr(self._behind, name, value)
        else:
            self._values[name] = value

    def __delattr__(self, name: str) -> None:
        """``unittest.mock`` deletes, looks, and sets again."""
        self._values.pop(name, None)
        self._hidden.add(name)

    def __dir__(self) -> list[str]:
        found = outline(self.__name__)
        return sorted({*self._known, *self._values, *found.values, *found.classes, "patch"})

    def patch(self, arg1: Any = None, arg2: Any = NOTHING, **kwargs: Any) -> ConfigPatch:
        """Change settings for the length of a ``with`` block, a decorated function or test class."""
        changes = dict(kwargs)
        if isinstance(arg1, dict):
            changes.update(arg1)
        elif arg1 is not None:
            changes[arg1] = arg2
        return ConfigPatch(self, changes)

    def get_config_copy(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in [*self._known, *self._values]}

    to_dict = shallow_copy_dict = get_config_copy

    def load_config(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            setattr(self, name, value)


def _group(body: ast.ClassDef) -> Any:
    """Settings that torch groups in a class, as an object with attributes."""
    names: dict[str, Any] = {}
    for statement in body.body:
        if isinstance(statement, ast.ClassDef):
            names[statement.name] = _group(statement)
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
            target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
            if isinstance(target, ast.Name):
                value = evaluated(statement.value)
                names[target.id] = None if value is NOTHING else value
    return types.SimpleNamespace(**names)


class ConfigPatch(contextlib.ContextDecorator):
    """Settings that hold for a while. Names may reach into groups: ``triton.cudagraphs``."""

    def __init__(self, target: ConfigModule, changes: dict[str, Any]):
        self.target = target
        self.changes = changes
        self.before: list[list[tuple[Any, str, Any]]] = []

    def _places(self) -> Iterator[tuple[Any, str, Any]]:
        for name, value in self.changes.items():
            *groups, own = name.split(".")
            yield functools.reduce(getattr, groups, self.target), own, value

    def __enter__(self) -> ConfigModule:
        self.before.append([(owner, own, getattr(owner, own, NOTHING)) for owner, own, _ in self._places()])
        for owner, own, value in self._places():
            setattr(owner, own, value)
        return self.target

    def __exit__(self, *error: object) -> None:
        for owner, own, value in self.before.pop():
            if value is NOTHING:
                delattr(owner, own)
            else:
                setattr(owner, own, value)

    def __call__(self, function: Any) -> Any:
        if isinstance(function, type) and issubclass(function, unittest.TestCase):
            return _patched_class(function, self)
        return super().__call__(function)


def _patched_class(cls: Any, patch: ConfigPatch) -> Any:
    """A test class whose tests all run under a patch."""
    inner: Callable[..., Any] = cls.run

    def run(self: Any, result: Any = None) -> Any:
        with patch:
            return inner(self, result)

    cls.run = run
    return cls


DYNAMO_SETTINGS = {
    "recompile_limit": Setting("recompile_limit"),
    "cache_size_limit": Setting("recompile_limit"),
    "error_on_recompile": Setting("error_on_recompile"),
    "suppress_errors": Setting("suppress_errors"),
    "automatic_dynamic_shapes": Setting("automatic_dynamic"),
    "skip_nnmodule_hook_guards": Setting("guard_module_hooks", inverted=True),
    "compiled_autograd": Setting("compiled_autograd"),
}

# What Kiln always does, and what programs may change all the same.
DYNAMO_VALUES: dict[str, Any] = {
    "inline_inbuilt_nn_modules": True,
    "guard_nn_modules": True,
    "raise_on_ctx_manager_usage": True,
    "assume_static_by_default": True,
    "traceable_tensor_subclasses": set(),
    "accumulated_cache_size_limit": 256,
    "dynamic_shapes": True,
    "_custom_ops_profile": None,
}

dynamo_config = ConfigModule("torch._dynamo.config", DYNAMO_SETTINGS, DYNAMO_VALUES)
inductor_config = ConfigModule("torch._inductor.config", {}, {})
# Functions of torch's file that torch's own tracer and passes call, from 2.15 on.
vars(inductor_config)["effective_provenance_tracking_level"] = lambda: 0
functorch_config = ConfigModule("torch._functorch.config", {}, {}, behind=torch_compiler.functorch_config())
