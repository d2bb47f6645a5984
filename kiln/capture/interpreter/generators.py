"""Generators of the program, interpreted as they are consumed.

An :class:`InterpretedGenerator` is a real iterator, so native code (``list``, ``zip``, ``sum``) can consume it; each
``next`` runs the generator's frame to its next ``yield``. One that is alive at a graph break cannot be rebuilt, so the
break is moved to where it was made; one that is dropped inside a ``try`` or ``with`` block is closed, as Python would.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from ..._native import is_instance as isinstance
from ..shadows.tensors import back_from_native
from ..shadows.wrap import force
from ..state.exceptions import add_context, as_native, generator_stopped
from ..state.operations import Args, Kwargs, operation
from ..state.trace import Trace
from ..state.values import BreakPoint, InterpretedIterator, Raised, Restart
from .attributes import LOADERS, load_or_default
from .call_rules import rule
from .calls import call
from .frame import RETURNED, Broken, Finished, Frame
from .program_types import native_name


class InterpretedGenerator(InterpretedIterator):
    """A generator object of the program."""

    unbuildable = True

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.started = False
        self.running = False
        self.finished = False
        self.handled: BaseException | None = None  # the exception being handled where it is suspended
        self.made_at = frame.trace.place()  # the trace must not keep it alive: dropping it closes it
        frame.trace.unbuildable.generators.add(self)

    def __del__(self) -> None:
        """Python closes a generator that is dropped."""
        trace = self.frame.trace
        if not trace.unbuildable.active or not self.left_open():
            return
        try:
            self.leave()
        except BaseException:  # a graph break, or an error that Python would report and ignore
            trace.unbuildable.unclosed = self.made_at

    # -- for native code: exceptions leave as themselves ------------------------------------------------------------

    def __iter__(self) -> InterpretedGenerator:
        return self

    def __next__(self) -> object:
        return self._native(self.resume, None)

    def send(self, value: object) -> object:
        return self._native(self.resume, value)

    def throw(self, *args: object) -> object:
        return self._native(self.resume_throwing, *args)

    def close(self) -> object:
        return self._native(self.leave)

    def _native(self, resume: Callable[..., Any], *args: object) -> object:
        with as_native(self.frame.trace), back_from_native():
            return force(self.frame.trace, resume(*args))

    # -- for the interpreter ------------------------------------------------------------------------------------------

    def resume(self, value: object) -> object:
        """Run to the next ``yield``; at the end raise ``Raised(StopIteration)``."""
        self._check_idle()
        if self.finished:
            raise Raised(StopIteration())
        if not self.started and value is not None:
            raise Raised(TypeError("can't send non-None value to a just-started generator"))
        if self.started:
            self.frame.push(value)
        return self._run()

    def resume_throwing(self, kind: object, value: object = None, traceback: object = None) -> object:
        """``throw()``: into what it delegates to, else at the ``yield``."""
        error = self._exception(kind, value)
        self._check_idle()
        if self.finished or not self.started:
            self.finished = True
            raise Raised(error)
        receiver = self._delegate()
        if receiver is None:
            return self._throw(error)
        try:
            if isinstance(error, GeneratorExit):
                self._call_delegate(receiver, "close")
            elif self._has(receiver, "throw"):
                return self._call_delegate(receiver, "throw", error)
        except Raised as raised:
            if not isinstance(raised.error, StopIteration):
                return self._throw(raised.error)
            return self._finish_delegation(raised.error.value)
        return self._throw(error)

    def leave(self) -> object:
        """``close()``."""
        self._check_idle()
        if not self.started or self.finished:
            self.finished = True
            return None
        try:
            self.resume_throwing(GeneratorExit())
        except Raised as raised:
            if isinstance(raised.error, StopIteration):
                return raised.error.value if sys.version_info >= (3, 13) else None
            if isinstance(raised.error, GeneratorExit):
                return None
            raise
        raise Raised(RuntimeError("generator ignored GeneratorExit"))

    def left_open(self) -> bool:
        """Whether dropping it would run code of the program: it is suspended inside ``try`` or ``with``."""
        if not self.started or self.finished or self.running:
            return False
        entry = self.frame.bytecode.handler_at[self.frame.index]
        return entry is not None and entry.target.op not in ("CALL_INTRINSIC_1", "CLEANUP_THROW")

    def _exception(self, kind: object, value: object) -> BaseException:
        if isinstance(kind, type) and issubclass(kind, BaseException):
            if isinstance(value, kind):
                return value
            args = () if value is None else value if isinstance(value, tuple) else (value,)
            kind = force(self.frame.trace, call(self.frame.trace, kind, args, {}))
        if not isinstance(kind, BaseException):
            name = native_name(self.frame.trace, kind)
            raise Raised(TypeError(f"exceptions must be classes or instances deriving from BaseException, not {name}"))
        return kind

    def _check_idle(self) -> None:
        if self.running:
            raise Raised(ValueError("generator already executing"))

    # -- yield from -----------------------------------------------------------------------------------------------

    def _delegate(self) -> object:
        """The iterator of the ``yield from`` it is suspended in, if any: a SEND comes right before that YIELD_VALUE."""
        index = self.frame.index
        suspended_by = self.frame.bytecode.instructions[index - 1]
        return self.frame.peek() if suspended_by.op == "SEND" else None

    def _has(self, receiver: object, name: str) -> bool:
        return load_or_default(self.frame.trace, receiver, name, None) is not None

    def _call_delegate(self, receiver: object, name: str, *args: object) -> object:
        method = load_or_default(self.frame.trace, receiver, name, None)
        self.running = True
        try:
            return None if method is None else call(self.frame.trace, method, args, {})
        finally:
            self.running = False

    def _finish_delegation(self, value: object) -> object:
        """The delegate returned while it handled an exception: continue after the ``yield from``."""
        frame = self.frame
        if sys.version_info < (3, 12):
            frame.stack.pop()
        frame.push(value)
        frame.jump(frame.bytecode.instructions[frame.index - 1].argval)
        return self._run()

    # -- running --------------------------------------------------------------------------------------------------

    def _throw(self, error: BaseException) -> object:
        """Raise at the ``yield`` where the frame is suspended."""

        def unwind() -> None:
            add_context(self.frame.trace, error)  # the delegate did not know what is handled here
            self.frame.push(None)
            self.frame.unwind(error)

        return self._run(unwind)

    def _run(self, begin: Callable[[], None] | None = None) -> object:
        trace = self.frame.trace
        caller = trace.exceptions.handled
        self.started = self.running = True
        trace.progress.entered += 1  # its frame advances: if the instruction breaks after this, capture starts over
        if self.handled is not None:
            trace.exceptions.handled = self.handled
        try:
            if begin is not None:
                begin()
            signal = self.frame.run()
            self.handled = trace.exceptions.handled if trace.exceptions.handled is not caller else None
        except Raised as raised:
            self.finished = True
            trace.exceptions.handled = caller
            stopped = isinstance(raised.error, StopIteration)  # a StopIteration must not leave a generator
            raise Raised(generator_stopped(trace, raised.error) if stopped else raised.error) from None
        finally:
            self.running = False
            trace.exceptions.handled = caller
        if signal is RETURNED:
            self.finished = True
            value = force(trace, self.frame.result)
            raise Raised(StopIteration() if value is None else StopIteration(value))
        return self.frame.result


def check_open_generators(trace: Trace, outcome: Finished | Broken) -> None:
    """Break the graph if a generator is left open inside ``try`` or ``with``: Python must close it."""
    if isinstance(outcome, Finished):
        root = trace.root
        root.stack.clear()
        root.locals.clear()
        root.cells.clear()
    trace.unbuildable.active = False
    places = [generator.made_at for generator in trace.unbuildable.generators if generator.left_open()]
    if trace.unbuildable.unclosed is not None:
        places.append(trace.unbuildable.unclosed)
    if places and isinstance(outcome, Finished):
        raise trace.fail("a generator that is dropped inside a try or with block", whole=True)
    if places:
        reason = trace.fail("a generator that is dropped inside a try or with block; it is made by Python instead")
        raise Restart(BreakPoint(*places[0], reason))


METHODS = {"send": "resume", "throw": "resume_throwing", "close": "leave"}


def load_from_generator(trace: Trace, generator: InterpretedGenerator, name: str) -> object:
    """Attributes of a generator as the program sees them."""
    if name in METHODS or name in ("__next__", "__iter__"):
        return getattr(generator, name)
    if name in ("__name__", "__qualname__"):
        return getattr(generator.frame.function, name)
    if hasattr(type(generator), name) or name.startswith("gi_"):
        raise trace.fail(f"attribute {name!r} of a generator")
    raise Raised(AttributeError(f"'generator' object has no attribute {name!r}"))


LOADERS[InterpretedGenerator] = load_from_generator


def method_rule(name: str, resume: str) -> None:
    """Run a generator's method in the interpreter where the program calls it."""

    @rule(getattr(InterpretedGenerator, name))
    def rule_generator_method(trace: Trace, args: Args, kwargs: Kwargs) -> object:
        generator, *rest = (force(trace, arg) for arg in args)
        return getattr(generator, resume)(*rest)


for _name, _resume in METHODS.items():
    method_rule(_name, _resume)


@rule(InterpretedGenerator.__next__)
def rule_generator_next(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    return force(trace, args[0]).resume(None)


@rule(InterpretedGenerator.__iter__)
def rule_generator_iter(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    return force(trace, args[0])


@operation
def make_generator(frame: Frame) -> InterpretedGenerator:
    """The generator that a call of a generator function gives."""
    return InterpretedGenerator(frame)
