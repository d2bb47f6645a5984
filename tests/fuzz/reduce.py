"""Make a failing program small: drop statements, unwrap blocks, replace expressions, while it fails in the same way."""

from __future__ import annotations

import ast
import copy
import time
import warnings
from collections.abc import Callable, Iterator

StillFails = Callable[[str], bool]


def reduce(source: str, still_fails: StillFails, *, seconds: float = 60.0) -> str:
    """The smallest program found in the given time that still fails."""
    deadline = time.monotonic() + seconds
    best = ast.parse(source)
    improved = True
    while improved and time.monotonic() < deadline:
        improved = False
        position = 0
        while time.monotonic() < deadline:
            candidate = _variant(best, position)
            if candidate is None:
                break
            if _works(candidate, still_fails):
                best, improved = candidate, True  # the same position now holds the next thing to try
            else:
                position += 1
    return ast.unparse(best)


def _works(tree: ast.Module, still_fails: StillFails) -> bool:
    try:
        text = ast.unparse(tree)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            compile(text, "<reduced>", "exec")
    except (SyntaxError, ValueError):
        return False
    return still_fails(text)


def _variant(tree: ast.Module, position: int) -> ast.Module | None:
    """A copy of the tree with its change number `position` made; None when there are no more changes."""
    fresh = copy.deepcopy(tree)
    for number, change in enumerate(_changes(fresh)):
        if number == position:
            change()
            return ast.fix_missing_locations(fresh)
    return None


def _changes(tree: ast.Module) -> Iterator[Callable[[], None]]:
    """All ways to make a tree smaller by one step, the big steps first."""
    nodes = list(ast.walk(tree))
    for node in nodes:
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                yield from _block_changes(block, name)
    for node in nodes:
        if not isinstance(node, (ast.JoinedStr, ast.FormattedValue, ast.MatchValue)):
            yield from _expression_changes(node)


def _block_changes(block: list[ast.AST], name: str) -> Iterator[Callable[[], None]]:
    needs_one = name in ("body", "cases")
    for start, length in _spans(len(block)):
        chosen = block[start : start + length]
        if all(isinstance(item, ast.Pass) for item in chosen) and len(block) == length:
            continue
        yield lambda start=start, length=length: _remove(block, start, length, needs_one)
    for index, statement in enumerate(block):
        inner = getattr(statement, "body", None)
        if isinstance(inner, list) and name not in ("handlers", "cases") and not isinstance(statement, _DEFINITIONS):
            yield lambda index=index, inner=inner: block.__setitem__(slice(index, index + 1), inner)


_DEFINITIONS = (ast.FunctionDef, ast.ClassDef, ast.Lambda)


def _spans(count: int) -> Iterator[tuple[int, int]]:
    length = count
    while length >= 1:
        yield from ((start, length) for start in range(0, count - length + 1, length))
        length //= 2


def _remove(block: list[ast.AST], start: int, length: int, needs_one: bool) -> None:
    del block[start : start + length]
    if needs_one and not block:
        block.append(ast.Pass())


def _expression_changes(node: ast.AST) -> Iterator[Callable[[], None]]:
    for name, value in ast.iter_fields(node):
        if isinstance(value, ast.expr) and isinstance(getattr(value, "ctx", ast.Load()), ast.Load):
            for smaller in _smaller(value):
                yield lambda name=name, smaller=smaller: setattr(node, name, smaller)
        elif isinstance(value, list) and value and all(isinstance(item, ast.expr) for item in value):
            for index, item in enumerate(value):
                for smaller in _smaller(item):
                    yield lambda value=value, index=index, smaller=smaller: value.__setitem__(index, smaller)


def _smaller(expression: ast.expr) -> list[ast.expr]:
    """What may stand in an expression's place: one of its parts, or a plain constant."""
    if isinstance(expression, (ast.Constant, ast.Name, ast.Starred)):
        return []
    parts = [part for part in ast.iter_child_nodes(expression) if isinstance(part, ast.expr)]
    parts = [part for part in parts if not isinstance(part, (ast.Starred, ast.Slice))]
    return [*parts, ast.Constant(0)]
