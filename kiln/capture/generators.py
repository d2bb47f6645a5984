"""Generators of the program, interpreted as they are consumed.

An :class:`InterpretedGenerator` is a real iterator, so native code (``list``, ``zip``, ``sum``) can consume it; each
``next`` runs the generator's frame to its next ``yield``. One that is alive at a graph break cannot be rebuilt, so the
break is moved to where it was made.
"""

from __future__ import annotations

from .frame import RETURNED, Frame
from .values import Raised
from .wrap import force


class InterpretedGenerator:
    """A generator object of the program."""

    gi_interpreted = True

    def __init__(self, frame: Frame):
        self.frame = frame
        self.started = False
        self.running = False
        self.finished = False
        frame.trace.mark_unbuildable(self)

    def __iter__(self):
        return self

    def __next__(self):
        return self.send(None)

    def send(self, value: object) -> object:
        return self._native(self.resume, value)

    def throw(self, error: object, *rest: object) -> object:
        return self._native(self.resume_throwing, error)

    def close(self) -> None:
        if not self.started or self.finished:
            self.finished = True
            return
        try:
            self.throw(GeneratorExit())
        except (GeneratorExit, StopIteration):
            return
        raise RuntimeError("generator ignored GeneratorExit")

    def _native(self, resume, argument):
        """Exceptions leave as themselves: whoever consumes the generator is native code."""
        try:
            return resume(argument)
        except Raised as raised:
            raise raised.error from raised.error.__cause__

    def resume(self, value: object) -> object:
        """Run to the next ``yield``; at the end raise ``Raised(StopIteration)``."""
        if self.finished:
            raise Raised(StopIteration())
        if not self.started and value is not None:
            raise Raised(TypeError("can't send non-None value to a just-started generator"))
        if self.started:
            self.frame.push(value)
        return self._run()

    def resume_throwing(self, error: object) -> object:
        error = error() if isinstance(error, type) else error
        if self.finished or not self.started:
            self.finished = True
            raise Raised(error)  # type: ignore[arg-type]
        frame = self.frame
        frame.push(None)
        frame.index = frame.next
        try:
            frame.index = max(frame.next - 1, 0)
            frame.unwind(error)  # type: ignore[arg-type]
        except Raised:
            self.finished = True
            raise
        return self._run()

    def _run(self) -> object:
        if self.running:
            raise Raised(ValueError("generator already executing"))
        trace = self.frame.trace
        before = trace.handled
        self.started = self.running = True
        try:
            signal = self.frame.run()
        except Raised as raised:
            self.finished = True
            if isinstance(raised.error, StopIteration):
                error = RuntimeError("generator raised StopIteration")
                error.__cause__ = raised.error
                raise Raised(error) from None
            raise
        finally:
            self.running = False
            trace.handled = before
        if signal is RETURNED:
            self.finished = True
            value = force(trace, self.frame.result)
            raise Raised(StopIteration() if value is None else StopIteration(value))
        return self.frame.result
