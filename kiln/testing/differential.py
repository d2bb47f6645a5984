"""The differential helper: a program must do under Kiln what it does without, in everything a user could see."""

from __future__ import annotations

import itertools
import linecache
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import Any

import torch.fx
from torch.utils.hooks import RemovableHandle

from kiln import _native
from kiln.testing.compare import Comparison, shown
from kiln.testing.counters import CompileCounterWithBackend
from kiln.testing.observe import CallOutcome, Outcome, clean_process, numbered_from, observe_call, seed_everything
from kiln.testing.program_copies import ProgramCopy, Template, is_state

from ..platform.light_dataclass import dataclass

_DIFFERENCES_SHOWN = 12
_source_numbers = itertools.count(1)


class Mismatch(AssertionError):
    """A program did something else under Kiln than without; `differences` lists what."""

    def __init__(self, heading: str, found: Sequence[str]) -> None:
        self.heading = heading
        self.differences = list(found)
        super().__init__("\n".join([heading, *(f"  - {text}" for text in self.differences)]))


@dataclass
class Call:
    """One call of the program, where it takes keyword arguments."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass
class Report:
    """What the runs did. Counts are those of the plain compiled run; None if Kiln does not count."""

    eager: Outcome
    compiled: Outcome
    graphs: list[torch.fx.GraphModule] = field(default_factory=list)
    ops: int = 0
    breaks: int | None = None
    recompiles: int | None = None

    @property
    def returned(self) -> Any:
        """What the last call returned in the compiled run."""
        return self.compiled.calls[-1].returned


@dataclass
class _Settings:
    """How to run and compare; see `check`."""

    backend: Any
    fullgraph: bool
    dynamic: bool | None
    options: dict[str, Any] | None
    grads: bool
    seed: int
    rtol: float
    atol: float
    strides: bool
    versions: bool
    tracebacks: bool
    compare_warnings: bool
    compile: Callable[..., Any] | None
    first_hook: int = field(default_factory=lambda: RemovableHandle.next_id)

    def compile_program(self, program: Callable[..., Any], backend: Any, fullgraph: bool) -> Callable[..., Any]:
        """The program under Kiln, or under what a test of this helper puts in Kiln's place."""
        compiler = self.compile
        if compiler is None:
            from kiln import api

            compiler = api.compile
        compiled: Callable[..., Any] = compiler(
            program, backend=backend, fullgraph=fullgraph, dynamic=self.dynamic, options=self.options
        )
        return compiled


def check(
    program: Callable[..., Any] | None = None,
    *args: Any,
    kwargs: dict[str, Any] | None = None,
    setup: Callable[[], tuple[Any, ...]] | None = None,
    make_args: Callable[[], tuple[Any, ...]] | None = None,
    calls: int | Sequence[tuple[Any, ...] | Call] = 1,
    backend: Any = "eager",
    fullgraph: bool = False,
    dynamic: bool | None = None,
    options: dict[str, Any] | None = None,
    grads: bool = True,
    graphs: int | None = None,
    ops: int | None = None,
    breaks: int | None = None,
    recompiles: int | None = None,
    breaks_every: Iterable[str | None] = (None,),
    rtol: float | None = None,
    atol: float | None = None,
    strides: bool = True,
    versions: bool = True,
    tracebacks: bool = True,
    compare_warnings: bool = True,
    seed: int = 0,
    compile: Callable[..., Any] | None = None,
) -> Report:
    """Run a program in eager and compiled, compare everything a user could see, and raise `Mismatch` if it differs.

    Each run works on deep copies of the program, its closures, the globals it names and its arguments, from the same
    random state. `make_args` makes fresh arguments instead of copies. `setup` makes a whole fresh program: it returns
    `(program, args)` or `(program, args, state)`, where `state` (a hook log, say) is compared after the calls, and
    `args` may also be a list with the arguments of each call.

    `calls` is how often to call with the same arguments, or the arguments of each call. After each call the result is
    differentiated (`grads`). `graphs`, `ops`, `breaks` and `recompiles` are counts to expect. For each entry of
    `breaks_every` the compiled run is done anew under `kiln.config.break_every`. Comparison is exact for the eager
    backend, else to float tolerance, unless `rtol`/`atol` say otherwise. `compile` stands in for `kiln.compile`.
    """
    if isinstance(program, _native.Dispatcher):
        program = program.function  # compiled already: eager must run what it was made from
    exact = backend == "eager"
    settings = _Settings(
        backend=backend,
        fullgraph=fullgraph,
        dynamic=dynamic,
        options=options,
        grads=grads,
        seed=seed,
        rtol=rtol if rtol is not None else (0.0 if exact else 1.3e-5),
        atol=atol if atol is not None else (0.0 if exact else 1e-5),
        strides=strides,
        versions=versions,
        tracebacks=tracebacks,
        compare_warnings=compare_warnings,
        compile=compile,
    )
    make_copy = _copy_maker(program, args, kwargs or {}, setup, make_args, calls)
    eager = _run(make_copy, settings, None)
    report: Report | None = None
    for break_every in breaks_every:
        with _break_every(break_every):
            counted = _run_compiled(make_copy, settings, eager, break_every)
        if break_every is None:
            _expect_counts(counted, graphs=graphs, ops=ops, breaks=breaks, recompiles=recompiles)
        if report is None or break_every is None:
            report = counted
    if report is None:
        raise ValueError("kiln.testing.check: breaks_every is empty, so nothing was compiled")
    return report


