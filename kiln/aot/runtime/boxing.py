"""Boxed calls: a compiled graph takes one list of arguments and empties it, so that values die at their last use."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
import torch.fx
from torch.fx.graph import CodeGen

from ..._native import OperatorProgram
from ...platform.fx_graphs import function_name_of
from ...program.graph import fix_names
from ...program.graph_modules import module_behind
from .operator_programs import program_of

Boxed = Callable[[list[Any]], Any]


class BoxedCodeGen(CodeGen):
    """Writes ``forward(self, arguments)`` that takes its arguments out of a list."""

    def gen_fn_def(self, free_vars: list[str], maybe_return_annotation: str, **extra: Any) -> str:
        names = [name.split(":")[0].strip() for name in free_vars if name != "self"]
        lines = [f"def {function_name_of(self)}(self, arguments){maybe_return_annotation}:"]
        if names:
            lines.append(f"    {', '.join(names)}, = arguments")
        lines.append("    arguments.clear()")
        return "\n".join(lines)


def boxed(compiled: Callable[..., Any]) -> Boxed:
    """A compiler's result as a function of one list."""
    if is_boxed(compiled):
        return compiled
    module = module_behind(compiled)
    if module is not None:
        return boxed_graph(module)
    return lambda arguments: compiled(*arguments)


def is_boxed(compiled: Callable[..., Any]) -> bool:
    """Whether it takes one list: the ecosystem marks such callables with an attribute."""
    return getattr(compiled, "_boxed_call", False) or isinstance(compiled, OperatorProgram)


def mark_boxed(function: Boxed) -> Boxed:
    setattr(function, "_boxed_call", True)  # noqa: B010  no attribute of functions
    return function


def written_inputs(compiled: Boxed) -> Collection[int]:
    """The results that are inputs with their new contents: a compiler's program may write into inputs itself."""
    found: Collection[int] = getattr(compiled, "written_inputs", ())
    return found


def boxed_graph(module: torch.fx.GraphModule) -> Boxed:
    """A graph run operation by operation: natively, or as Python text where that cannot be."""
    text: list[Boxed] = []

    def otherwise(arguments: list[Any]) -> Any:
        if not text:
            text.append(boxed_text(module))
        return text[0](arguments)

    return program_of(module, otherwise) or otherwise


def boxed_text(module: torch.fx.GraphModule) -> Boxed:
    graph = torch.fx.Graph()
    output = graph.graph_copy(module.graph, {})
    graph.output(output)
    graph.set_codegen(BoxedCodeGen())
    made: Boxed = fix_names(torch.fx.GraphModule(module, graph, type(module).__name__)).forward
    return made
