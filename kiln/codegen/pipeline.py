"""The stages of a compilation, for a graph that is not in the disk cache.

Lowering, scheduling, LLVM IR text, object code, memory plan, native program; then the program is stored.
"""

from __future__ import annotations

import torch
import torch.fx

from ..loops import ir
from ..lower import ops  # noqa: F401  (the table of lowerings is filled by import)
from ..lower.lowering import CannotLower, Lowering
from ..lower.schedule.memory_plan import plan_memory
from ..lower.schedule.scheduling import schedule
from ..program import graph_meta
from ..report import events
from ..report.stages import Stage, stage
from ..target.native_program import Boxed, assemble
from ..target.program_text import program_text
from ..target.target import Target
from . import program_cache
from .inspection import Generated
from .program_description import Describer


def compile_lowered(
    module: torch.fx.GraphModule, target: Target, otherwise: Boxed, key: str | None = None, check: bool = False
) -> Boxed:
    """The program of a graph for a target; it is stored under the key. Raises `CannotLower` for a graph that only
    ATen can run. ``check``: the program compares its kernels with eager as it runs."""
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
            code = target.compile(scheduled.kernels)
            if record is not None:
                record.sizes["bytes"] = sum(map(len, code.images))
        done.append(record)
        with stage("memory plan and program") as record:
            described = Describer(scheduled, plan_memory(scheduled, graph_meta.changed_inputs(module)), target)
            data = described.run()
            loaded = target.load(code)
            program = assemble(data, loaded.handles, described.constants, otherwise, loaded.keep)
        done.append(record)
        with stage("disk cache") as record:
            program_cache.store(key, data, code)
        done.append(record)
        if events.is_asked_about_code():
            times = {each.name: each.seconds for each in done if each is not None}
            events.generated(Generated.of(module, lowered, scheduled, target, times, program_text(data)))
        if check:
            from .checked_program import CheckedProgram

            return CheckedProgram(module, lowering, scheduled, target, loaded, otherwise)
        return program
    except CannotLower as reason:
        program_cache.store_eager(key, str(reason))
        raise
    finally:
        ir.clear_interned()
