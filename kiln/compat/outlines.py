"""The top level of torch's source files, read from their text: nothing that Kiln stands in for is ever imported."""

from __future__ import annotations

import ast
import functools
import os
from collections.abc import Iterator
from typing import Any

import torch

from ..platform.light_dataclass import dataclass

SITE = os.path.dirname(os.path.dirname(os.path.abspath(torch.__file__)))
NOTHING: Any = object()  # no value


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


def evaluated(value: ast.expr | None) -> Any:
    """The value of an expression that is plain data, or that asks the environment; else `NOTHING`."""
    if value is None:
        return NOTHING
    if isinstance(value, ast.Call) and ast.unparse(value.func).endswith("Config"):  # torch's settings with a default
        return next((evaluated(item.value) for item in value.keywords if item.arg == "default"), NOTHING)
    try:
        return ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError):
        pass
    if not all(_asks_environment(node) for node in ast.walk(value)) or "os." not in ast.unparse(value):
        return NOTHING
    try:
        return eval(compile(ast.Expression(value), "<setting>", "eval"), {"__builtins__": {}, "os": os, "int": int})
    except Exception:
        return NOTHING


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
