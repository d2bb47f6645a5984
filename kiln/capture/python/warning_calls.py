"""``warnings.warn`` in captured code: the warning is given when the graph has run, from the program's own line.

The line depends on the stack. Inlined frames are known; with a ``stacklevel`` beyond them, the stack is walked at run
time, without Kiln's frames. Where warnings are errors, the graph breaks, so that they are raised at the right place.
Only constant messages, as with loggers.
"""

from __future__ import annotations

import inspect
import sys
import types
import warnings
from collections.abc import Sequence
from typing import Any

from ..._native import is_instance as isinstance
from ...platform.cpython import get_frame, warning_filters
from ...platform.light_dataclass import dataclass
from ...program.quiet import SILENCED
from ..guards.descriptions import module_of_globals
from ..interpreter.call_rules import rule
from ..interpreter.frame import Frame
from ..shadows.symbolic_numbers import concrete
from ..state.operations import Args, Kwargs
from ..state.trace import Trace

INTERNAL_FILES = ("<kiln ", "<eval_with_key>")


@dataclass(eq=False)
class DeferredWarning:
    """A warning to give when the graph has run: from a known line, or for a caller so many frames out."""

    message: str
    category: type[Warning]
    place: tuple[str, int, dict[Any, Any]] | None
    further: int
    __name__ = "warn"

    def __call__(self) -> None:
        file, line, namespace = self.place or caller_location(self.further)
        registry = namespace.setdefault("__warningregistry__", {})
        name = namespace.get("__name__") or "<string>"
        warnings.warn_explicit(self.message, self.category, file, line, name, registry)


def caller_location(further: int) -> tuple[str, int, dict[Any, Any]]:
    """The position of the program's n-th frame from here; past the last one, what Python reports."""
    frame: types.FrameType | None = get_frame(1)
    while frame is not None:
        if not is_internal_frame(module_of_globals(frame.f_globals), frame.f_code):
            further -= 1
            if not further:
                return frame.f_code.co_filename, frame.f_lineno, frame.f_globals
        frame = frame.f_back
    return "sys", 1, vars(sys)


def is_internal_frame(module: str, code: types.CodeType) -> bool:
    """Whether a frame belongs to Kiln or to a graph: eager has no such frame."""
    return module == "kiln" or module.startswith("kiln.") or code.co_filename.startswith(INTERNAL_FILES)


def parameters(
    message: Any, category: Any = None, stacklevel: int = 1, source: Any = None, *, skip_file_prefixes: Any = ()
) -> None:
    """The parameters of ``warnings.warn``, which has no signature in some releases."""


SIGNATURE = inspect.signature(parameters)


@rule(warnings.warn)
def rule_warn(trace: Trace, args: Args, kwargs: Kwargs) -> None:
    given = SIGNATURE.bind(*args, **kwargs)
    given.apply_defaults()
    values = {name: concrete(trace, value) for name, value in given.arguments.items()}
    message, category, level = values["message"], values["category"] or UserWarning, values["stacklevel"]
    plain = isinstance(message, str) and isinstance(category, type) and issubclass(category, Warning)
    if not plain or values["source"] is not None or values["skip_file_prefixes"] or level < 1:
        raise trace.fail("warnings.warn with these arguments", "the warning is issued between graphs")
    if SILENCED and has_error_filter(SILENCED[-1][0]):
        raise trace.fail("warnings.warn, where warnings are errors", "the warning is issued between graphs")
    if not any(words == NO_ERRORS for words, _ in trace.guards.extras):
        trace.guards.extras.append((NO_ERRORS, lambda: not has_error_filter(warning_filters())))
    frames = [
        frame for frame in reversed(trace.frames) if not is_internal_frame(module_of_globals(frame.globals), frame.code)
    ]
    place = frame_location(frames[level - 1]) if level <= len(frames) else None
    later = DeferredWarning(message, category, place, level - len(frames))
    trace.deferred.calls.append((later, (), {}))


NO_ERRORS = "no warning is an error"


def has_error_filter(filters: Sequence[tuple[Any, ...]]) -> bool:
    """Whether some warning would be raised."""
    return any(each[0] == "error" for each in filters)


def frame_location(frame: Frame) -> tuple[str, int, dict[Any, Any]]:
    return frame.code.co_filename, frame.line(), frame.globals
