"""A compiled graph whose calls run recordings of it.

The first call with arguments of some form (sizes, strides, types, numbers) runs the program itself, which gives
libraries the occasion to prepare; the second records it, and later ones run what was recorded. One recording is a
`kiln._native.RecordedCall`: it knows the addresses of its arguments and whether its results are still in use. This
class decides which recordings there are:

- Arguments are recorded at their addresses. Those that the first two calls have at different addresses are copied to
  memory of the recording, and so are a few integers: tokens, positions. If others are at
  other addresses in a later call, these are copied from then on, and the recording is made anew. If they are many or
  large, or the program changes them, there is another recording for the new addresses.
- What a forward computed for a backward is in the memory of one of the forward's recordings, so there is another
  recording of the backward for each of these.
- If the results of a recording are still in use, there is another recording, in memory of its own.
- When there are too many, calls without a recording run the program.

Recordings of different forms share a pool of memory: a recording runs only if nobody uses results of later ones of the
pool (`kiln._native.RecordedMemory`). Those of the same form, which run while results of another are in use, do not.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch
import torch.fx
from torch.profiler import record_function

from ..._native import RecordedCall, RecordedMemory, any_modes
from ...config import config
from ...platform.locks import new_lock
from ...platform.torch_autograd import is_profiling
from ...program import graph_meta
from ...program.graph_modules import placeholders
from ...report import events
from ...report.events import raised_text
from . import recordable
from .recorder import Boxed, Recorder, recorder_for

MOST_ALIKE = 4  # recordings for arguments of one form
MOST_COPIED = 16  # arguments that are copied in a call
MOST_COPIED_BYTES = 64 << 20
SMALL_BYTES = 1024  # of arguments that are copied whether they move or not
MOVED_BYTES = 1 << 20  # of arguments that are copied if the first two calls have them at different addresses
MOST_FORMS = 256  # that are remembered

Form = tuple[Any, ...]

_unused: list[None] = []  # an item for each `recordings_unused` block that is open


@contextlib.contextmanager
def recordings_unused() -> Iterator[None]:
    """While torch's profiler runs inside, programs run without their recordings: it sees no steps in those."""
    _unused.append(None)
    try:
        yield
    finally:
        _unused.pop()


