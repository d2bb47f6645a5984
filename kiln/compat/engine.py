"""``torch._dynamo.compiled_autograd``: Kiln's engine under torch's names, with torch's loggers."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from .. import compiled_autograd
from ..engine.trace.recorder import Recorder
from ..engine.trace.walk_sizes import WalkSizes
from ..platform.torch_compiler import artifact_logger
from ..platform.torch_dispatch import current_dispatch_mode
from ..program import accumulation
from ..program.consumed_lists import set_locals_to_steal
from ..program.shapes.fake_tensors import make_mode
from ..report import engine_events
from .dynamo import check_accepted
from .standins import Live


def enable(compiler_fn: Any, dynamic: bool = True, **accepted: Any) -> compiled_autograd.enable:
    """``compiled_autograd.enable``, and ``_enable`` in later releases; changing sizes become symbolic in any case."""
    accepted.pop("ignore_active_disable_ctx", None)  # the innermost block counts
    check_accepted("torch._dynamo.compiled_autograd.enable", accepted)
    return compiled_autograd.enable(compiler_fn)


# -- logs -----------------------------------------------------------------------------------------------------------

MODULE, VERBOSE = "torch._dynamo.compiled_autograd", "compiled_autograd_verbose"


@functools.cache
def logger(artefact: str) -> logging.Logger:
    return artifact_logger(MODULE, artefact)


class Logs:
    """Passes on to ``torch._logging``: graphs to ``compiled_autograd``, everything to ``compiled_autograd_verbose``."""

    def is_interested(self) -> bool:
        return any(logger(name).isEnabledFor(logging.DEBUG) for name in ("compiled_autograd", VERBOSE))

    def receive(self, kind: str, text: str) -> None:
        if kind == "graph":
            logger("compiled_autograd").debug("%s", text)
        logger(VERBOSE).debug("%s", text)


_logs = Logs()


def start() -> None:
    engine_events.listeners.append(_logs)


def stop() -> None:
    if _logs in engine_events.listeners:
        engine_events.listeners.remove(_logs)


# -- a graph written by hand ----------------------------------------------------------------------------------------


class Accumulate:
    """``torch.ops.inductor.accumulate_grad_``: adds to ``.grad``, in a graph written by hand or at once.

    Torch's operator has got a third argument since; calls with that are torch's.
    """

    def __init__(self, own: Any) -> None:
        self.own = own

    def __call__(self, variable: torch.Tensor, *gradients: Any) -> Any:
        if len(gradients) != 1:
            return self.own(variable, *gradients)
        mode = current_dispatch_mode()
        if isinstance(mode, Recorder):
            mode.emit(accumulation.add_to_grad, (*mode.nodes_of((variable, *gradients)), False), {}, None)
        else:
            accumulation.add_to_grad(variable, gradients[0], False)
        return None

    @property
    def default(self) -> Accumulate:
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self.own, name)


class AutogradCompilerInstance:
    """``compiled_autograd.AutogradCompilerInstance``: what is done between its two calls becomes a backward graph."""

    def __init__(self, compiler_fn: Callable[[torch.fx.GraphModule], Any]) -> None:
        self.compiler_fn = compiler_fn
        self.block = contextlib.ExitStack()

    def begin_capture(self, inputs: Sequence[torch.Tensor], sizes: Sequence[int]) -> tuple[list[Any], list[Any]]:
        """Fakes of the inputs, and symbols for the sizes. All that runs from here on is recorded."""
        numbers = WalkSizes(sizes, frozenset(range(len(sizes))))
        mode = make_mode(shape_env=numbers.environment)
        fakes = [mode.from_tensor(tensor, static_shapes=True) for tensor in inputs]
        self.recorder = Recorder()
        self.block.enter_context(torch.no_grad())
        self.block.enter_context(mode)
        self.block.enter_context(self.recorder)
        for place, number in enumerate(numbers.symbols()):
            self.recorder.numbers.add_input(number, self.recorder.item("sizes", place, number))
        for place, fake in enumerate(fakes):
            self.recorder.bind(fake, self.recorder.item("inputs", place, fake))
        return fakes, numbers.values

    def end_capture(self, outputs: Any) -> tuple[Callable[..., Any], Any]:
        """How to call the compiled graph, and the compiled graph."""
        with self.block:
            graph = self.recorder.finish(outputs if isinstance(outputs, (tuple, list)) else [outputs])
        module = torch.fx.GraphModule(torch.nn.Module(), graph, "CompiledAutograd")
        set_locals_to_steal(module, ["inputs"])
        return call, self.compiler_fn(module)


def call(compiled_fn: Callable[..., Any], inputs: Any, sizes: Any, hooks: Any) -> Any:
    """Run a compiled graph."""
    return compiled_fn(inputs, sizes, hooks)


ROWS: dict[str, Any] = {
    "enable": enable,
    "_enable": enable,
    "disable": compiled_autograd.disable,
    "_disable": compiled_autograd.disable,
    "reset": compiled_autograd.reset,
    "AutogradCompilerInstance": AutogradCompilerInstance,
    "compiled_autograd_enabled": Live(compiled_autograd.enabled),
    "in_compiled_autograd_region": False,  # hooks see what they see in eager
}
