"""Where a graph and its nodes come from in the user's program, and what compiled programs are called after it."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator
from typing import Any

import torch.fx

from ..exc import Location, innermost, is_library

FRAME = re.compile(r'\s*File "(?P<file>[^"]*)", line (?P<line>\d+), in (?P<function>\S.*)')

_given: dict[str, Iterator[int]] = {}  # names of programs, and the numbers of those that have the same


def stack_of(node: Any) -> list[Location]:
    """The lines of the user's program that a node comes from, from outside to inside."""
    lines = (getattr(node, "meta", {}).get("stack_trace") or "").splitlines()
    found = (FRAME.match(line) for line in lines)
    return [Location(match["file"], int(match["line"]), match["function"]) for match in found if match]


def line_of(node: Any) -> Location | None:
    """The user's own innermost line that a node comes from."""
    stack = stack_of(node)
    return stack[innermost(stack)] if stack else None


def begin_of(module: torch.fx.GraphModule) -> Location | None:
    """The line of the compiled function that a graph begins at."""
    for node in module.graph.nodes:
        if node.op == "call_function" and (stack := stack_of(node)):
            return next((place for place in stack if not is_library(place.file)), stack[-1])
    return None


def program_name(module: torch.fx.GraphModule, kind: str) -> str:
    """What the program of a graph is called in torch's profiler: ``kiln program forward f (<file>:7)``. Another
    program of that name is called ``… #2``."""
    place = begin_of(module)
    if place is not None:
        name = f"kiln program {kind} {place.function} ({os.path.basename(place.file)}:{place.line})"
    else:
        name = f"kiln program {kind} {operators_of(module)}"
    number = next(_given.setdefault(name, itertools.count(1)))
    return name if number == 1 else f"{name} #{number}"


def operators_of(module: torch.fx.GraphModule) -> str:
    """The first and the last operator of a graph that has no source."""
    called = [node for node in module.graph.nodes if node.op == "call_function"]
    names = [str(getattr(node.target, "__name__", node.target)).split(".")[0] for node in called]
    return " to ".join(dict.fromkeys([*names[:1], *names[-1:]])) or "without operators"
