"""Dictionaries of hooks on modules, where ``config.guard_module_hooks`` is off: assumed to stay as they are.

Hooks are contents of ordinary dictionaries, which torch's own ``Module.__call__`` looks at; capture interprets that, so
they are guarded and called like everything else, and need nothing here. Whoever turns these guards off gets entries
that hold the hooks they were made with: one removed later is still called, one added later is not. Such an entry is for
the one module that has these hooks; one without hooks is, as always, for all modules of its class.
"""

from __future__ import annotations

import collections

from ..config import config
from .source import GlobalsOf, Identity, InstanceAttribute, Item, Pinned, Source
from .trace import Trace
from .values import Kind, Record, mapping_items, words

OF_A_MODULE = words("_forward_hooks _forward_pre_hooks _backward_hooks _backward_pre_hooks")
OF_A_MODULE |= words("_forward_hooks_with_kwargs _forward_hooks_always_called _forward_pre_hooks_with_kwargs")
OF_ALL_MODULES = frozenset(f"_global{name}" for name in OF_A_MODULE)


def are_assumed(source: Source) -> bool:
    """Whether a dictionary holds hooks that nobody asked to watch."""
    if config.guard_module_hooks:
        return False
    if isinstance(source, Item):
        return source.key in OF_ALL_MODULES and isinstance(source.base, GlobalsOf)
    return isinstance(source, InstanceAttribute) and source.name in OF_A_MODULE


def assume(trace: Trace, real: collections.OrderedDict, source: Source) -> object:
    """The shadow of a dictionary of hooks: no guard on what is in it, each hook held by the entry itself."""
    from .wrap import wrap

    if real and isinstance(source, InstanceAttribute):
        owner = next(record.real for record in trace.by_real.values() if record.source == source.base)
        trace.guards.add(source.base, "identity", owner)
    shadow: collections.OrderedDict = collections.OrderedDict()
    for key, hook in mapping_items(real):
        shadow[key] = wrap(trace, hook, Pinned(Identity(hook)))
    record = Record(shadow, real, source, Kind.DICT, items=dict(shadow), loaded=True)
    trace.by_real[id(real)] = trace.by_shadow[id(shadow)] = record  # not among those that must stay distinct
    trace.keep.append(record)
    return shadow
