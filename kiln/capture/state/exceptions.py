"""Exceptions that the program raises while it is traced.

Raising gives an exception a context and a traceback. The context is set here, as CPython would; a traceback of the
user's lines only a real frame can make. So an exception that was raised inside and is still alive when capture ends
cannot be rebuilt: the break moves to where it was raised, and Python raises it there.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from dataclasses import field
from typing import TYPE_CHECKING, Any

from ..._native import is_instance as isinstance
from ...platform.light_dataclass import dataclass
from ...program.call_markers import PROGRAM_CALLERS
from .native_watch import resume_watching, stop_watching
from .values import GraphBreak, Raised

if TYPE_CHECKING:
    from .trace import Trace


@dataclass(eq=False, slots=True)
class ExceptionState:
    """What the program can see of exceptions."""

    handled: BaseException | None = None  # what sys.exc_info() would say in the program
    caller_handles: bool = field(default_factory=lambda: sys.exception() is not None)  # called in an except block
    in_native: dict[int, tuple[Any, ...]] = field(
        default_factory=dict
    )  # id of one that passes native code -> (it, its links)
    tracebacks: dict[int, types.TracebackType] = field(default_factory=dict)  # id of an exception -> its stand-in


def note_raised(trace: Trace, error: BaseException) -> None:
    """An exception starts on its way to a handler (a second time round it has been noted already)."""
    if id(error) in trace.unbuildable.made:
        return
    if id(error) in trace.outside.foreign:
        raise trace.fail(f"raising a {type(error).__qualname__} that was made outside", error=error)
    add_context(trace, error)
    trace.mark_unbuildable(error)


def add_context(trace: Trace, error: BaseException) -> None:
    """Link to the exception being handled, without closing a circle."""
    handled = trace.exceptions.handled
    if handled is None or handled is error:
        return
    link: BaseException = handled
    slower: BaseException | None = handled
    moves = False
    while (context := link.__context__) is not None:
        if context is error:
            link.__context__ = None
            break
        link = context
        if link is slower:
            break  # a circle, made by the program, that the exception is no part of
        if moves and slower is not None:
            slower = slower.__context__
        moves = not moves
    error.__context__ = handled


def generator_stopped(trace: Trace, error: BaseException) -> BaseException:
    """What a StopIteration that a generator raises itself becomes."""
    replaced = RuntimeError("generator raised StopIteration")
    note_raised(trace, replaced)
    replaced.__cause__ = replaced.__context__ = error
    return replaced


class as_native:  # noqa: N801 (used as a block; no generator, through which a StopIteration could not leave)
    """What the program raises in this block leaves as itself, because native code is waiting for it."""

    def __init__(self, trace: Trace):
        self.trace = trace

    def __enter__(self) -> None:
        self.watched = stop_watching()

    def __exit__(self, kind: object, raised: BaseException | None, traceback: object) -> None:
        if self.watched:
            resume_watching()
        if isinstance(raised, Raised):
            error = raised.error
            links = (error, error.__context__, error.__cause__, error.__suppress_context__)
            self.trace.exceptions.in_native[id(error)] = links
            # Native code may swallow the error, as a loop does with StopIteration. It has to die at once: neither its
            # context, which is `raised`, nor a frame in a traceback, such as this one, may hold it.
            raised.args = ()
            raised.__traceback__ = raised.__context__ = None
            del raised.error
            try:
                raise error
            finally:
                del error, raised, links, traceback


def is_of_program(trace: Trace, error: BaseException) -> bool:
    """Whether what left native code is the program's: a ``KeyboardInterrupt`` may also come from the keyboard."""
    return isinstance(error, Exception) or id(error) in trace.exceptions.in_native


def from_native(trace: Trace, error: BaseException) -> BaseException:
    """An exception that left native code, without Kiln's own frames and links (they would keep the trace alive)."""
    error.__traceback__ = None
    known = trace.exceptions.in_native.pop(id(error), None)
    if known is None:
        error.__context__ = None
    else:
        _, error.__context__, error.__cause__, error.__suppress_context__ = known
    return error


def call_for_program(trace: Trace, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call native code; its exceptions are raised in the program."""
    try:
        return function(*args, **kwargs)
    except Exception as error:
        raise Raised(from_native(trace, error)) from None


NO_CALLERS: Any = (None for _ in ())  # of this frame no other is reached, and no argument


def traceback_of(trace: Trace, error: BaseException) -> types.TracebackType | None:
    """What stands for an exception's traceback: to be passed on, but nobody can look into it or take it along."""
    made = trace.unbuildable.made.get(id(error))
    if made is None:
        return None
    known = trace.exceptions.tracebacks.get(id(error))
    if known is None:
        known = trace.exceptions.tracebacks[id(error)] = types.TracebackType(None, NO_CALLERS.gi_frame, 0, 1)
        trace.outside.foreign[id(known)] = known
        trace.unbuildable.made[id(known)] = (known, made[1])
    return known


def context_of(trace: Trace, error: BaseException) -> BaseException | None:
    """``__context__``: where nothing is being handled inside, a caller may be handling something."""
    if error.__context__ is None and id(error) in trace.unbuildable.made:
        guard_caller(trace)
    return error.__context__


NOTHING_HANDLED = "no exception is being handled by a caller"


def guard_caller(trace: Trace) -> None:
    """The program is about to see that no exception is being handled, also outside."""
    if trace.exceptions.caller_handles:
        raise trace.fail("the exception that a caller is handling")
    if not any(words == NOTHING_HANDLED for words, _ in trace.guards.extras):
        trace.guards.extras.append((NOTHING_HANDLED, lambda: sys.exception() is None))


def needs_real(trace: Trace, reason: GraphBreak) -> GraphBreak:
    """The break at what only real tensors can do, outside graphs or in the code that a marked function calls."""
    if reason.instead is None:
        found = [PROGRAM_CALLERS[frame.code] for frame in trace.frames if frame.code in PROGRAM_CALLERS]
        reason.instead = found[-1](reason.reason) if found else None
    return reason
