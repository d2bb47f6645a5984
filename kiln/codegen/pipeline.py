"""The stages of a compilation, for a graph that is not in the disk cache.

Lowering, scheduling, LLVM IR text, object code, memory plan, native program; then the program is stored.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.fx

from ..loops import ir
from ..loops.kernel import Kernel
from ..loops.steps import Scheduled
from ..lower import ops  # noqa: F401  (the table of lowerings is filled by import)
from ..lower.lowering import CannotLower, Lowering
from ..lower.schedule.memory_plan import plan_memory
from ..lower.schedule.scheduling import schedule
from ..program import graph_meta
from ..report import events
from ..report.stages import Stage, stage
from ..target.cpu import jit
from ..target.cpu.emit.llvm_module import emit_module
from ..target.native_program import Boxed, assemble
from ..target.program_text import program_text
from . import program_cache
from .inspection import Generated
from .program_description import Describer

KERNELS_OF_A_MODULE = 4  # so that two threads share the modules; fewer repeat more functions that kernels share


def compile_lowered(
    module: torch.fx.GraphModule, otherwise: Boxed, key: str | None = None, check: bool = False
) -> Boxed:
    """The program of a graph; it is stored under the key. Raises `CannotLower` for a graph that only ATen can run.
    ``check``: the program compares its kernels with eager as it runs."""
    done: list[Stage | None] = []
    try:
        with stage("lowering") as record:
            lowering = Lowering(module)
            lowered = lowering.run()
            if record is not None:
                record.sizes["writes and calls"] = len(lowered.items)
        done.append(record)
        with stage("fusion and loops") as record:
            scheduled = schedule(lowered)
            if record is not None:
                record.sizes["kernels"] = len(scheduled.kernels)
                record.sizes["calls of ATen"] = len(scheduled.called)
        done.append(record)
        with stage("LLVM") as record:
            objects = jit.compile_objects(texts_of(scheduled))
            if record is not None:
                record.sizes["bytes"] = sum(map(len, objects))
        done.append(record)
        with stage("memory plan and program") as record:
            described = Describer(scheduled, plan_memory(scheduled, graph_meta.changed_inputs(module)))
            data = described.run()
            code = [jit.load_object(one) for one in objects]
            names = [(number // KERNELS_OF_A_MODULE, name_of(number)) for number in range(len(scheduled.kernels))]
            addresses = [code[place].address(name) for place, name in names]
            program = assemble(data, addresses, described.constants, otherwise, code)
        done.append(record)
        with stage("disk cache") as record:
            program_cache.store(key, data, names, objects)
        done.append(record)
        if events.is_asked_about_code():
            times = {each.name: each.seconds for each in done if each is not None}
            events.generated(Generated.of(module, lowered, scheduled, times, program_text(data)))
        if check:
            from .checked_program import CheckedProgram

            places = dict(zip(scheduled.kernels, addresses, strict=True))
            return CheckedProgram(module, lowering, scheduled, places, code, otherwise)
        return program
    except CannotLower as reason:
        program_cache.store_eager(key, str(reason))
        raise
    finally:
        ir.clear_interned()


def name_of(number: int) -> str:
    return f"kernel{number}"


def texts_of(scheduled: Scheduled) -> Iterator[str]:
    """The kernels as LLVM modules. It is a generator: a module is compiled while the text of the next is written."""
    kernels: list[tuple[str, Kernel]] = [(name_of(number), kernel) for number, kernel in enumerate(scheduled.kernels)]
    for start in range(0, len(kernels), KERNELS_OF_A_MODULE):
        yield emit_module(dict(kernels[start : start + KERNELS_OF_A_MODULE]))
