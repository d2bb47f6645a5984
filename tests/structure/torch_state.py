"""A snapshot of what a process could have changed in torch and in Python, and the differences between two.

Taken of: the namespaces of torch's modules and of their classes and functions, with the containers in them; kernels in
Python of operators; hooks, filters, levels and switches of the interpreter and of torch.
"""

from __future__ import annotations

import atexit
import builtins
import functools
import gc
import logging
import sys
import threading
import types
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch._decomp import global_decomposition_table
from torch._ops import OpOverload

Facts = dict[str, Any]

IGNORED = frozenset(["__builtins__", "__warningregistry__", "__doc__", "__loader__", "__spec__", "__cached__"])
EFFECTS = "_side_effectful_functions"  # functions that `torch.fx.node.has_side_effect` was told of, Kiln's among them
SWITCHES = (
    *("is_grad_enabled", "is_inference_mode_enabled", "get_default_dtype", "get_num_threads", "is_warn_always_enabled"),
    *("are_deterministic_algorithms_enabled", "is_autocast_cache_enabled", "is_anomaly_enabled"),
)


class Snapshot:
    """`owners`: modules, classes, functions and operators, by identity, with their facts."""

    def __init__(self) -> None:
        self.owners: dict[int, tuple[str, object, Facts]] = {}
        for name, module in sorted(sys.modules.items()):
            if isinstance(module, types.ModuleType) and (name == "torch" or name.startswith("torch.")):
                self.add(name, module, vars(module))
        self.add("builtins", builtins, vars(builtins))
        for operator in [each for each in gc.get_objects() if type(each) is OpOverload]:
            self.owners[id(operator)] = (str(operator), operator, {"py_kernels": dict(operator.py_kernels)})
        self.settings: Facts = {
            name: value for part in (of_registries(), of_python(), of_torch()) for name, value in part
        }

    def add(self, name: str, owner: object, namespace: Mapping[str, Any]) -> None:
        """A namespace, and the classes and functions in it."""
        if id(owner) in self.owners:
            return
        facts: Facts = {}
        self.owners[id(owner)] = (name, owner, facts)
        for key, value in list(namespace.items()):
            if key in IGNORED or isinstance(value, types.ModuleType):
                continue
            facts[key] = without_kiln(value) if key == EFFECTS else copied(value)
            if isinstance(value, type):
                if str(vars(value).get("__module__", "")).startswith("torch"):
                    self.add(f"{name}.{key}", value, vars(value))
            else:
                self.add_function(f"{name}.{key}", value)

    def add_function(self, name: str, function: object) -> None:
        """A function's code and attributes, and the functions that it wraps."""
        if isinstance(function, (staticmethod, classmethod)):
            function = function.__func__
        if not isinstance(function, types.FunctionType) or id(function) in self.owners:
            return
        facts: Facts = {"__code__": function.__code__, "__dict__": dict(vars(function))}
        self.owners[id(function)] = (name, function, facts)
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                facts[f"<{variable}>"] = copied(cell.cell_contents)
            except ValueError:
                continue
            self.add_function(f"{name}<{variable}>", cell.cell_contents)

    def differences(self, later: Snapshot) -> list[str]:
        """What has changed, and what of Kiln's there is in modules that were loaded meanwhile."""
        found = changed("", self.settings, later.settings)
        for key, (name, _, facts) in later.owners.items():
            if key in self.owners:
                found += changed(name, self.owners[key][2], facts)
            else:
                found += [f"{name}.{fact}: {shown(value)}" for fact, value in facts.items() if is_from_kiln(value)]
        return found


def changed(owner: str, before: Facts, after: Facts) -> list[str]:
    found = []
    for name in before.keys() | after.keys():
        old, new = before.get(name, ABSENT), after.get(name, ABSENT)
        if old is not new and not (type(old) is type(new) and same(old, new)):
            found.append(f"{owner}.{name}: {description(old, new)}".lstrip("."))
    return sorted(found)


