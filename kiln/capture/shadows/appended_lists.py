"""Lists from outside that are only appended to: no look at what they hold, hence no guard on it.

``self.losses.append(loss)`` in a training step must not recompile at every step. As long as a list is reached only for
``append`` and ``extend``, its new elements wait in a :class:`Pending`; whoever looks at the list takes them over
(``wrap_list``), and if nobody does, they are appended when the graph has run.
"""

from __future__ import annotations

from typing import Any

from ..guards.source import Source
from ..state.operations import Args, Kwargs, operations
from ..state.trace import Trace
from ..state.values import Lazy

METHODS = frozenset({"append", "extend"})


class AppendedList:
    """What is to be appended to a list that nobody has looked at."""

    def __init__(self, real: list[Any], source: Source):
        self.real = real
        self.source = source
        self.values: list[object] = []


class ListMethod:
    """``append`` or ``extend`` of such a list, as the program holds it before the call."""

    def __init__(self, pending: AppendedList, name: str):
        self.pending = pending
        self.name = name


def list_method(trace: Trace, owner: object, name: str) -> ListMethod | None:
    """The method, if its list has not been looked at yet."""
    if type(owner) is not Lazy or owner.done or type(owner.real) is not list or name not in METHODS:
        return None
    if id(owner.real) in trace.outside.by_real:
        return None
    pending = trace.outside.appended.get(id(owner.real))
    if pending is None:
        pending = trace.outside.appended[id(owner.real)] = AppendedList(owner.real, owner.source)
        trace.guards.add(owner.source, "type", list)
        trace.guards.distinct.setdefault(owner.source)
    elif pending.source != owner.source:
        trace.guards.add(owner.source, "same", pending.source)
    return ListMethod(pending, name)


def call_list_method(trace: Trace, method: ListMethod, args: Args, kwargs: Kwargs) -> object:

    if trace.progress.key_method_depth:
        raise trace.fail("an effect inside a __hash__ or __eq__ that a dictionary or set is going to call")
    pending = method.pending
    record = trace.outside.by_real.get(id(pending.real))
    if record is not None:  # looked at since the method was loaded, perhaps by its own argument
        return operations.call(trace, getattr(record.shadow, method.name), args, kwargs)
    if len(args) != 1 or kwargs:
        return operations.call(
            trace, getattr(operations.wrap(trace, pending.real, pending.source), method.name), args, kwargs
        )
    values: list[object] = [args[0]] if method.name == "append" else []
    try:
        if method.name == "extend":
            operations.call(trace, list.extend, (values, args[0]), {})
    finally:  # should an iterator raise, what it gave before that stays
        record = trace.outside.by_real.get(id(pending.real))
        list.extend(pending.values if record is None else record.shadow, values)
    return None
