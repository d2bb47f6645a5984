"""Rules of capture for Kiln's own functions, called inside captured code."""

from __future__ import annotations

from typing import Any

from . import api
from .capture.entry import dispatch  # noqa: F401  (loads all of capture)
from .capture.interpreter.call_rules import leave_to_python, rule
from .capture.shadows.symbolic_numbers import concrete
from .capture.state.trace import Trace
from .program.user_marks import PYTHON_ONLY


@rule(api.graph_break)
def rule_graph_break(trace: Trace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    message = concrete(trace, args[0] if args else kwargs.get("message", ""))
    raise trace.fail(f"kiln.graph_break({message!r})" if message else "kiln.graph_break()", "remove the call")


@rule(api.is_compiling)
def rule_is_compiling(trace: Trace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return True


for _function, _name in PYTHON_ONLY.items():
    leave_to_python(_function, _name)
