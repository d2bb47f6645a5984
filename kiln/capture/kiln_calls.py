"""Kiln's own functions, called inside captured code."""

from __future__ import annotations

from .. import api
from ..explain import explain, export
from .natives import rule
from .symbols import concrete


@rule(api.graph_break)
def rule_graph_break(trace, args, kwargs):
    message = concrete(trace, args[0] if args else kwargs.get("message", ""))
    raise trace.fail(f"kiln.graph_break({message!r})" if message else "kiln.graph_break()", "remove the call")


@rule(api.is_compiling)
def rule_is_compiling(trace, args, kwargs):
    return True


def _left_to_python(function: object, name: str) -> None:
    @rule(function)
    def leave(trace, args, kwargs):
        raise trace.fail(f"a call to kiln.{name}", "call it outside the compiled function")


for _name in ("compile", "disable", "allow_in_graph", "reset", "mark_dynamic", "mark_static"):
    _left_to_python(getattr(api, _name), _name)
_left_to_python(explain, "explain")
_left_to_python(export, "export")
