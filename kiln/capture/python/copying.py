"""Copies: ``copy.copy`` and ``copy.deepcopy`` are interpreted; here are the native functions that they call.

These are ``object.__reduce_ex__``, which would see through shadows, and ``id``, by which ``deepcopy`` recognises
objects: there the id of the shadow is enough.
"""

from __future__ import annotations

import copy
import copyreg
from typing import Any

from ..._native import is_instance as isinstance
from ...platform.python_objects import HEAP_TYPE, slot_descriptors
from ..guards.source import getattr_static_dict, is_direct, lookup
from ..interpreter import native_calls
from ..interpreter.attributes import load_attribute, load_or_default
from ..interpreter.call_rules import rule
from ..interpreter.calls import call, call_function
from ..interpreter.instance_attributes import load_namespace
from ..interpreter.program_types import native_name
from ..shadows.native_arguments import python_methods
from ..shadows.symbolic_numbers import concrete
from ..shadows.wrap import class_attribute, class_attribute_source, force, load_slot, wrap
from ..state.exceptions import call_for_program
from ..state.operations import Args, Kwargs
from ..state.trace import Trace
from ..state.values import Raised


def compares_ids(trace: Trace) -> bool:
    """Whether an ``id`` is only used to recognise objects, inside a copy that began in this capture."""
    frame = trace.frames[-1]
    asks = frame.globals is copy.__dict__ or frame.code.co_name == "__deepcopy__"
    return asks and is_copying(trace)


def is_copying(trace: Trace) -> bool:
    return any(outer.code is copy.deepcopy.__code__ for outer in trace.frames[1:])


@rule(copy.deepcopy)
def rule_deepcopy(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    memo = force(trace, args[1]) if len(args) > 1 else force(trace, kwargs.get("memo"))
    if memo is not None and (trace.outside.record_of(memo) is not None or not is_copying(trace)):
        raise trace.fail("copy.deepcopy with a memo of the program's own")  # which has ids of real objects in it
    return call_function(trace, copy.deepcopy, args, kwargs)


@rule(object.__reduce_ex__)
def rule_reduce_ex(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    value, protocol = force(trace, args[0]), concrete(trace, args[1])
    cls = type(value)
    if class_attribute(trace, cls, "__reduce__") is not object.__reduce__:
        return call(trace, load_attribute(trace, value, "__reduce__"), (), {})
    if not cls.__flags__ & HEAP_TYPE and type(protocol) is int:
        # Native objects hold more than an instance dictionary and slots: most refuse to be copied this way.
        call_for_program(trace, object.__reduce_ex__, value, protocol)
    if type(protocol) is not int or protocol < 2 or id(value) in trace.outside.foreign:
        raise trace.fail(f"a copy of a {cls.__module__}.{cls.__qualname__} object")
    return NEW_OBJECT, (cls, *new_arguments(trace, value)), state_of(trace, value), *contents_of(trace, value)


def new_arguments(trace: Trace, value: object) -> tuple[Any, ...]:
    """What ``__new__`` is to be called with."""
    if lookup(type(value), "__getnewargs_ex__") is not None:
        raise trace.fail(f"a copy of a {type(value).__qualname__}, which has __getnewargs_ex__")
    method = load_or_default(trace, value, "__getnewargs__", None)
    if method is None:
        return ()
    given = force(trace, call(trace, method, (), {}))
    if not isinstance(given, tuple):
        raise Raised(TypeError(f"__getnewargs__ should return a tuple, not '{native_name(trace, given)}'"))
    return given


NEW_OBJECT = vars(copyreg)["__newobj__"]
GETSTATE = getattr(object, "__getstate__", None)  # new in Python 3.11


def state_of(trace: Trace, value: object) -> object:
    """What ``__getstate__`` gives: the instance dictionary, and the slots if there are any."""
    if class_attribute(trace, type(value), "__getstate__") is not GETSTATE:
        return call(trace, load_attribute(trace, value, "__getstate__"), (), {})
    return default_state(trace, value)


def default_state(trace: Trace, value: object) -> object:
    namespace = load_namespace(trace, value) if getattr_static_dict(value) else None
    slots = slots_of(trace, value)
    return (namespace, slots) if slots else namespace


def slot_names_match(trace: Trace, cls: type, names: set[str]) -> bool:
    """Whether ``__slotnames__``, the cache of copyreg, is missing or correct."""
    noted = class_attribute(trace, cls, "__slotnames__")
    if noted is None:
        return True
    if type(noted) is not list or "__slotnames__" not in cls.__dict__:
        return False
    shadow = wrap(trace, noted, class_attribute_source(trace, cls, "__slotnames__"))
    found = [force(trace, name) for name in shadow]
    return all(type(name) is str for name in found) and set(found) == names


def slots_of(trace: Trace, value: Any) -> dict[str, object]:
    found: dict[str, object] = {}
    record = trace.outside.record_of(value)
    slots = slot_descriptors(type(value))
    names = {slot.__name__ for slot in slots}
    hooked = lookup(type(value), "__getattr__") is not None or not is_direct(type(value))
    if not slot_names_match(trace, type(value), names) or (slots and hooked):
        raise trace.fail(f"the state of a {type(value).__qualname__}, whose slots are not what they seem")
    for slot in slots:
        if record is not None:
            load_slot(trace, record, slot.__name__, slot)
        try:
            found[slot.__name__] = slot.__get__(value)
        except AttributeError:
            continue
    return found


@rule(object.__getstate__)
def rule_getstate(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    value = force(trace, args[0])
    if id(value) in trace.outside.foreign:
        raise trace.fail(f"the state of a {type(value).__qualname__} object")
    return default_state(trace, value)


def contents_of(trace: Trace, value: Any) -> tuple[object, object]:
    if isinstance(value, (list, dict)) and {"__iter__", "items"}.intersection(python_methods(type(value))):
        raise trace.fail(f"a copy of a {type(value).__qualname__}, which iterates in Python")
    items = iter(list.copy(value)) if isinstance(value, list) else None
    pairs = iter(native_calls.call_native(trace, dict.items, (value,), {})) if isinstance(value, dict) else None
    return items, pairs
