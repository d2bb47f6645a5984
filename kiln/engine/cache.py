"""Compiled backward passes: found by what a walk saw, made when there is none.

Everything but sizes has to be equal. A graph is first made for the sizes of the walk at hand; sizes that were others in
a later one become symbols, and a graph with symbols serves all sizes for which what its trace assumed holds.
"""

from __future__ import annotations

import collections
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..forking import new_lock
from . import telling
from .blocks import disable
from .departure import Stop
from .opaque_trace import OpaqueTracer
from .refusal import Busy, Refused
from .running import consuming
from .trace import Traced, Tracer, trace

MOST_FAMILIES = 512  # the oldest go then
MOST_GRAPHS = 64  # made for one key: then sizes vary in ways that symbols do not catch
MOST_REMEMBERED = 256  # sizes for which the graph is known without a check; each takes some ten bytes a node
Compiler = Callable[[Any], Callable[..., Any]]


@dataclass(slots=True)
class Entry:
    """One compiled graph."""

    compiled: Callable[..., Any]
    picks: list[tuple[int, str]]
    check: Callable[[Sequence[int]], bool]
    stops: list[Stop]
    last_uses: list[int]
    opaque: bool  # whether the graph calls the program's Python code without that being captured
    ran: bool = False


@dataclass(slots=True)
class Family:
    """The graphs made for one key."""

    names: list[str]
    held: list[Any]  # objects whose identity is part of the key, or weak references by which their end is known
    sizes: list[int]  # of the last walk that a graph was made for
    dynamic: frozenset[int] = frozenset()
    can_vary: bool = True  # whether it can be traced with symbols
    opaque: bool = False  # whether its Python code cannot be captured in one graph
    entries: list[Entry] = field(default_factory=list)
    refusal: str | None = None


class Cache:
    """All graphs made by one compiler."""

    def __init__(self, compiler: Compiler) -> None:
        self.compiler = compiler
        self.families: dict[Any, Family] = {}
        self.remembered: dict[Any, Entry] = {}
        self.lock = new_lock()

    def find(self, walk: Any, state: Any, outputs: int) -> Entry:
        """The graph for a walk. Raises `Refused`."""
        whole = (walk.key, walk.size_bytes, state)
        entry = self.remembered.get(whole)
        if entry is None:
            with self.lock:
                entry = self.find_or_make(walk, (walk.key, state), outputs)
                if len(self.remembered) >= MOST_REMEMBERED:
                    self.remembered.clear()
                self.remembered[whole] = entry
        return entry

    def forget(self, entry: Entry) -> None:
        """A new trace would be better: make one the next time."""
        with self.lock:
            self.remembered = {key: other for key, other in self.remembered.items() if other is not entry}
            for family in self.families.values():
                family.entries = [other for other in family.entries if other is not entry]

    def make_opaque(self, entry: Entry) -> None:
        """Make no more graphs like this one in which the program's Python code is to be captured."""
        for family in list(self.families.values()):
            if any(one is entry for one in family.entries):
                family.opaque = True
        self.forget(entry)

    def drop(self, key: Any) -> None:
        """Forget what was made for a key."""
        with self.lock:
            family = self.families.pop(key, None)
            if family is not None:
                gone = {id(entry) for entry in family.entries}
                self.remembered = {key: entry for key, entry in self.remembered.items() if id(entry) not in gone}

    def watched(self, objects: Sequence[Any], key: Any) -> list[Any]:
        """Classes and functions that are in a key by their address: with the first that dies the graphs go."""

        def end(_: Any, cache: weakref.ref[Cache] = weakref.ref(self)) -> None:
            owner = cache()
            if owner is not None:
                owner.drop(key)

        return [weakref.ref(one, end) if type(one).__weakrefoffset__ else one for one in objects]

    def find_or_make(self, walk: Any, key: Any, outputs: int) -> Entry:
        family = self.families.get(key)
        sizes = walk.sizes
        if family is None:
            names = [call.name for call in walk.calls]
            self.tell_new(names, len(walk.key))
            family = self.families[key] = Family(names, self.watched(walk.classes, key), sizes)
            while len(self.families) > MOST_FAMILIES:
                self.drop(next(iter(self.families)))
        else:
            for entry in family.entries:
                if entry.check(sizes):
                    return entry
            if family.refusal is not None:
                raise Refused(family.refusal)
            self.note_changes(walk, family, sizes)
        if len(family.entries) >= MOST_GRAPHS:
            raise Refused(f"{MOST_GRAPHS} graphs were made for other sizes of the same pass")
        entry = self.make(walk, family, outputs)
        family.entries.append(entry)
        return entry

    def make(self, walk: Any, family: Family, outputs: int) -> Entry:
        traced = self.traced(walk, family, outputs)
        telling.captured()
        telling.graph(traced.module)
        with disable():  # passes that the compiler itself starts are torch's
            compiled = self.compiler(traced.module)
        if compiled is traced.module:
            compiled = consuming(traced.module)
        return Entry(compiled, traced.picks, traced.check, traced.stops, traced.last_uses, family.opaque)

    def traced(self, walk: Any, family: Family, outputs: int) -> Traced:
        """A trace with symbols or, where some operation of the pass cannot do with them, for the sizes at hand."""
        kind = OpaqueTracer if family.opaque else Tracer
        if family.dynamic and family.can_vary:
            try:
                return trace(walk, family.dynamic, outputs, kind)
            except Busy:
                raise
            except Refused:
                family.can_vary = False
        try:
            return trace(walk, frozenset(), outputs, kind)
        except Busy:
            raise
        except Refused as refusal:
            family.refusal = str(refusal)
            raise

    def note_changes(self, walk: Any, family: Family, sizes: list[int]) -> None:
        """Sizes that are not what they were become symbols."""
        changed = [place for place, size in enumerate(sizes) if size != family.sizes[place]]
        new = [place for place in changed if place not in family.dynamic]
        if new:
            owners = owners_of_sizes(walk)
            for place in new:
                index = owners[place]
                telling.dynamic_size(place, family.names[index], index)
        family.dynamic |= frozenset(changed)
        family.sizes = sizes

    def tell_new(self, names: list[str], key_size: int) -> None:
        """Say from which node on the pass is not like one that was met before."""
        longest = 0
        for family in self.families.values():
            common = next(
                (place for place, pair in enumerate(zip(names, family.names, strict=False)) if pair[0] != pair[1]),
                min(len(names), len(family.names)),
            )
            longest = max(longest, common)
        index = min(longest, len(names) - 1)
        before = [len(key[0]) for key, family in self.families.items() if family.names[:index] == names[:index]]
        telling.new_node(names[index], index, key_size, before)


def owners_of_sizes(walk: Any) -> dict[int, int]:
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
