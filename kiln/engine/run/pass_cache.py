"""The cache of compiled backward passes.

Everything that a walk saw, except sizes, is in the key. A graph is first specialised for the sizes of the walk at hand.
Sizes that differ in a later walk become symbols; a graph with symbols serves all sizes that pass its guard.
"""

from __future__ import annotations

import collections
import weakref
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from ...platform.light_dataclass import dataclass
from ...platform.locks import new_lock
from ...program.graph import count_operations
from ...report import engine_events
from ...report.stages import stage
from ..calls.bailout import BailoutPoint
from ..trace.opaque_tracer import OpaqueTracer
from ..trace.tracer import Traced, Tracer, trace
from ..walk.refusal import Busy, Refused
from .scopes import Compiler, disable
from .uncompiled import consuming

if TYPE_CHECKING:
    from ..._native import Walk

MOST_FAMILIES = 512  # the oldest go then
MOST_GRAPHS = 64  # made for one key: then symbols do not generalise its sizes
MOST_EXACT = 256  # sizes for which the graph is known without a guard; each takes some ten bytes a node
Key = tuple[Any, ...]


@dataclass(slots=True)
class Entry:
    """One compiled graph."""

    compiled: Callable[..., Any]
    picks: list[tuple[int, str]]
    guard: Callable[[Sequence[int]], bool]
    points: list[BailoutPoint]
    last_uses: list[int]
    opaque: bool  # whether the graph has opaque calls
    ran: bool = False


@dataclass(slots=True)
class Family:
    """The graphs made for one key."""

    names: list[str]
    held: list[Any]  # objects whose identity is part of the key, or weak references to them
    sizes: list[int]  # of the last walk that a graph was made for
    dynamic: frozenset[int] = frozenset()
    can_be_dynamic: bool = True  # whether it can be traced with symbols
    opaque: bool = False  # whether its graphs need opaque calls
    entries: list[Entry] = field(default_factory=list)
    refusal: str | None = None


