"""The table of opcode handlers, and how to fill it."""

from __future__ import annotations

import sys
from collections.abc import Callable

from ....bytecode import Instruction
from ..frame import HANDLERS, NULL, Frame

Handler = Callable[[Frame, Instruction], object]

CALLABLE_FIRST = sys.version_info >= (3, 13)  # the order of NULL and callable on the stack


def opcode(*names: str) -> Callable[[Handler], Handler]:
    """Register a handler: it gets the frame and the instruction, and returns nothing or the signal to stop."""

    def register(handler: Handler) -> Handler:
        for name in names:
            HANDLERS[name] = handler
        return handler

    return register


def push_callable(frame: Frame, value: object) -> None:
    """A callable with its empty half: method loads always push ``NULL, bound method``, the program cannot tell."""
    if CALLABLE_FIRST:
        frame.push(value)
        frame.push(NULL)
    else:
        frame.push(NULL)
        frame.push(value)
