"""The stages of a compilation, for a graph that is not in the disk cache.

Lowering, scheduling, memory plan, LLVM IR text, object code, native program; then the program is stored.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from typing import Any

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
from .inspection import Generated, MadeProgram
from .launch_errors import launcher_of
from .program_description import Describer
from .refused_kernels import RefusedNodes
from .rewrites.embedding_gradients import add_to_embedding_gradients

MOST_ROUNDS = 12  # of lowering, where the target refuses kernels


class BegunProgram:
    """The program of a graph for a target: `begin` lowers the graph, and where the target compiles aside its kernels
    are then being compiled; `finish` waits for them and gives the program.

    It is stored under the key. Both raise `CannotLower` for a graph that only ATen can run. ``check``: the program
    compares its kernels with eager as it runs. ``disabled``: what ATen is to run (disabled_kernels.py). ``autotune``:
    where libraries can be called in several ways, times decide.
    """

    def __init__(
        self,
        module: torch.fx.GraphModule,
        target: Target,
        otherwise: Boxed,
        key: str | None = None,
        check: bool = False,
        disabled: Collection[str] = (),
        autotune: bool = False,
    ) -> None:
        self.module, self.target, self.otherwise, self.key = module, target, otherwise, key
        self.check, self.disabled, self.autotune = check, disabled, autotune
        self.done: list[Stage | None] = []
        self.interned: dict[Any, ir.Expr] = {}

    def begin(self) -> None:
        module, target = self.module, self.target
        target.prepare()
        with self.refusals_stored(), ir.interned_in(self.interned):
            if target.is_gpu and not self.check:
                with stage("library calls") as record:
                    choose_calls(module, target, self.autotune)
                self.done.append(record)
            self.lowering, self.lowered, self.scheduled = lower_for(module, target, self.done, self.disabled)
            with stage("memory plan") as record:
                self.plan = plan_memory(self.scheduled, graph_meta.changed_inputs(module), target.is_gpu)
                target.arrange(self.plan.launches_together)
            self.done.append(record)
            with stage("LLVM IR") if target.is_gpu else contextlib.nullcontext() as record:
                self.code = target.begin(self.scheduled.kernels)
            self.done.append(record)

    def finish(self) -> Boxed:
        module, target, scheduled, done = self.module, self.target, self.scheduled, self.done
        with self.refusals_stored(), ir.interned_in(self.interned):
            with stage("LLVM") as record:
                code = self.code()
                if record is not None:
                    record.sizes["bytes"] = sum(map(len, code.images))
            done.append(record)
            with stage("native program") as record:
                described = Describer(scheduled, self.plan, target)
                data = described.run()
                try:
                    loaded = target.load(code)
                except DriverError:  # no GPU: what one would run can be looked at
                    if events.is_asked_about_code():
                        times, text = times_of(done), program_text(data)
                        events.generated(Generated.of(module, self.lowered, scheduled, target, times, text))
                    raise
                launcher = launcher_of(target, data, module)
                program = assemble(data, loaded.handles, described.constants, self.otherwise, loaded.keep, launcher)
            done.append(record)
            with stage("disk cache") as record:
                program_cache.store(self.key, data, code)
            done.append(record)
            if events.is_asked_about_code():
                made = MadeProgram(program, described.launching_steps, code, loaded)
                times, text = times_of(done), program_text(data)
                events.generated(Generated.of(module, self.lowered, scheduled, target, times, text, made))
            if self.check:
                from .checked_program import CheckedProgram

                return CheckedProgram(module, self.lowering, scheduled, target, loaded, self.otherwise)
            return program

    @contextlib.contextmanager
    def refusals_stored(self) -> Iterator[None]:
        try:
            yield
        except CannotLower as reason:
            program_cache.store_eager(self.key, str(reason))
            raise


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