class Cache:
    """All graphs made by one compiler."""

    def __init__(self, compiler: Compiler) -> None:
        self.compiler = compiler
        self.families: dict[Key, Family] = {}
        self.exact: dict[Key, Entry] = {}  # by key and sizes
        self.lock = new_lock()

    def find(self, walk: Walk, state: Key, outputs: int) -> Entry:
        """The graph for a walk. Raises `Refused`."""
        whole = (walk.key, walk.size_bytes, state)
        entry = self.exact.get(whole)
        if entry is None:
            with self.lock:
                entry = self.find_or_make(walk, (walk.key, state), outputs)
                if len(self.exact) >= MOST_EXACT:
                    self.exact.clear()
                self.exact[whole] = entry
        return entry

    def forget(self, entry: Entry) -> None:
        """Drop a graph, so that the next pass is traced again."""
        with self.lock:
            self.exact = {key: other for key, other in self.exact.items() if other is not entry}
            for family in self.families.values():
                family.entries = [other for other in family.entries if other is not entry]

    def make_opaque(self, entry: Entry) -> None:
        """Drop a graph; the next ones for its key get opaque calls."""
        for family in list(self.families.values()):
            if any(one is entry for one in family.entries):
                family.opaque = True
        self.forget(entry)

    def drop(self, key: Key) -> None:
        """Drop the graphs of a key."""
        with self.lock:
            family = self.families.pop(key, None)
            if family is not None:
                gone = {id(entry) for entry in family.entries}
                self.exact = {key: entry for key, entry in self.exact.items() if id(entry) not in gone}

    def watched(self, objects: Sequence[Any], key: Key) -> list[Any]:
        """Watch classes and functions that are in a key by their address: when one dies, the graphs are dropped."""

        def end(_: Any, cache: weakref.ref[Cache] = weakref.ref(self)) -> None:
            owner = cache()
            if owner is not None:
                owner.drop(key)

        return [weakref.ref(one, end) if type(one).__weakrefoffset__ else one for one in objects]

    def find_or_make(self, walk: Walk, key: Key, outputs: int) -> Entry:
        family = self.families.get(key)
        sizes = walk.sizes
        if family is None:
            names = [call.name for call in walk.calls]
            self.report_miss(names, len(walk.key))
            family = self.families[key] = Family(names, self.watched(walk.classes, key), sizes)
            while len(self.families) > MOST_FAMILIES:
                self.drop(next(iter(self.families)))
        else:
            for entry in family.entries:
                if entry.guard(sizes):
                    return entry
            if family.refusal is not None:
                raise Refused(family.refusal)
            self.note_changes(walk, family, sizes)
        if len(family.entries) >= MOST_GRAPHS:
            raise Refused(f"{MOST_GRAPHS} graphs were made for other sizes of the same pass")
        entry = self.make(walk, family, outputs)
        family.entries.append(entry)
        return entry

    def make(self, walk: Walk, family: Family, outputs: int) -> Entry:
        with stage("trace") as record:
            traced = self.traced(walk, family, outputs)
            if record is not None:
                record.sizes |= {
                    "nodes": count_operations(traced.module.graph),
                    "dynamic sizes": len(traced.picks),
                    "bailout points": len(traced.points),
                }
        engine_events.captured(traced.module)
        with stage("compile"), disable():  # passes that the compiler itself starts are not compiled
            compiled = self.compiler(traced.module)
        if compiled is traced.module:
            compiled = consuming(traced.module)
        return Entry(compiled, traced.picks, traced.guard, traced.points, traced.last_uses, family.opaque)

    def traced(self, walk: Walk, family: Family, outputs: int) -> Traced:
        """A trace with symbols or, if some operation of the pass does not take them, for the sizes at hand."""
        kind = OpaqueTracer if family.opaque else Tracer
        if family.dynamic and family.can_be_dynamic:
            try:
                return trace(walk, family.dynamic, outputs, kind)
            except Busy:
                raise
            except Refused:
                family.can_be_dynamic = False
        try:
            return trace(walk, frozenset(), outputs, kind)
        except Busy:
            raise
        except Refused as refusal:
            family.refusal = str(refusal)
            raise

    def note_changes(self, walk: Walk, family: Family, sizes: list[int]) -> None:
        """Make the sizes that have changed dynamic."""
        changed = [place for place, size in enumerate(sizes) if size != family.sizes[place]]
        new = [place for place in changed if place not in family.dynamic]
        if new:
            owners = owners_of_sizes(walk)
            for place in new:
                index = owners[place]
                engine_events.dynamic_size(place, family.names[index], index)
        family.dynamic |= frozenset(changed)
        family.sizes = sizes

    def report_miss(self, names: list[str], key_size: int) -> None:
        """Report from which node on the pass differs from the ones in the cache."""
        longest = 0
        for family in self.families.values():
            common = next(
                (place for place, pair in enumerate(zip(names, family.names, strict=False)) if pair[0] != pair[1]),
                min(len(names), len(family.names)),
            )
            longest = max(longest, common)
        index = min(longest, len(names) - 1)
        before = [len(key[0]) for key, family in self.families.items() if family.names[:index] == names[:index]]
        engine_events.cache_miss(names[index], index, key_size, before)


def owners_of_sizes(walk: Walk) -> dict[int, int]:
    """The number of the node that each size belongs to: that of its gradients, what it saved, or its variable."""
    owners: dict[int, int] = collections.defaultdict(int)
    tensors = walk.tensors
    for call in walk.calls:
        positions = [position for one in call.metadata if one is not None for position in one[0]]
        positions += call.saved_sizes
        slots = [slot for slot in call.saved if slot is not None]
        slots += [call.variable] if call.variable is not None else []
        for slot in slots:
            tensor = tensors[slot]
            kind, details = tensor.strides
            positions += [*tensor.sizes, *(details if kind == "given" else ())]
        for position in positions:
            owners.setdefault(position, call.index)
    return owners
