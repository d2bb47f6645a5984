"""``kiln.explain`` and ``kiln.export``: what capture makes of a call, for people and for programs."""

from __future__ import annotations

import functools
import os
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import field
from typing import TYPE_CHECKING, Any

import torch.fx

from . import exc
from .backends import eager, kiln
from .platform.light_dataclass import dataclass
from .platform.support.switches import CAPTURE, all_off, reason_off
from .program.user_marks import python_only

if TYPE_CHECKING:
    from .report.stages import Stage


@dataclass(eq=False)
class Explanation:
    """What was captured, where it broke and why, what is guarded, how long it took. ``str()`` describes it in words.

    ``guards``, ``times`` and ``code`` have one item for each frame compiled: the function itself, then what follows
    each graph break. ``differentiated`` has one for each graph: its forward and backward, and the bytes that it keeps
    for backward, beside eager's. ``programs`` has one for each functional graph that was compiled: its kernels (with
    their loops, LLVM and assembly), what each reads and writes, what ATen runs and why, the time of each stage.
    ``stages`` has the stages that the call went through, with sizes and times. ``profile``, where it was asked for, has
    one for each program that ran: the time of each kernel and call of ATen, and how fast it moves memory.
    """

    function: str
    result: Any
    graphs: list[torch.fx.GraphModule] = field(default_factory=list)
    breaks: list[Any] = field(default_factory=list)
    skips: list[tuple[str, str]] = field(default_factory=list)
    recompiles: list[tuple[str, str]] = field(default_factory=list)
    guards: list[tuple[str, list[str]]] = field(default_factory=list)
    code: list[tuple[str, str, str]] = field(default_factory=list)
    times: list[tuple[str, float]] = field(default_factory=list)
    differentiated: list[Any] = field(default_factory=list)
    programs: list[Any] = field(default_factory=list)
    not_lowered: list[str] = field(default_factory=list)
    recorded: list[str] = field(default_factory=list)
    not_recorded: list[str] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)
    profile: list[Any] | None = None

    @property
    def graph_count(self) -> int:
        return len(self.graphs)

    @property
    def op_count(self) -> int:
        from .program.graph import count_operations

        return sum(count_operations(graph.graph) for graph in self.graphs)

    @property
    def break_count(self) -> int:
        return len(self.breaks)

    @property
    def seconds(self) -> float:
        """How long compiling took, in all."""
        return sum(seconds for _, seconds in self.times)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        from .program.graph import count_operations

        counts = (
            counted(self.graph_count, "graph"),
            counted(self.op_count, "operation"),
            counted(self.break_count, "graph break"),
        )
        yield f"{self.function}: {', '.join(counts)}; compiled in {self.seconds * 1e3:.0f} ms"
        for number, found in enumerate(self.breaks, 1):
            yield f"\nGraph break {number}: {found.location or 'at a place without source'}"
            yield f"  Reason: {found.reason}"
            yield f"  What to do: {found.advice}"
        for where, reason in self.skips:
            yield f"\nNot compiled, runs in plain Python: {where}\n  Reason: {reason}"
        for part, reason in all_off().items():
            yield f"\nSwitched off with this torch: {part}\n  Reason: {reason}"
        for where, reason in self.recompiles:
            yield f"\nCompiled again: {where}\n  Reason: {reason}"
        for number, graph in enumerate(self.graphs, 1):
            yield f"\nGraph {number}, {counted(count_operations(graph.graph), 'operation')}:"
            yield textwrap.indent(graph.print_readable(print_output=False).strip(), "  ")
        training = [found for found in self.differentiated if "backward" in found.graphs]
        if training:
            yield "\nSaved for backward:"
        for found in training:
            yield f"  {found}"
            yield from (f"    {line}" for line in found.lines)
        for number, program in enumerate(self.programs, 1):
            yield f"\nProgram {number}: {program.summary}"
            yield from (f"  {line}" for line in program.lines())
        if self.profile is not None:
            from .codegen.kernel_times import text_of

            yield "\n" + "\n".join(text_of(self.profile))
        for reason in self.not_lowered:
            yield f"\nA graph runs operator by operator: {reason}"
        for text in self.recorded:
            yield f"\nRecorded into a CUDA graph: {text}"
        for reason in self.not_recorded:
            yield f"\nA program runs without a CUDA graph: {reason}"
        for where, guards in self.guards:
            yield f"\nGuards of {where}:"
            yield from (f"  {guard}" for guard in guards or ["none but the global state of torch"])
        yield "\nTime to compile:"
        yield from (f"  {seconds * 1e3:8.1f} ms  {where}" for where, seconds in self.times)
        for where, check, run in self.code:
            yield f"\nCode of {where}, its check and what it runs:"
            yield textwrap.indent(f"{check}\n{run}".strip(), "  ")

    def save_repro(self, path: str | os.PathLike[str]) -> None:
        """Write a Python file that compiles and runs the same programs, on random numbers: for reports of bugs."""
        from .codegen.repro import text_of

        if not self.programs:
            raise exc.UserError("nothing was compiled to kernels in this call, so there is nothing to write")
        notes = ["\n".join(kernel.text for kernel in program.kernels) for program in self.programs]
        text = text_of([program.module for program in self.programs], os.path.basename(os.fspath(path)), notes)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


