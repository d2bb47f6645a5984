"""Programs for GPUs run on the CPU: kernels as `cuda_on_cpu` runs them, calls of ATen by ATen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch

from kiln.loops.reference import Reference
from kiln.loops.steps import Launch, Scheduled
from tests.support.cuda_programs import scheduled_for_gpu
from tests.target.cuda_on_cpu import run_as_on_gpu


class OnCPU(Reference):
    """The reference interpreter with the code of kernels instead of their meaning."""

    def launch(self, launch: Launch) -> None:
        given = {place: self.elements(buffer) for place, buffer in launch.actual.items()}
        sizes = zip(launch.kernel.sizes, launch.sizes, strict=True)
        symbols = {symbol: self.number(size) for symbol, size in sizes if isinstance(symbol, sympy.Symbol)}
        left = run_as_on_gpu(launch.kernel, given, symbols)
        for output in launch.kernel.outputs:
            given[output.target.buffer].copy_(left[output.target.buffer])


def run_on_cpu(scheduled: Scheduled, inputs: Sequence[Any]) -> list[Any]:
    return OnCPU(scheduled, inputs).run()


def compile_for_gpu_on_cpu(module: torch.fx.GraphModule, examples: Any = ()) -> Callable[..., Any]:
    """A compiler of graphs of CPU tensors: what a GPU would run for them runs on the CPU."""
    scheduled, constants = scheduled_for_gpu(module)
    return lambda *inputs: run_on_cpu(scheduled, [*inputs, *constants])
