"""Handles of hooks, ``torch.utils.hooks.RemovableHandle``: made, removed and handed on by captured code.

A handle made here for a hook on a tensor is that of its registration (``hook_registrations.py``). One made for a
dictionary of hooks, as modules do, is made again after the graph has run; its number, the key of the hook in the
dictionary, is known only then; until then a :class:`HandleNumber` stands for it, which only dictionaries may use. A
handle from outside is used as it is. Its number is not guarded: numbers grow from call to call.
"""

from __future__ import annotations

import types
import weakref
from collections import OrderedDict
from typing import Any

from torch.utils.hooks import RemovableHandle

from ..._native import is_instance as isinstance
from ...platform.light_dataclass import dataclass
from ...platform.python_objects import words
from ..guards.source import InstanceAttribute, Referent
from ..interpreter.attributes import LOADERS
from ..interpreter.call_rules import rule
from ..interpreter.calls import call_function
from ..interpreter.instance_attributes import load_from_instance
from ..shadows.wrap import force
from ..state.operations import Args, Kwargs
from ..state.trace import Trace
from ..state.values import HandleNumber
from ..writeback.rebuild import BUILDERS, CannotRebuild, Rebuilder, build_instance

HANDLE_METHODS = words("remove __enter__ __exit__")


def load_from_handle(trace: Trace, handle: object, name: str) -> object:
    """A handle made here has methods, and perhaps a number, until the graph has run."""
    made = trace.hooks.handles.get(id(handle))
    if made is None and id(handle) not in trace.hooks.registrations:
        return load_from_instance(trace, handle, name)
    if name in HANDLE_METHODS:
        return types.MethodType(vars(RemovableHandle)[name], handle)
    if name == "id" and made is not None:
        return made.number
    raise trace.fail(f"attribute {name!r} of a handle that was made here")


LOADERS[RemovableHandle] = load_from_handle


@dataclass(eq=False)
class MadeHandle:
    """A handle for dictionaries of hooks."""

    shadow: RemovableHandle
    number: HandleNumber
    hooks: dict[Any, Any]
    extra: tuple[dict[Any, Any], ...]


@rule(RemovableHandle)
def rule_make_handle(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    """``RemovableHandle(hooks, extra_dict=…)``."""
    hooks: Any = force(trace, args[0]) if len(args) == 1 else None
    extra = force(trace, kwargs.get("extra_dict"))
    extra = tuple([force(trace, item) for item in extra]) if isinstance(extra, list) else (extra,) * (extra is not None)
    if kwargs.keys() - {"extra_dict"} or not all(type(table) is OrderedDict for table in (hooks, *extra)):
        raise trace.fail("making a handle for something other than dictionaries of hooks")
    shadow = object.__new__(RemovableHandle)
    made = MadeHandle(shadow, HandleNumber((1 << 62) + len(trace.hooks.handles)), hooks, extra)
    trace.hooks.handles[id(shadow)] = made
    trace.outside.foreign[id(shadow)] = shadow  # neither may be read
    trace.outside.foreign[id(made.number)] = made.number
    return shadow


def blank_handle() -> RemovableHandle:
    """A handle with a number of its own, and no hooks yet."""
    return RemovableHandle(OrderedDict())


def set_dictionaries(handle: RemovableHandle, hooks: OrderedDict[int, Any], *extra: OrderedDict[int, Any]) -> None:
    handle.hooks_dict_ref = weakref.ref(hooks)
    handle.extra_dict_ref = tuple([weakref.ref(table) for table in extra])


def build_handle(r: Rebuilder, shadow: RemovableHandle, name: str, place: int) -> None:
    registration, made = r.trace.hooks.registrations.get(id(shadow)), r.trace.hooks.handles.get(id(shadow))
    if registration is not None:
        r.lines.append(f"{name} = {registration.slot_name}.handle")
    elif made is not None:
        r.lines[place] = f"{name} = {r.bind(blank_handle, 'blank_handle')}()"  # its number may be a key in its hooks
        r.lines.append(f"{r.bind(set_dictionaries, 'connect')}({name}, {r.items((made.hooks, *made.extra))})")
    else:
        build_instance(r, shadow, name, place)


def build_number(r: Rebuilder, shadow: HandleNumber, name: str, place: int) -> None:
    made = next(made for made in r.trace.hooks.handles.values() if made.number is shadow)
    r.lines.append(f"{name} = {r.value(made.shadow)}.id")


BUILDERS[RemovableHandle] = build_handle
BUILDERS[HandleNumber] = build_number


@dataclass(eq=False)
class Removal:
    """``handle.remove()`` of a handle from outside."""

    handle: object
    hooks: object  # the dictionary that the hook is in
    source: Referent


@rule(RemovableHandle.remove)
def rule_remove(trace: Trace, args: Args, kwargs: Kwargs) -> None:
    handle = force(trace, args[0])
    if trace.progress.key_method_depth or kwargs or len(args) != 1:
        raise trace.fail("removing a hook here")
    if id(handle) in trace.hooks.registrations:
        trace.hooks.registrations[id(handle)].removed = True
    elif id(handle) in trace.hooks.handles:
        remove_number(trace, trace.hooks.handles[id(handle)])
    elif (removal := find_removal(trace, handle)) is not None:
        trace.hooks.removals[id(handle)] = removal
        trace.mark_unbuildable(removal)
    else:
        call_function(trace, RemovableHandle.remove, args, kwargs)


def remove_number(trace: Trace, made: MadeHandle) -> None:
    """Remove the entries of a handle made here."""
    for table in (made.hooks, *made.extra):
        if made.number in table:
            del table[made.number]


def find_removal(trace: Trace, handle: object) -> Removal | None:
    """The removal of a hook on an object that the trace has not read; its handle need not be guarded."""
    record = trace.outside.record_of(handle)
    if record is None or record.attributes != vars(handle) or "extra_dict_ref" not in vars(handle):
        return None
    if id(handle) in trace.hooks.removals:
        return trace.hooks.removals[id(handle)]
    if force(trace, vars(handle)["extra_dict_ref"]) != ():  # hooks of modules, which calls of the module look at
        return None
    hooks = record.real.hooks_dict_ref()
    source = Referent(InstanceAttribute(record.source, "hooks_dict_ref"))
    if id(hooks) in trace.outside.by_real:
        return None
    known = next((removal for removal in trace.hooks.removals.values() if removal.hooks is hooks), None)
    if known is not None:
        trace.guards.add(source, "same", known.source)
    else:
        trace.guards.distinct.setdefault(source)
    return Removal(handle, hooks, source)


def removal_lines(r: Rebuilder) -> list[str]:
    """What the run function does about handles from outside."""
    for removal in r.trace.hooks.removals.values():
        if removal.hooks is not None and id(removal.hooks) in r.trace.outside.by_real:
            raise CannotRebuild(removal, "hooks that are looked at after one of them was removed")
    return [f"{r.value(removal.handle)}.remove()" for removal in r.trace.hooks.removals.values()]
