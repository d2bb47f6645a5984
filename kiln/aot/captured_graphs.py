"""Captured graphs, some of which take lists of tensors and empty them: compiled as graphs of tensors.

What is compiled drops an input at its last use, as the captured graph does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from ..program.consumed_lists import list_places, spread
from .backend import compile_or_run, try_compile
from .compilation import Compilers, compile_boxed
from .runtime.boxing import Boxed, boxed_graph
from .trace import autocast_state


def compile_captured(module: torch.fx.GraphModule, examples: Sequence[Any], compilers: Compilers) -> Callable[..., Any]:
    """A captured graph, compiled."""
    lists = list_places(module)
    if not lists:
        return compile_or_run(module, examples, compilers)
    flat, inputs, places = spread(module, examples)
    return taking_lists(try_compile(flat, inputs, compilers, compile_boxed) or boxed_graph(flat), lists, places)


def run_captured(module: torch.fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any] | None:
    """A captured graph that takes lists, run op by op without Python between the operators; None: not this one."""
    lists = list_places(module)
    if not lists or torch.is_grad_enabled() or autocast_state.is_on():
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
