"""The backend ``kiln``: graphs to machine code. What cannot be lowered as a whole runs operator by operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from ..aot.boxing import Boxed, boxed_graph
from ..aot.compiling import Compilers
from ..aot.lists import compile_captured
from ..config import config
from ..report import events
from ..report.events import raised_text
from . import stored


def compile_captured_graph(module: torch.fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
    """A captured graph, differentiated ahead of time, both halves compiled."""
    return compile_captured(module, examples, Compilers(compile_graph, compile_graph, compile_graph))


def compile_graph(module: torch.fx.GraphModule, examples: Sequence[Any] = ()) -> Boxed:
    """A functional graph as a program: a function of a list that it empties."""
    otherwise = Otherwise(module)
    key = stored.key_of(module)
    found = stored.load(key, module, otherwise)
    if isinstance(found, stored.Eager):
        events.count("codegen eager", found.reason)
    elif found is not None:
        return found
    else:
        from .compiling import CannotLower, compile_lowered  # which a program that is stored does without

        try:
            return compile_lowered(module, otherwise, key)
        except CannotLower as reason:
            events.count("codegen eager", str(reason))
        except Exception as error:
            if config.raise_internal_errors:
                raise
            events.count("codegen eager", raised_text(error))
    return boxed_graph(module)


class Otherwise:
    """The graph run operator by operator, for inputs of classes of their own; made when it is needed."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        self.module, self.run = module, None

    def __call__(self, arguments: list[Any]) -> Any:
        if self.run is None:
            self.run = boxed_graph(self.module)
        return self.run(arguments)