@python_only
def explain(
    function: Callable[..., Any],
    *,
    dynamic: bool | None = None,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    profile: bool = False,
) -> Callable[..., Explanation]:
    """``kiln.explain(f)(*args)``: run the call compiled, and explain what the compiler did for it.

    ``profile``: measure its kernels, too. The call is then run seven times more, with all its effects, and the result
    is that of the first.
    """
    from .api import compile
    from .report import events

    compiled = compile(function, backend=fresh(kiln), dynamic=dynamic, mode=mode, options=options)
    name = getattr(function, "__qualname__", None) or type(function).__qualname__

    def run(*args: Any, **kwargs: Any) -> Explanation:
        with events.listen() as recording:
            result = compiled(*args, **kwargs)
            recording.skips += [(name, reason) for reason in (reason_off(CAPTURE),) if reason]
            times = measured(lambda: compiled(*args, **kwargs), recording.programs) if profile else None
        found = {**vars(recording), "times": recording.times}
        found["breaks"] = list({str(each): each for each in recording.breaks}.values())  # one for each frame it ends
        return Explanation(name, result, **found, profile=times)

    return run


def measured(run: Callable[[], object], programs: list[Any]) -> list[Any]:
    from .codegen.kernel_times import measure

    return measure(run, programs)


def fresh(backend: Callable[..., Any]) -> Callable[..., Any]:
    """A backend like another one, but an object of its own, so that nothing compiled before is reused."""

    @functools.wraps(backend)  # capture asks what the backend is called
    def alike(graph_module: torch.fx.GraphModule, example_inputs: list[Any], **options: Any) -> Any:
        return backend(graph_module, example_inputs, **options)

    return alike


@dataclass(eq=False)
class Exported:
    """A whole function as one graph, with the assumptions under which it holds."""

    graph_module: torch.fx.GraphModule
    guards: list[str]

    def __iter__(self) -> Iterator[Any]:
        return iter((self.graph_module, self.guards))


@python_only
def export(function: Callable[..., Any], *, dynamic: bool | None = None) -> Callable[..., Exported]:
    """``kiln.export(f)(*args)``: the graph module of the whole call, and its guards. Raises where it would break.

    The graph holds for inputs of the sizes it was made for, with ``dynamic`` also for others (then it takes the sizes
    that it needs as inputs, too); called with anything else it refuses.
    """
    from .api import compile
    from .report import events
    from .report.exported_inputs import refuse_other_inputs

    compiled = compile(function, backend=fresh(eager), dynamic=dynamic, fullgraph=True)

    def run(*args: Any, **kwargs: Any) -> Exported:
        with events.listen() as recording:
            compiled(*args, **kwargs)
        if len(recording.graphs) != 1:
            found = len(recording.graphs)
            raise exc.UserError(f"kiln.export needs a call that does tensor work, in one graph; {found} graphs found")
        return Exported(refuse_other_inputs(recording.graphs[0]), recording.guards[-1][1])

    return run
