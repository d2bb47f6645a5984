"""The stages of a compilation, for a graph that is not in the disk cache.

Lowering, scheduling, memory plan, LLVM IR text, object code, native program; then the program is stored.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
import torch.fx

from ..exc import DriverError
from ..loops import ir
from ..loops.steps import Lowered, Scheduled
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
from .disabled_kernels import disabled_nodes, nodes_of_disabled_kernels
from .embedding_gradients import add_to_embedding_gradients
from .inspection import Generated, MadeProgram
from .launch_errors import launcher_of
from .program_description import Describer
from .refused_kernels import RefusedNodes

MOST_ROUNDS = 12  # of lowering, where the target refuses kernels


def compile_lowered(
    module: torch.fx.GraphModule,
    target: Target,
    otherwise: Boxed,
    key: str | None = None,
    check: bool = False,
    disabled: Collection[str] = (),
    autotune: bool = False,
) -> Boxed:
    """The program of a graph for a target; it is stored under the key. Raises `CannotLower` for a graph that only
    ATen can run. ``check``: the program compares its kernels with eager as it runs. ``disabled``: what ATen is to run
    (disabled_kernels.py). ``autotune``: where libraries can be called in several ways, times decide."""
    done: list[Stage | None] = []
    target.prepare()
    try:
        if target.is_gpu and not check:
            with stage("library calls") as record:
                choose_calls(module, target, autotune)
            done.append(record)
        lowering, lowered, scheduled = lower_for(module, target, done, disabled)
        with stage("memory plan") as record:
            plan = plan_memory(scheduled, graph_meta.changed_inputs(module), target.is_gpu)
            target.arrange(plan.launches_together)
        done.append(record)
        with stage("LLVM") as record:
            code = target.compile(scheduled.kernels)
            if record is not None:
                record.sizes["bytes"] = sum(map(len, code.images))
        done.append(record)
        with stage("native program") as record:
            described = Describer(scheduled, plan, target)
            data = described.run()
            try:
                loaded = target.load(code)
            except DriverError:  # no GPU: what one would run can be looked at
                if events.is_asked_about_code():
                    shown = Generated.of(module, lowered, scheduled, target, times_of(done), program_text(data))
                    events.generated(shown)
                raise
            launcher = launcher_of(target, data, module)
            program = assemble(data, loaded.handles, described.constants, otherwise, loaded.keep, launcher)
        done.append(record)
        with stage("disk cache") as record:
            program_cache.store(key, data, code)
        done.append(record)
        if events.is_asked_about_code():
            made = MadeProgram(program, described.launching_steps, code, loaded)
            events.generated(Generated.of(module, lowered, scheduled, target, times_of(done), program_text(data), made))
        if check:
            from .checked_program import CheckedProgram

            return CheckedProgram(module, lowering, scheduled, target, loaded, otherwise)
        return program
    except CannotLower as reason:
        program_cache.store_eager(key, str(reason))
        raise
    finally:
        ir.clear_interned()


def times_of(done: list[Stage | None]) -> dict[str, float]:
    return {each.name: each.seconds for each in done if each is not None}


def choose_calls(module: torch.fx.GraphModule, target: Target, autotune: bool) -> None:
    """Rewrites the graph where another way to call libraries is chosen."""
    from .choices import rules  # noqa: F401  (the rules are registered by import)
    from .choices.alternatives import rewrite_calls
    from .choices.choose import measured_on, preferred
    from .choices.measuring import is_possible

    add_to_embedding_gradients(module)
    rewrite_calls(module, measured_on(target.device) if autotune and is_possible() else preferred)


def lower_for(
    module: torch.fx.GraphModule, target: Target, done: list[Stage | None], disabled: Collection[str] = ()
) -> tuple[Lowering, Lowered, Scheduled]:
    """The graph lowered and scheduled. What kernels compute that the target has no code for is left to ATen: the graph
    is lowered again, with calls of those nodes."""
    refused, named = disabled_nodes(module, disabled), disabled
    finder = RefusedNodes(target)
    for _ in range(MOST_ROUNDS):
        with stage("lowering") as record:
            lowering = Lowering(module, refused)
            lowered = lowering.run()
            if record is not None:
                record.sizes["writes and calls"] = len(lowered.items)
        done.append(record)
        with stage("fusion and loops") as record:
            scheduled = schedule(lowered, target.device.type)
            if record is not None:
                record.sizes["kernels"] = len(scheduled.kernels)
                record.sizes["calls of ATen"] = len(scheduled.called)
        done.append(record)
        more, named = nodes_of_disabled_kernels(scheduled, named), ()  # once: kernels are numbered anew then
        if not more and all(target.refusal(kernel) is None for kernel in scheduled.kernels):
            return lowering, lowered, scheduled
        more = more or finder.further(scheduled, refused)
        if not more:
            break
        refused |= more
    raise CannotLower("kernels that the target has no code for")
