"""Dictionaries of hooks on modules.

Torch's own ``Module.__call__`` looks at them; capture interprets that, so hooks are guarded and called like everything
else. Two things are special. The keys are numbers that torch gives out, new ones each time: torch's code does not tell
anybody, so hooks are guarded by their order there, and one that is registered again finds the entry it had before.

And ``config.guard_module_hooks`` may be off. Entries then hold the hooks they were made with: one removed later is
still called, one added later is not. Such an entry is for the one module that has these hooks; one without hooks is, as
always, for all modules of its class.
"""

from __future__ import annotations

import collections
import types
from typing import Any

import torch
import torch.fx

from ..._native import is_instance as isinstance
from ...config import config
from ...platform.python_objects import mapping_items, words
from ...platform.torch_modules import CALLING_CODES, COLLECTING_CODES, GRAPH_CALLING_CODES
from ..guards.source import Computed, GlobalsOf, Identity, InstanceAttribute, Item, Pinned, Source
from ..state.operations import operations
from ..state.trace import Trace
from ..state.values import Kind, Record

_MAKING = getattr(torch.fx.GraphModule.recompile, "__code__", None)


def _parts(*codes: object) -> list[types.CodeType]:
    """The functions defined inside others; none where torch is a stand-in."""
    insides = [code.co_consts for code in codes if isinstance(code, types.CodeType)]
    return [part for inside in insides for part in inside if isinstance(part, types.CodeType)]


GRAPH_MODULE_CALLS = frozenset((*GRAPH_CALLING_CODES, *_parts(_MAKING)))  # calls of graph modules
MODULE_CALLS = GRAPH_MODULE_CALLS.union(CALLING_CODES, _parts(*CALLING_CODES))
"""How modules are called, with hooks or without: nothing but calls of what is the user's."""

OF_A_MODULE = words("_forward_hooks _forward_pre_hooks _backward_hooks _backward_pre_hooks")
OF_A_MODULE |= words("_forward_hooks_with_kwargs _forward_hooks_always_called _forward_pre_hooks_with_kwargs")
OF_ALL_MODULES = frozenset(f"_global{name}" for name in OF_A_MODULE)


def are_hooks(source: Source) -> bool:
    """Whether a dictionary holds hooks, or which of them are of a kind."""
    if isinstance(source, Item):
        return source.key in OF_ALL_MODULES and isinstance(source.base, GlobalsOf)
    return isinstance(source, InstanceAttribute) and source.name in OF_A_MODULE


# -- numbers of hooks -----------------------------------------------------------------------------------------------


def compares_keys_only(trace: Trace, record: Record) -> bool:
    """Whether the code that is looking at a dictionary of hooks has no other use for the keys than comparing them."""
    code = trace.frames[-1].code
    return (code in MODULE_CALLS or code in COLLECTING_CODES) and are_hooks(record.source)


def guard_order(trace: Trace, record: Record) -> None:
    """All hooks are looked at: guard how many there are. Each is read by its place."""
    trace.guards.add(record.source, "length", len(record.items))
    if record not in trace.hooks.guarded_by_order:
        trace.hooks.guarded_by_order.append(record)


def guard_membership(trace: Trace, record: Record, key: object) -> bool:
    """Whether it could be guarded without its number that a hook is, or is not, among those of a kind."""
    if not record.items:
        trace.guards.add(record.source, "truth", False)
        return True
    tables = [table for table in trace.hooks.guarded_by_order if table is not record and key in table.items]
    if tables and record not in trace.hooks.guarded_by_order:
        trace.hooks.guarded_by_order.append(record)
    for table in tables:
        places = Computed(places_in, (table.source, record.source))
        trace.guards.add(places, "constant", places_in(table.real, record.real))
    return bool(tables)


def places_in(table: dict[Any, Any], kind: dict[Any, Any]) -> tuple[bool, ...]:
    """Which hooks of a table are of a kind."""
    return tuple([key in kind for key in table])


def guard_changed_keys(trace: Trace) -> None:
    """Dictionaries that the program changed are written back by key: the keys must be those."""
    for record in trace.hooks.guarded_by_order:
        if list(record.shadow) != list(record.items):
            trace.guards.add(record.source, "keys", tuple(record.items))


# -- hooks that nobody asked to watch -------------------------------------------------------------------------------


def are_unguarded(source: Source) -> bool:
    return not config.guard_module_hooks and are_hooks(source)


def wrap_unguarded(trace: Trace, real: dict[Any, Any], source: Source) -> object:
    """The shadow of a dictionary of hooks: no guard on what is in it, each hook held by the entry itself."""

    if real and isinstance(source, InstanceAttribute):
        owner = next(record.real for record in trace.outside.by_real.values() if record.source == source.base)
        trace.guards.add(source.base, "identity", owner)
    shadow: collections.OrderedDict[Any, Any] = collections.OrderedDict()
    for key, hook in mapping_items(real):
        shadow[key] = operations.wrap(trace, hook, Pinned(Identity(hook)))
    record = Record(shadow, real, source, Kind.DICT, items=dict(shadow), loaded=True)
    trace.outside.by_real[id(real)] = trace.outside.by_shadow[id(shadow)] = (
        record  # not among those that must stay distinct
    )
    trace.outside.keep.append(record)
    return shadow
