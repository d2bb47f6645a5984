"""Names of torch's compiler that Kiln has no counterpart of: they can be imported, and raise when they are used.

Which names there are is read from the text of torch's own source files, which are never imported: so a name that torch
does not have is missing here as well, what is plain data there (a list of device types) is the same data here, and what
a file of torch's takes from elsewhere is taken from there.
"""

from __future__ import annotations

import ast
import functools
import importlib
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from .. import exc
from . import is_installed

SITE = os.path.dirname(os.path.dirname(os.path.abspath(torch.__file__)))

# What is to come, and what to do until then. A row of `names.py` that says ``later("codegen")`` becomes the thing.
TOPICS = {
    "codegen": ("code generation", "leave backend= out, or use backend='eager'"),
}
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


def real_thing(name: str, topic: str | None = None) -> Any:
    """What a missing name is: an error, or, for files of torch's that have kept it after Kiln went, torch's own."""
    if is_installed():
        raise not_available(name, topic)
    module, _, own = name.rpartition(".")
    return getattr(importlib.import_module(module), own)


class Missing:
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

    def __repr__(self) -> str:
        return f"<{self._name}, which Kiln does not have>"


class MissingType(type):
    """The class of classes that Kiln has no counterpart of: they can be subclassed and asked about, not made."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return real_thing(cls._missing_name)(*args, **kwargs)

    def __getattr__(cls, name: str) -> Any:
        if name.startswith(("__", "_missing")):
            raise AttributeError(name)
        return getattr(real_thing(cls._missing_name), name)

    def __instancecheck__(cls, instance: Any) -> bool:
        if is_installed() or "_missing_name" not in vars(cls):
            return super().__instancecheck__(instance)
        return isinstance(instance, real_thing(cls._missing_name))


def later(topic: str) -> Any:
    """A row for a name that comes with a topic."""
    return functools.partial(Missing, topic=topic)


def missing_class(name: str, is_error: bool = False) -> type:
    """A stand-in for a class; one for an exception can be named in ``except``."""
    module, _, own = name.rpartition(".")
    names = {"__module__": module, "__qualname__": own, "_missing_name": name}
    if is_error:
        return type(own, (Exception,), names)
    return MissingType(own, (), {**names, "__class_getitem__": classmethod(lambda cls, item: cls)})


# -- reading torch's source -----------------------------------------------------------------------------------------


@dataclass
class Outline:
    """What a source file defines at its top level, unevaluated."""

    classes: dict[str, ast.ClassDef]
    functions: set[str]
    values: dict[str, ast.expr | None]
    imports: dict[str, tuple[str, str]]  # name -> (module, name in it or "")


def source_file(name: str) -> str | None:
    """Where torch's (or functorch's) installation has a module of this name."""
    path = os.path.join(SITE, *name.split("."))
    for candidate in (os.path.join(path, "__init__.py"), path + ".py"):
        if os.path.isfile(candidate):
            return candidate
    return None


def is_package(name: str) -> bool:
    return (source_file(name) or "").endswith("__init__.py")


@functools.cache
def outline(name: str) -> Outline:
    """The top level of a module of torch's, from its text."""
    found = Outline({}, set(), {}, {})
    path = source_file(name)
    if path is None:
        return found
    with open(path, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    package = name if is_package(name) else name.rpartition(".")[0]
    for statement in _top_level(tree.body):
        _note(found, statement, package)
    return found


def _top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        if isinstance(statement, ast.If):
            yield from _top_level([*statement.body, *statement.orelse])
        elif isinstance(statement, ast.Try):
            yield from _top_level([*statement.body, *(each for handler in statement.handlers for each in handler.body)])
        elif isinstance(statement, ast.With):
            yield from _top_level(statement.body)
        else:
            yield statement


def _note(found: Outline, statement: ast.stmt, package: str) -> None:
    if isinstance(statement, ast.ClassDef):
        found.classes[statement.name] = statement
    elif isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
        found.functions.add(statement.name)
    elif isinstance(statement, ast.Assign):
        for target in statement.targets:
            for each in target.elts if isinstance(target, ast.Tuple) else [target]:
                if isinstance(each, ast.Name):
                    found.values[each.id] = None if isinstance(target, ast.Tuple) else statement.value
    elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        found.values[statement.target.id] = statement.value
    elif isinstance(statement, ast.Import):
        for item in statement.names:
            whole = item.name if item.asname else item.name.split(".")[0]
            found.imports[item.asname or whole] = (whole, "")
    elif isinstance(statement, ast.ImportFrom):
        parents = package.split(".")
        base = ".".join(parents[: len(parents) - statement.level + 1]) if statement.level else ""
        module = ".".join(part for part in (base, statement.module) if part)
        for item in statement.names:
            found.imports[item.asname or item.name] = (module, item.name)


_NOTHING: Any = object()


def from_outline(module: str, name: str) -> Any:
    """What to answer for a name that torch's module defines; `_NOTHING` where it does not."""
    found = outline(module)
    whole = f"{module}.{name}"
    if name in found.classes:
        bases = [ast.unparse(base) for base in found.classes[name].bases]
        return missing_class(whole, any(base.endswith(("Error", "Exception", "Failed")) for base in bases))
    if name in found.functions:
        return Missing(whole)
    if name in found.values:
        if name == "log":
            return logging.getLogger(module)
        value = evaluated(found.values[name])
        return Missing(whole) if value is _NOTHING else value
    if name in found.imports:
        return _imported(*found.imports[name], whole)
    return _NOTHING


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
        return Missing(whole)


def evaluated(value: ast.expr | None) -> Any:
    """The value of an expression that is plain data, or that asks the environment; else `_NOTHING`."""
    if value is None:
        return _NOTHING
    if isinstance(value, ast.Call) and ast.unparse(value.func).endswith("Config"):  # torch's settings with a default
        return next((evaluated(item.value) for item in value.keywords if item.arg == "default"), _NOTHING)
    try:
        return ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError):
        pass
    if not all(_asks_environment(node) for node in ast.walk(value)) or "os." not in ast.unparse(value):
        return _NOTHING
    try:
        return eval(compile(ast.Expression(value), "<setting>", "eval"), {"__builtins__": {}, "os": os, "int": int})
    except Exception:
        return _NOTHING


def _asks_environment(node: ast.AST) -> bool:
    """Whether a part of an expression is harmless: ``os.environ.get("NAME", "0").lower() == "1"``."""
    if isinstance(node, ast.Attribute):
        return node.attr in ("environ", "get", "getenv", "lower", "upper", "strip")
    return isinstance(node, _HARMLESS)


_HARMLESS: tuple[type[ast.AST], ...] = (
    ast.Call,
    ast.Name,
    ast.Constant,
    ast.Compare,
    ast.cmpop,
    ast.BoolOp,
    ast.boolop,
    ast.UnaryOp,
)
_HARMLESS += (ast.unaryop, ast.Load, ast.IfExp)