ABSENT = type("Absent", (), {"__repr__": lambda self: "absent"})()


def same(old: Any, new: Any) -> bool:
    if isinstance(old, dict):
        return len(old) == len(new) and all(new.get(key, ABSENT) is value for key, value in old.items())
    if isinstance(old, list):
        return len(old) == len(new) and all(one is other for one, other in zip(old, new, strict=True))
    return type(old) in (int, float, str, bool, tuple, set, torch.dtype) and bool(old == new)


def description(old: Any, new: Any) -> str:
    """A change in words, with some of the items of a container that came, went or were replaced."""
    if type(old) is type(new) and isinstance(old, (dict, set)):
        parts = [
            key
            for key in [*old, *new]
            if key not in old or key not in new or (dict is type(old) and old[key] is not new[key])
        ]
        return f"{shown(old)} -> {shown(new)}: " + ", ".join(dict.fromkeys(repr(part)[:60] for part in parts[:5]))
    return f"{shown(old)} -> {shown(new)}"


def shown(value: Any) -> str:
    return f"{type(value).__name__} of {len(value)}" if isinstance(value, (dict, set, list)) else repr(value)[:200]


def copied(value: Any) -> Any:
    """The items that a container has now; anything else itself."""
    return type(value)(value) if type(value) in (dict, list, set) else value


def without_kiln(functions: set[Any]) -> set[Any]:
    return {function for function in functions if not is_from_kiln(function)}


def is_from_kiln(value: Any) -> bool:
    """Whether a function, a class or an item of a container is Kiln's."""
    if isinstance(value, (dict, list, set)):
        return any(is_from_kiln(item) for item in (value.values() if isinstance(value, dict) else value))
    if isinstance(value, functools.partial):
        value = value.func
    elif isinstance(value, (staticmethod, classmethod, types.MethodType)):
        value = value.__func__
    return isinstance(value, (type, types.FunctionType)) and str(value.__module__).split(".")[0] == "kiln"


# ---- settings --------------------------------------------------------------------------------------------------------


def of_registries() -> Iterator[tuple[str, Any]]:
    for kind, table in global_decomposition_table.items():
        yield f"decompositions {kind}", {str(operator): function for operator, function in table.items()}


def of_python() -> Iterator[tuple[str, Any]]:
    yield "sys.meta_path", tuple(getattr(each, "__qualname__", type(each).__qualname__) for each in sys.meta_path)
    yield "sys.path_hooks", list(sys.path_hooks)
    for name in ("excepthook", "unraisablehook", "displayhook", "breakpointhook"):
        yield f"sys.{name}", getattr(sys, name)
    yield "threading.excepthook", threading.excepthook
    yield "sys.getprofile()", sys.getprofile()
    yield "sys.gettrace()", sys.gettrace()
    yield "sys.getrecursionlimit()", sys.getrecursionlimit()
    yield "atexit", atexit._ncallbacks()
    yield "gc", (gc.isenabled(), *gc.get_threshold())
    yield "gc.callbacks", list(gc.callbacks)
    yield "warnings.filters", list(warnings.filters)
    yield "warnings.showwarning", warnings.showwarning
    for logger in [logging.root, *logging.root.manager.loggerDict.values()]:
        if isinstance(logger, logging.Logger) and logger.name.startswith(("torch", "root")):
            if logger.level or logger.disabled or logger.filters:
                yield f"logger {logger.name}", (logger.level, logger.disabled, *logger.filters)


def of_torch() -> Iterator[tuple[str, Any]]:
    """torch's switches, in this thread and in the process."""
    yield from ((f"torch.{name}()", getattr(torch, name)()) for name in SWITCHES)
    yield "torch function modes", torch._C._len_torch_function_stack()
    yield "torch dispatch modes", torch._C._len_torch_dispatch_stack()
    yield "saved tensor hooks", torch._C._autograd._top_saved_tensors_default_hooks(True)