class Pool:
    """Memory that recordings share. It is torch's as long as one of them lives."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.memory = RecordedMemory()
        self.recordings = 0


class Kept:
    """A recording, and the pool that it lies in."""

    def __init__(self, call: RecordedCall, pool: Pool) -> None:
        self.call, self.pool = call, pool


class RecordedProgram:
    """Called as the program is, with a list that it empties."""

    _boxed_call = True

    def __init__(
        self,
        program: Boxed,
        recorder: Recorder,
        device: torch.device,
        visible: Callable[[int], Collection[int]],
        changed: Collection[int] = (),
        computed: Collection[int] = (),
    ) -> None:
        """``visible(n)``: which of n results the user gets, which may be in use for long: these are copied out of the
        recording's memory. ``changed``: arguments that the program writes to. ``computed``: arguments that a recorded
        forward has computed."""
        self.program, self.recorder, self.device = program, recorder, device
        self.visible, self.changed, self.computed = visible, frozenset(changed), frozenset(computed)
        self.written_inputs: Collection[int] = getattr(program, "written_inputs", frozenset())
        self.calls: list[RecordedCall] = []  # those of `kept`, the last used first
        self.kept: list[Kept] = []
        self.pools: list[Pool] = []
        self.forms: dict[Form, list[int]] = {}  # of calls so far that have no recording, with the first one's addresses
        self.moving: set[int] = set()  # arguments that were seen at several addresses, and are copied
        self.made = 0
        self.stopped: str | None = None  # why nothing more is recorded
        self.lock = new_lock()

    def __call__(self, arguments: list[Any]) -> Any:
        if not is_profiling():
            return self.run(arguments)
        if _unused:
            return self.program(arguments)
        with record_function(f"recorded {getattr(self.program, 'name', '') or 'kiln program'}"):
            return self.run(arguments)

    def run(self, arguments: list[Any]) -> Any:
        if self.recorder.is_recording():
            return self.program(arguments)
        results = self.replayed(self.calls, arguments) if self.calls else None
        if results is None and self.stopped is None and not any_modes() and self.are_plain(arguments):
            made = self.recording_for(arguments)
            results = self.replayed([made], arguments) if made is not None else None
        return self.program(arguments) if results is None else results

    def replayed(self, calls: list[RecordedCall], arguments: list[Any]) -> tuple[Any, ...] | None:
        """The results of the first recording that fits and is free."""
        with self.recorder.turn:
            for call in calls:
                results = call(arguments)
                if results is not None:
                    if call is not next(iter(self.calls), call):
                        self.calls = [call, *(other for other in self.calls if other is not call)]
                    return results
        return None

    def are_plain(self, arguments: Sequence[Any]) -> bool:
        """Whether a recording can tell these arguments from others."""
        return all(
            is_plain(argument, self.device) if isinstance(argument, torch.Tensor) else type(argument) in NUMBERS
            for argument in arguments
        )

    # ---- which recording ---------------------------------------------------------------------------------------------

    def recording_for(self, arguments: list[Any]) -> RecordedCall | None:
        """A new recording for arguments that no recording fits or is free for; None: the program is to run."""
        with self.lock:
            self.drop(lambda kept: not kept.call.is_intact())
            alike = [kept for kept in self.kept if kept.call.is_alike(arguments)]
            if not alike and self.is_first(arguments):
                return None
            if not alike:
                self.expect_moves(arguments)
            for kept in [kept for kept in alike if kept.call.is_free()]:
                moved = frozenset(kept.call.moved(arguments))
                if not moved:
                    return kept.call  # another thread was here
                if len(alike) < MOST_ALIKE:
                    moved -= self.computed
                if moved and self.can_copy(arguments, self.moving | moved):
                    self.moving |= moved
                    self.drop(lambda other, kept=kept: other is kept)  # type: ignore[misc]
                    return self.record(arguments)
            return self.record(arguments) if len(alike) < MOST_ALIKE else None

    def is_first(self, arguments: list[Any]) -> bool:
        """Whether this is the first call with arguments of their form."""
        form = form_of(arguments)
        if form in self.forms:
            return False
        if len(self.forms) >= MOST_FORMS:
            self.forms.clear()
        self.forms[form] = addresses_of(arguments)
        return True

    def expect_moves(self, arguments: Sequence[Any]) -> None:
        """Note which arguments a first recording is to copy, so that it serves for their later addresses as well."""
        before = self.forms.get(form_of(arguments), [])
        pairs = enumerate(zip(before, addresses_of(arguments), strict=False))
        own = self.computed | self.changed
        moved = {n for n, (old, new) in pairs if old != new and bytes_of(arguments[n]) <= MOVED_BYTES} - own
        small = {n for n, value in enumerate(arguments) if is_small(value)} - own
        for places in (moved | small, moved):
            if self.can_copy(arguments, self.moving | places):
                self.moving |= places
                return

    def can_copy(self, arguments: Sequence[Any], places: Collection[int]) -> bool:
        if len(places) > MOST_COPIED or not self.changed.isdisjoint(places):
            return False
        tensors = [arguments[place] for place in places]
        return all(map(is_copyable, tensors)) and sum(map(bytes_of, tensors)) <= MOST_COPIED_BYTES

    def drop(self, is_unwanted: Callable[[Kept], bool]) -> None:
        unwanted = [kept for kept in self.kept if is_unwanted(kept)]
        for kept in unwanted:
            self.kept.remove(kept)
            self.calls = [call for call in self.calls if call is not kept.call]
            kept.pool.recordings -= 1
            if not kept.pool.recordings:  # torch frees the memory of a pool without graphs
                self.pools.remove(kept.pool)

    # ---- recording ---------------------------------------------------------------------------------------------------

    def record(self, arguments: list[Any]) -> RecordedCall | None:
        if self.made >= config.cuda_graph_limit:
            self.stop(f"{self.made} CUDA graphs of it were recorded, more than kiln.config.cuda_graph_limit allows")
            return None
        copied = frozenset(self.moving) if self.can_copy(arguments, self.moving) else frozenset()
        static = [copy_of(value) if place in copied else value for place, value in enumerate(arguments)]
        pool = self.pool_for(arguments)
        try:
            results, replay = self.recorder.record(self.program, static, pool.handle)
        except Exception as error:
            self.stop(f"recording failed: {raised_text(error)}")
            return None
        given_out = frozenset(place for place in self.visible(len(results)) if is_dense(results[place]))
        call = RecordedCall(static, copied, results, given_out, replay, pool.memory)
        self.made += 1
        pool.recordings += 1
        self.kept.append(Kept(call, pool))
        self.calls = [call, *self.calls]
        events.recorded_graph(f"{len(arguments)} arguments, {len(copied)} of them copied, {len(results)} results")
        return call

    def pool_for(self, arguments: list[Any]) -> Pool:
        """A pool that has no recording of this form: its memory may be in use while the new one runs."""
        taken = [kept.pool for kept in self.kept if kept.call.is_alike(arguments)]
        for pool in self.pools:
            if pool not in taken:
                return pool
        self.pools.append(Pool(self.recorder.new_pool()))
        return self.pools[-1]

    def stop(self, reason: str) -> None:
        self.stopped = reason
        self.forms.clear()
        self.pools = [pool for pool in self.pools if pool.recordings]
        events.not_recorded(reason)


# ---- arguments -------------------------------------------------------------------------------------------------------

NUMBERS = (int, float, bool, type(None))
CLASSES = (torch.Tensor, torch.nn.Parameter)


def is_plain(tensor: torch.Tensor, device: torch.device) -> bool:
    return (
        type(tensor) in CLASSES
        and tensor.layout is torch.strided
        and tensor.device == device
        and not (tensor.is_conj() or tensor.is_neg())
    )


def form_of(arguments: Sequence[Any]) -> Form:
    """What recordings of arguments differ in, besides addresses."""
    return tuple(
        (argument.dtype, argument.shape, argument.stride())
        if isinstance(argument, torch.Tensor)
        else (type(argument), argument)
        for argument in arguments
    )


def addresses_of(arguments: Sequence[Any]) -> list[int]:
    return [argument.data_ptr() if isinstance(argument, torch.Tensor) else 0 for argument in arguments]


def is_small(argument: Any) -> bool:
    """Whether it is a few integers, which a copy of costs little: hardly a buffer of a module that never moves."""
    return (
        type(argument) is torch.Tensor
        and not (argument.dtype.is_floating_point or argument.dtype.is_complex)
        and 0 < bytes_of(argument) <= SMALL_BYTES
        and is_copyable(argument)
    )


def bytes_of(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
        return made.copy_(tensor)


def is_copyable(tensor: torch.Tensor) -> bool:
    """Whether no two elements are in one place."""
    reached = 0  # the distance between the first and the last element so far
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride <= reached:
                return False
            reached += stride * (size - 1)
    return True


def is_dense(result: Any) -> bool:
    """Whether a copy of a result has its strides."""
    if not isinstance(result, torch.Tensor) or not is_copyable(result):
        return False
    distance = sum(stride * (size - 1) for stride, size in zip(result.stride(), result.shape, strict=True))
    return result.numel() == 0 or distance + 1 == result.numel()


# ---- programs --------------------------------------------------------------------------------------------------------


def record_calls(program: Boxed, module: torch.fx.GraphModule, is_backward: bool) -> Boxed:
    """The program of a graph, recorded; or the program itself, with a report, where it cannot be."""
    reason = recordable.refusal(module, program)
    if reason is not None:
        events.not_recorded(reason)
        return program
    device = recordable.device_of(module)
    count = 0 if is_backward else graph_meta.visible_results(module)
    changed = graph_meta.changed_inputs(module)
    written = [changed[place] for place in getattr(program, "written_inputs", ())]
    computed = [place for place, node in enumerate(placeholders(module)) if is_computed(node)] if is_backward else []
    return RecordedProgram(program, recorder_for(device), device, VisibleResults(count), written, computed)


def is_computed(node: torch.fx.Node) -> bool:
    """Whether an input of a backward graph is a result of its forward: no input of that, and no gradient."""
    return not node.name.startswith(("primals", "tangents"))


class VisibleResults:
    """The places of the results that a user gets: the first ones, or all (None)."""

    def __init__(self, count: int | None) -> None:
        self.count = count

    def __call__(self, results: int) -> range:
        return range(results if self.count is None else self.count)
