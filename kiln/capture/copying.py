"""Copies: ``copy.copy`` and ``copy.deepcopy`` are interpreted; only what they ask of native code is answered here.

That is ``object.__reduce_ex__`` (how to make an object again), which would look past shadows, and ``id``, which
``deepcopy`` uses to know an object again: within it a shadow's own id does.
"""

from __future__ import annotations

import copy
import copyreg
import types

from . import natives
from .attributes import load_namespace
from .calls import call, call_function
from .natives import rule
from .rebuild import slot_descriptors
from .source import lookup
from .symbols import concrete
from .trace import Trace
from .wrap import force, getattr_static_dict, load_slot


def compares_ids(trace: Trace) -> bool:
    """Whether the code that asks for an ``id`` only uses it to know objects again."""
    frame = trace.frames[-1]
    return frame.globals is copy.__dict__ or frame.code.co_name == "__deepcopy__"


@rule(copy.deepcopy)
def rule_deepcopy(trace, args, kwargs):
    memo = force(trace, args[1]) if len(args) > 1 else force(trace, kwargs.get("memo"))
    if memo is not None and trace.record_of(memo) is not None:
        raise trace.fail("copy.deepcopy with a memo from outside")
    return call_function(trace, copy.deepcopy, args, kwargs)


@rule(object.__reduce_ex__)
def rule_reduce_ex(trace, args, kwargs):
    value, protocol = force(trace, args[0]), concrete(trace, args[1])
    cls = type(value)
    reduce = lookup(cls, "__reduce__")
    if isinstance(reduce, types.FunctionType):
        return call(trace, reduce, (value,), {})
    if reduce is not object.__reduce__:
        return natives.call_native(trace, reduce, (value,), {})
    if protocol < 2 or id(value) in trace.foreign:
        raise trace.fail(f"a copy of a {cls.__module__}.{cls.__qualname__} object")
    return copyreg.__newobj__, (cls, *new_arguments(trace, value)), state_of(trace, value), *contents_of(trace, value)


def new_arguments(trace: Trace, value: object) -> tuple:
    """What ``__new__`` is to be called with."""
    if lookup(type(value), "__getnewargs_ex__") is not None:
        raise trace.fail(f"a copy of a {type(value).__qualname__}, which has __getnewargs_ex__")
    method = lookup(type(value), "__getnewargs__")
    return () if method is None else tuple(force(trace, call(trace, method, (value,), {})))


def state_of(trace: Trace, value: object) -> object:
    """What ``__getstate__`` gives: the instance dictionary, and the slots if there are any."""
    method = lookup(type(value), "__getstate__")
    if isinstance(method, types.FunctionType):
        return call(trace, method, (value,), {})
    return default_state(trace, value)


def default_state(trace: Trace, value: object) -> object:
    namespace = load_namespace(trace, value) if getattr_static_dict(value) else None
    slots = slots_of(trace, value)
    return (namespace, slots) if slots else namespace


def slots_of(trace: Trace, value: object) -> dict[str, object]:
    found = {}
    record = trace.record_of(value)
    for slot in slot_descriptors(type(value)):
        if record is not None:
            load_slot(trace, record, slot.__name__, slot)  # type: ignore[attr-defined]
        try:
            found[slot.__name__] = slot.__get__(value)  # type: ignore[attr-defined]
        except AttributeError:
            continue
    return found


@rule(object.__getstate__)
def rule_getstate(trace, args, kwargs):
    value = force(trace, args[0])
    if id(value) in trace.foreign:
        raise trace.fail(f"the state of a {type(value).__qualname__} object")
    return default_state(trace, value)


def contents_of(trace: Trace, value: object) -> tuple[object, object]:
    items = iter(list.copy(value)) if isinstance(value, list) else None
    pairs = iter(natives.call_native(trace, dict.items, (value,), {})) if isinstance(value, dict) else None  # type: ignore[call-overload]
    return items, pairs
