"""Kiln's own functions, called inside captured code, and others that the graph ends before."""

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


def leave_to_python(function: object, name: str, why: str = "") -> None:
    """Give a function the rule that the graph ends before a call of it."""

    @rule(function)
    def leave(trace, args, kwargs):
        raise trace.fail(f"a call to {name}" + (f": {why}" if why else ""), "call it outside the compiled function")


for _name in ("compile", "disable", "allow_in_graph", "disallow_in_graph", "reset", "mark_dynamic", "mark_static"):
    leave_to_python(getattr(api, _name), f"kiln.{_name}")
leave_to_python(explain, "kiln.explain")
leave_to_python(export, "kiln.export")
