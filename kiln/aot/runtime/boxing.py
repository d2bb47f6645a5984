"""Calling compiled graphs: one list of arguments, emptied by the callee, so that values die at their last use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx
from torch.fx.graph import CodeGen

from ..._native import OperatorProgram
from ...program.graph import fix_names
from ...program.graph_modules import module_behind
from .operator_programs import program_of

Boxed = Callable[[list[Any]], Any]


class BoxedCodeGen(CodeGen):
    """Writes ``forward(self, arguments)`` that takes its arguments out of a list."""

    def gen_fn_def(self, free_vars: list[str], maybe_return_annotation: str, **extra: Any) -> str:
        names = [name.split(":")[0].strip() for name in free_vars if name != "self"]
        lines = [f"def {self._func_name}(self, arguments){maybe_return_annotation}:"]
        if names:
            lines.append(f"    {', '.join(names)}, = arguments")
        lines.append("    arguments.clear()")
        return "\n".join(lines)


def boxed(compiled: Callable[..., Any]) -> Boxed:
    """A compiler's result as a function of one list."""
    if getattr(compiled, "_boxed_call", False) or isinstance(compiled, OperatorProgram):
        return compiled
    module = module_behind(compiled)
    if module is not None:
        return boxed_graph(module)
    return lambda arguments: compiled(*arguments)


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
    return fix_names(torch.fx.GraphModule(module, graph, type(module).__name__)).forward
