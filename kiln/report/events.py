"""Events: every stage reports here what it did, for counters, logs and ``kiln.explain``.

Nothing is formatted unless a log or a listener asks for it: logging is off by default and costs one set lookup.
"""

from __future__ import annotations

import contextlib
import threading
import time
import types
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from ..config import config
from ..exc import Location, innermost
from ..platform.light_dataclass import dataclass
from ..platform.support.switches import INSTEAD, all_off
from .log import log
from .progress import Progress
from .stages import Stage, collected, stage

if TYPE_CHECKING:
    from ..platform.support.assumptions import Finding

counters: Counter[str] = Counter()
"""Running counts of this process: frames, graphs, breaks, recompiles, skips, entries, kernels."""

watchers: list[Callable[[str, str], object]] = []
"""Called for everything that is counted: what, and its reason or place if there is one."""


def count(what: str, detail: str = "") -> None:
    counters[what] += 1
    for watcher in list(watchers):
        watcher(what, detail)


@dataclass
class Break:
    """A graph break: where and why."""

    reason: str
    hint: str
    stack: list[tuple[str, int, str]]
    raises: str | None = None  # the class of what the program raises there

    @classmethod
    def of(cls, reason: Any) -> Break:
        """From the exception that ended the graph, without its traceback: that holds the frames of the compiler."""
        raises = None if reason.raises is None else reason.raises.__name__
        return cls(reason.reason, reason.hint, list(reason.stack), raises)

    def __str__(self) -> str:
        where = self.location
        return self.reason if where is None else f"{where.file}:{where.line}, in {where.function}: {self.reason}"

    @property
    def location(self) -> Location | None:
        """The user's innermost line, where there is one."""
        places = [Location(*place) for place in self.stack]
        return places[innermost(places)] if places else None

    @property
    def advice(self) -> str:
        """What the user can do about it."""
        return self.hint or "call it outside the compiled function, or accept that it runs in plain Python"


@dataclass(eq=False)
class Saved:
    """Memory that is kept from the forward pass for the backward pass, without the graph's inputs and with them."""

    bytes: int
    bytes_with_inputs: int
    tensors: int

    def __str__(self) -> str:
        return f"{in_bytes(self.bytes)} in {self.tensors} tensor{'' if self.tensors == 1 else 's'}"


@dataclass(eq=False)
class Differentiated:
    """A graph that was differentiated ahead of time: its forms, and what is kept for backward, here and in eager."""

    name: str
    graphs: dict[str, Any]  # "joint", "forward", "backward", or "inference" alone
    saved: Saved
    eager: Saved
    lines: list[str] = field(default_factory=list)  # what is saved, one by one

    def __str__(self) -> str:
        if "inference" in self.graphs:
            return f"the graph from {self.name}: nothing, as no gradient flows through it"
        return f"the graph from {self.name}: {self.saved} beside its inputs (eager: {self.eager})"


def in_bytes(count: float) -> str:
    if count < 1000:
        return f"{count} bytes"
    return f"{count / 1e3:.3g} kB" if count < 1e6 else f"{count / 1e6:.3g} MB"


@dataclass(eq=False)
class Recording:
    """What happened in a `listen` block (``kiln.explain``)."""

    graphs: list[Any] = field(default_factory=list)
    breaks: list[Break] = field(default_factory=list)
    recompiles: list[tuple[str, str]] = field(default_factory=list)
    skips: list[tuple[str, str]] = field(default_factory=list)
    guards: list[tuple[str, list[str]]] = field(default_factory=list)
    code: list[tuple[str, str, str]] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)
    differentiated: list[Differentiated] = field(default_factory=list)
    programs: list[Any] = field(default_factory=list)  # kiln.codegen.inspection.Generated
    not_lowered: list[str] = field(default_factory=list)
    recorded: list[str] = field(default_factory=list)  # CUDA graphs
    not_recorded: list[str] = field(default_factory=list)

    @property
    def times(self) -> list[tuple[str, float]]:
        """Each frame that was compiled, and how long that took."""
        done = [stage for outermost in self.stages for stage in outermost.completed()]
        return [(stage.subject, stage.seconds) for stage in done if stage.name == FRAME]


_listening = threading.local()


def recordings() -> list[Recording]:
    found = getattr(_listening, "stack", None)
    if found is None:
        found = _listening.stack = []
    return found


@contextlib.contextmanager
def listen() -> Iterator[Recording]:
    """Collect what this thread's compiler does in the block."""
    with collected() as stages:
        recording = Recording(stages=stages)
        recordings().append(recording)
        try:
            yield recording
        finally:
            recordings().remove(recording)


def place(function: types.FunctionType) -> str:
    code = function.__code__
    return f"{code.co_qualname} ({code.co_filename}:{code.co_firstlineno})"


def is_compiling() -> bool:
    """Whether this thread is compiling a frame: what runs now is the compiler's doing, not the program's."""
    return getattr(_listening, "compiling", False)


@contextlib.contextmanager
def in_compiler() -> Iterator[None]:
    """A block that the compiler runs, not the program."""
    outer, _listening.compiling = is_compiling(), True
    try:
        yield
    finally:
        _listening.compiling = outer


FRAME = "frame"  # the stage in which one is compiled


@contextlib.contextmanager
def compiling(function: types.FunctionType) -> Iterator[None]:
    """The time one frame takes to compile."""
    where = place(function)
    count("frames", where)
    start = time.perf_counter()
    try:
        with stage(FRAME, where), in_compiler(), Progress(where):
            yield
    finally:
        if "trace" in config.log:
            log("trace", f"{where}: {(time.perf_counter() - start) * 1e3:.1f} ms")


