"""Captured graphs that take lists of tensors and empty them: compiled as graphs of tensors, called with one list.

What is compiled lets go of an input at its last use, as the captured graph does: the run function, too, keeps of its
arguments only what it needs after the graph.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from ..program.consumed_lists import list_places, spread
from .backend import compile_or_run
from .runtime.boxing import Boxed, boxed, boxed_graph

if TYPE_CHECKING:
    from .compilation import Compilers

INPUT = re.compile(r"\bi\d+\b")
FORWARD = "= forward(["


def compile_captured(module: torch.fx.GraphModule, examples: Sequence[Any], compilers: Compilers) -> Callable[..., Any]:
    """A captured graph, compiled."""
    lists = list_places(module)
    if not lists:
        return compile_or_run(module, examples, compilers)
    flat, inputs, places = spread(module, examples)
    return taking_lists(consuming(compile_or_run(flat, inputs, compilers)), lists, places)


def run_captured(module: torch.fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any] | None:
    """A captured graph that takes lists, run op by op without Python between the operators; None: not this one."""
    lists = list_places(module)
    if not lists or torch.is_grad_enabled() or torch._C._is_any_autocast_enabled():
        return None
    flat, _, places = spread(module, examples)
    return taking_lists(boxed_graph(flat), lists, places)


def taking_lists(run: Boxed, lists: Sequence[int], places: Sequence[Any]) -> Callable[..., Any]:
    """A function of one list, called with lists that it empties, and other arguments."""

    def call(*arguments: Any) -> Any:
        taken = [arguments[place] if type(place) is int else arguments[place[0]][place[1]] for place in places]
        for place in lists:
            arguments[place].clear()
        return run(taken)

    return call


def consuming(compiled: Callable[..., Any]) -> Boxed:
    """A compiled program as a function of one list, which it empties."""
    text = getattr(compiled, "__kiln_text__", None)
    if text is None:
        return boxed(compiled)
    namespace = dict(compiled.__globals__)  # type: ignore[attr-defined]
    exec(consuming_text(text), namespace)
    made: Boxed = namespace["run"]
    return made


def consuming_text(text: str) -> str:
    """The text of a run function, changed to take a list and to let go of what the graph alone needs."""
    head, *lines = text.splitlines()
    names = INPUT.findall(head)
    place = next(number for number, line in enumerate(lines) if FORWARD in line)
    before, _, given = lines[place].partition(FORWARD)
    later = set(INPUT.findall("\n".join(lines[place + 1 :])))
    gone = [name for name in names if name not in later]
    indent = before[: len(before) - len(before.lstrip())]
    lines[place : place + 1] = [
        f"{indent}given = [{given.removesuffix(')')}",
        *([f"{indent}{' = '.join(gone)} = None"] if gone else []),
        f"{before}= forward(given)",
    ]
    taking = [f"    {', '.join(names)}, = arguments", "    arguments.clear()"] if names else []
    return "\n".join(["def run(arguments):", *taking, *lines, ""])