def check_source(
    source: str, *, entry: str = "main", args: tuple[Any, ...] = (), calls_from: str | None = None, **more: Any
) -> Report:
    """`check` for a program given as source text: each run executes it into a module dictionary of its own.

    `entry` names the function to call, with `args`, or with each of the argument tuples that the program's own
    function `calls_from` returns in a list. The globals are compared afterwards.
    """
    # A file name of its own and an entry in linecache, so that tracebacks and Kiln's messages show the lines.
    name = f"<program {next(_source_numbers)}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        code = compile(source, name, "exec")

    def setup() -> tuple[Any, ...]:
        namespace: dict[str, Any] = {"__name__": "program"}
        exec(code, namespace)
        return namespace[entry], namespace[calls_from]() if calls_from else args, _Namespace(namespace)

    try:
        return check(setup=setup, **more)
    except Mismatch as mismatch:
        listing = "\n".join(f"{number:4} {line}" for number, line in enumerate(source.splitlines(), 1))
        raise Mismatch(f"{listing}\n{mismatch.heading}", mismatch.differences) from mismatch.__cause__
    finally:
        linecache.cache.pop(name, None)


class _Namespace:
    """The data among a module's globals, looked at when the run is over."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        self.namespace = namespace


def _copy_maker(
    program: Callable[..., Any] | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    setup: Callable[[], tuple[Any, ...]] | None,
    make_args: Callable[[], tuple[Any, ...]] | None,
    calls: int | Sequence[tuple[Any, ...] | Call],
) -> Callable[[], Any]:
    """A function that makes a fresh copy of the program, as a context manager, by the arguments of `check`."""

    def spread(arguments: tuple[Any, ...] | list[Any]) -> list[Call]:
        each = arguments if isinstance(arguments, list) else calls
        if isinstance(each, int):
            return [Call(tuple(arguments), kwargs)] * each
        return [call if isinstance(call, Call) else Call(tuple(call)) for call in each]

    if setup is not None:

        @contextmanager
        def made() -> Iterator[tuple[ProgramCopy, Callable[[], dict[str, Any]]]]:
            fresh_program, fresh_args, *state = setup()
            yield ProgramCopy(fresh_program, spread(fresh_args), state[0] if state else None), dict

        return made
    if program is None:
        raise TypeError("kiln.testing.check needs a program, or a setup that makes one")
    template = Template(program, [] if make_args else spread(args))

    @contextmanager
    def copied() -> Iterator[tuple[ProgramCopy, Callable[[], dict[str, Any]]]]:
        with template.fresh_copy() as made:
            if make_args is not None:
                made.calls = spread(make_args())
            yield made, template.final_globals

    return copied


def _run(make_copy: Callable[[], Any], settings: _Settings, transform: Callable[..., Any] | None) -> Outcome:
    """One run on a copy of the program; `transform` makes the compiled callable out of the program."""
    with clean_process(), numbered_from(settings.first_hook):
        seed_everything(settings.seed)
        with make_copy() as (made, final_globals):
            seed_everything(settings.seed)
            function = made.program if transform is None else transform(made.program)
            outcome = Outcome()
            for call in made.calls:
                outcome.calls.append(observe_call(function, call.args, call.kwargs, backward=settings.grads))
            outcome.arguments = [(call.args, call.kwargs) for call in made.calls]
            outcome.program = made.program
            outcome.globals = dict(final_globals())
            outcome.state = _final_state(made.state)
            return outcome


def _final_state(state: Any) -> Any:
    if isinstance(state, _Namespace):
        return {name: value for name, value in state.namespace.items() if not name.startswith("__") and is_state(value)}
    return state


def _run_compiled(make_copy: Callable[[], Any], settings: _Settings, eager: Outcome, break_every: str | None) -> Report:
    counter = CompileCounterWithBackend(settings.backend)
    fullgraph = settings.fullgraph and break_every is None
    _reset_kiln()
    before = read_counters()
    compiled = _run(make_copy, settings, lambda program: settings.compile_program(program, counter, fullgraph))
    after = read_counters()
    under = f" with a graph break at every {break_every}" if break_every else ""
    _raise_mismatch(eager, compiled, settings, f"The compiled program differs from eager{under}:")
    report = Report(eager, compiled, list(counter.graphs), counter.op_count)
    if before is not None and after is not None:
        report.breaks = after["breaks"] - before["breaks"]
        report.recompiles = after["recompiles"] - before["recompiles"]
    return report


def read_counters() -> dict[str, int] | None:
    """Kiln's running counts of graph breaks and recompiles in this process, if it keeps them."""
    try:
        from kiln.report import counters
    except ImportError:
        return None
    return {"breaks": counters["breaks"], "recompiles": counters["recompiles"]}