def graph(trace: Any, module: Any) -> None:
    count("graphs", place(trace.function))
    for recording in recordings():
        recording.graphs.append(module)
    if "graph" in config.log:
        log("graph", f"{place(trace.function)}\n{module.print_readable(print_output=False)}")


def is_asked_about_gradients() -> bool:
    """Whether a log or a listener asks what differentiating a graph gave: finding out costs another trace."""
    return bool(recordings()) or "aot" in config.log


def differentiated(found: Differentiated) -> None:
    for recording in recordings():
        recording.differentiated.append(found)
    if "aot" in config.log:
        texts = [f"{kind} graph\n{module.print_readable(print_output=False)}" for kind, module in found.graphs.items()]
        log("aot", "\n".join([str(found), *found.lines, *texts]))


CODE_ARTEFACTS = ("kernels", "ir", "code", "ptx")


def is_asked_about_code() -> bool:
    """Whether a log or a listener asks for the kernels of a graph: then none come from the cache."""
    return bool(recordings()) or not config.log.isdisjoint(CODE_ARTEFACTS)


def generated(program: Any) -> None:
    """A graph became a program (`kiln.codegen.inspection.Generated`)."""
    for recording in recordings():
        recording.programs.append(program)
    for artefact in CODE_ARTEFACTS:
        if artefact in config.log:
            log(artefact, program.artefact(artefact))


def not_lowered(reason: str) -> None:
    """A graph runs operator by operator, though differentiated ahead of time."""
    count("codegen eager", reason)
    for recording in recordings():
        recording.not_lowered.append(reason)
    if "kernels" in config.log:
        log("kernels", f"a graph runs operator by operator: {reason}")


def recorded_graph(text: str) -> None:
    """A program was recorded into a CUDA graph."""
    count("cuda graphs", text)
    for recording in recordings():
        recording.recorded.append(text)
    if "cuda_graphs" in config.log:
        log("cuda_graphs", f"a program was recorded: {text}")


def not_recorded(reason: str) -> None:
    """A program, or calls of it with further sizes, runs without CUDA graphs although they were asked for."""
    count("cuda graphs refused", reason)
    for recording in recordings():
        recording.not_recorded.append(reason)
    if "cuda_graphs" in config.log:
        log("cuda_graphs", f"a program runs without a CUDA graph: {reason}")


def runs_in_eager(reason: str) -> None:
    """A graph could not be differentiated ahead of time: it runs op by op, and autograd differentiates as in eager."""
    count("aot eager", reason)
    if "aot" in config.log:
        log("aot", f"a graph is left to eager: {reason}")


def entry(trace: Any, made: Any, already_reported: bool) -> None:
    """A frame was captured: its guards, its code, whether it broke. A break that its caller reported is not counted."""
    count("entries", place(trace.function))
    found = None if already_reported else made.break_reason
    if found is not None:
        count("breaks", found.reason)
    for recording in recordings():
        if found is not None:
            recording.breaks.append(found)
        recording.guards.append((place(trace.function), trace.guards.describe()))
        recording.code.append((place(trace.function), made.check.text, made.run.text))
    if found is not None and "breaks" in config.log:
        log("breaks", f"{found}\n  in {place(trace.function)}")
    if "guards" in config.log:
        log("guards", place(trace.function) + "".join(f"\n  {line}" for line in trace.guards.describe()))
    if "code" in config.log:
        log("code", f"{place(trace.function)}\n{made.check.text}\n{made.run.text}")


def self_check(findings: Sequence[Finding]) -> None:
    """What Kiln assumes about torch was tried at import."""
    if "platform" in config.log:
        for finding in findings:
            log("platform", str(finding))
        for part, reason in all_off().items():
            log("platform", f"switched off: {part} ({reason}); instead, {INSTEAD[part]}")


class Subscription:
    """A callback that is called for every miss, until it is removed; a ``with`` block removes it at its end."""

    def __init__(self, callback: Callable[[types.FunctionType, str], object]):
        self.callback = callback
        _subscriptions.append(self)

    def remove(self) -> None:
        """Stop telling it; doing so twice does nothing."""
        if self in _subscriptions:
            _subscriptions.remove(self)

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()


_subscriptions: list[Subscription] = []


def recompile(function: types.FunctionType, reason: str) -> None:
    count("recompiles", reason)
    for subscription in list(_subscriptions):
        subscription.callback(function, reason)
    for recording in recordings():
        recording.recompiles.append((place(function), reason))
    if "recompiles" in config.log:
        log("recompiles", f"{place(function)}: {reason}")


def skip(function: types.FunctionType, reason: str) -> None:
    count("skips", reason)
    for recording in recordings():
        recording.skips.append((place(function), reason))
    if "breaks" in config.log:
        log("breaks", f"{place(function)} runs in eager: {reason}")


def eager_fallback(handled: bool) -> Callable[..., Any]:
    """What runs a function in eager when its graph raises (``raised``): eager raises at the user's own line.

    Counted. If eager does not raise, and the program has no handler for it (``handled``), the graph or its backend is
    wrong: a warning says so once.
    """
    warned = False

    def eager(function: types.FunctionType, raised: str, /, *args: Any, **kwargs: Any) -> Any:
        nonlocal warned
        count("taken over", raised)
        result = function(*args, **kwargs)
        if not handled and not warned:
            warned = True
            text = f"The compiled graph of {place(function)} raised {raised}, which eager does not"
            warnings.warn(f"{text}; eager's result is used.", RuntimeWarning, stacklevel=3)
        return result

    return eager


def raised_text(error: BaseException) -> str:
    """An exception in a line."""
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
