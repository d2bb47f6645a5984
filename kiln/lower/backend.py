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
from . import ir, ops  # noqa: F401  (the table of lowerings is filled by import)
from .kernel import Kernel
from .lowering import CannotLower, Lowering
from .schedule import Scheduled, schedule


def compile_captured_graph(module: torch.fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
    """A captured graph, differentiated ahead of time, both halves compiled."""
    return compile_captured(module, examples, Compilers(compile_graph, compile_graph, compile_graph))


def compile_graph(module: torch.fx.GraphModule, examples: Sequence[Any] = ()) -> Boxed:
    """A functional graph as a program: a function of a list that it empties."""
    try:
        return compile_lowered(module)
    except CannotLower as reason:
        events.count("codegen eager", str(reason))
    except Exception as error:
        if config.raise_internal_errors:
            raise
        events.count("codegen eager", raised_text(error))
    finally:
        ir.forget()
    return boxed_graph(module)


def compile_lowered(module: torch.fx.GraphModule) -> Boxed:
    from .program import build

    scheduled = schedule(Lowering(module).run())
    code = machine_code(scheduled)
    return build(scheduled, code, Otherwise(module))


def machine_code(scheduled: Scheduled) -> dict[Kernel, int]:
    """The addresses of the kernels' functions. The modules that hold them live as long as the kernels."""
    from ..target.cpu.emit import emit_module
    from ..target.cpu.jit import compile_module

    kernels = {f"kernel{number}": kernel for number, kernel in enumerate(scheduled.kernels)}
    if not kernels:
        return {}
    module = compile_module(emit_module(kernels))
    scheduled.code = module
    return {kernel: module.address(name) for name, kernel in kernels.items()}


class Otherwise:
    """The graph run operator by operator, for inputs of classes of their own; made when it is needed."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        self.module, self.run = module, None

    def __call__(self, arguments: list[Any]) -> Any:
        if self.run is None:
            self.run = boxed_graph(self.module)
        return self.run(arguments)