def _reset_kiln() -> None:
    from kiln import api

    api.reset()


@contextmanager
def _break_every(value: str | None) -> Iterator[None]:
    from kiln.config import config

    with config.patch(break_every=value):
        yield


def _raise_mismatch(eager: Outcome, compiled: Outcome, settings: _Settings, heading: str) -> None:
    found = list(itertools.islice(compare_outcomes(eager, compiled, settings), _DIFFERENCES_SHOWN))
    if not found:
        return
    unexpected = [one.raised for one, other in zip(compiled.calls, eager.calls, strict=False) if not other.raised]
    cause = next((error for error in unexpected if error is not None), None)
    raise Mismatch(heading, found) from cause


def compare_outcomes(eager: Outcome, compiled: Outcome, settings: _Settings) -> Iterator[str]:
    """Each difference between two runs, in words. One comparison over all parts, so that identities cross them."""
    comparison = Comparison(
        rtol=settings.rtol,
        atol=settings.atol,
        strides=settings.strides,
        gradients=settings.grads,
        versions=settings.versions,
    )
    # Arguments first: "the same object as argument 0" is what a reader wants to see about a result.
    yield from comparison.walk(eager.arguments, compiled.arguments, "arguments after the calls")
    for number, (expected, seen) in enumerate(zip(eager.calls, compiled.calls, strict=True), 1):
        prefix = f"call {number}: " if len(eager.calls) > 1 else ""
        for text in _compare_calls(comparison, expected, seen, settings):
            yield prefix + text
    yield from comparison.walk(eager.state, compiled.state, "state")
    yield from comparison.walk(eager.globals, compiled.globals, "globals")
    yield from comparison.walk(eager.program, compiled.program, "program")


def _compare_calls(
    comparison: Comparison, eager: CallOutcome, compiled: CallOutcome, settings: _Settings
) -> Iterator[str]:
    if (eager.raised is None) != (compiled.raised is None):
        yield f"{_ending(eager)} expected, but it {_ending(compiled)}"
    else:
        yield from comparison.walk(eager.raised, compiled.raised, "exception")
        if settings.tracebacks and eager.traceback != compiled.traceback:
            yield f"traceback lines {shown(eager.traceback)} expected, {shown(compiled.traceback)} seen"
        yield from comparison.walk(eager.returned, compiled.returned, "result")
    yield from comparison.walk(eager.backward_raised, compiled.backward_raised, "exception in backward")
    parts = ["stdout", "modes", "random_states"] + (["warnings"] if settings.compare_warnings else [])
    for name in parts:
        yield from comparison.walk(getattr(eager, name), getattr(compiled, name), _PART_NAMES[name])


_PART_NAMES = {
    "stdout": "printed text",
    "modes": "torch switch",
    "random_states": "random state",
    "warnings": "warnings",
}


def _ending(outcome: CallOutcome) -> str:
    if outcome.raised is None:
        return "returned"
    return f"raised {type(outcome.raised).__name__}: {outcome.raised}"


def _expect_counts(report: Report, **expected: int | None) -> None:
    seen = {"graphs": len(report.graphs), "ops": report.ops, "breaks": report.breaks, "recompiles": report.recompiles}
    found = [
        f"{name}: {count} expected, {seen[name]} seen"
        for name, count in expected.items()
        if count is not None and seen[name] != count
    ]
    if found:
        graphs = [f"graph {number}:\n{graph.code}" for number, graph in enumerate(report.graphs, 1)]
        raise Mismatch("The program was not compiled as expected:", found + graphs)
