"""Loggers in captured code: whether a level is enabled is guarded; what is logged is logged when the entry has run.

A record carries the file, line and function of the program's own call. Only constant messages: what a list or tensor
held at the time of the call is not known when the graph is done.
"""

from __future__ import annotations

import logging
from typing import Any

from ..._native import is_instance as isinstance
from ...platform.light_dataclass import dataclass
from ..interpreter.call_rules import rule
from ..shadows.symbolic_numbers import concrete
from ..shadows.wrap import force, is_constant
from ..state.operations import Args, Kwargs, operation
from ..state.trace import Trace


@dataclass(eq=False)
class LogLine:
    """A line to log when the graph has run."""

    logger: logging.Logger
    level: int
    message: object
    arguments: tuple[Any, ...]
    place: tuple[str, int, str]  # file, line and function of the call


@operation
def log_line(
    logger: logging.Logger, level: int, message: object, arguments: tuple[Any, ...], place: tuple[str, int, str]
) -> None:
    """What ``Logger._log`` does, for a call at this place."""
    file, line, function = place
    logger.handle(logger.makeRecord(logger.name, level, file, line, message, arguments, None, function))


def guard_enabled(trace: Trace, logger: logging.Logger, level: int) -> bool:
    enabled = logger.isEnabledFor(level)
    words = f"logger {logger.name} {'logs' if enabled else 'does not log'} {logging.getLevelName(level)}"
    trace.guards.extras.append((words, lambda: logger.isEnabledFor(level) is enabled))
    return enabled


def record_log_call(trace: Trace, level: int, args: Args, kwargs: Kwargs) -> None:
    """A call of ``logger.info`` and its like."""
    logger, message, *rest = [concrete(trace, arg) for arg in args]
    if id(logger) not in trace.outside.foreign or not isinstance(level, int):
        raise trace.fail("a call to a logger that was made inside")
    if not guard_enabled(trace, logger, level):
        return
    stack_level = concrete(trace, kwargs.get("stacklevel", 1))
    if not all(map(is_constant, (message, *rest))) or kwargs.keys() - {"stacklevel"}:
        raise trace.fail(f"a message of the logger {logger.name} that is not constant", "log it outside")
    places = trace.location()
    if not isinstance(stack_level, int) or not 0 < stack_level <= len(places):
        raise trace.fail("a message of a logger on behalf of the caller of the compiled function")
    file, line, name = places[-stack_level]
    trace.deferred.log_lines.append(LogLine(logger, level, message, tuple(rest), (file, line, name.rpartition(".")[2])))


def level_rule(name: str, level: int) -> None:
    @rule(getattr(logging.Logger, name))
    def rule_log_level(trace: Trace, args: Args, kwargs: Kwargs) -> None:
        record_log_call(trace, level, args, kwargs)


for _name in ("debug", "info", "warning", "error", "critical"):
    level_rule(_name, getattr(logging, _name.upper()))


@rule(logging.Logger.log)
def rule_log(trace: Trace, args: Args, kwargs: Kwargs) -> None:
    record_log_call(trace, concrete(trace, args[1]), (args[0], *args[2:]), kwargs)


@rule(logging.Logger.isEnabledFor)
def rule_is_enabled(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    logger, level = force(trace, args[0]), concrete(trace, args[1])
    if id(logger) not in trace.outside.foreign:
        raise trace.fail("a call to a logger that was made inside")
    return guard_enabled(trace, logger, level)


@rule(logging.Logger.getEffectiveLevel)
def rule_effective_level(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    logger = force(trace, args[0])
    if id(logger) not in trace.outside.foreign:
        raise trace.fail("a call to a logger that was made inside")
    level = logger.getEffectiveLevel()
    trace.guards.extras.append((f"the level of logger {logger.name}", lambda: logger.getEffectiveLevel() == level))
    return level
