"""Objects from outside the captured function: records, sources, copies, identity, and globals that it wrote."""

from __future__ import annotations

import types
from dataclasses import field
from typing import TYPE_CHECKING, Any

from ..._native import is_instance as isinstance
from ...platform.light_dataclass import dataclass
from ..guards.guards import GuardSet, plain
from ..guards.source import Attribute, GlobalsOf, Identity, InstanceAttribute, Item, Pinned, Source
from .annotations import AnnotationTables
from .values import DELETED, Lazy, Raised, Record

if TYPE_CHECKING:
    from ..shadows.appended_lists import AppendedList


@dataclass(eq=False, slots=True)
class OutsideObjects:
    """What capture knows of objects from outside, mostly by their ids."""

    function: types.FunctionType  # that is captured
    guards: GuardSet
    annotated: AnnotationTables = field(
        default_factory=AnnotationTables
    )  # functions that annotations of torch's are about
    by_real: dict[int, Any] = field(default_factory=dict)  # -> Record or TensorRecord
    by_shadow: dict[int, Record] = field(default_factory=dict)
    sources: dict[int, Source] = field(default_factory=dict)  # of values known by identity: functions, classes, modules
    copies: dict[int, tuple[object, Source]] = field(default_factory=dict)  # of immutable objects
    foreign: dict[int, object] = field(default_factory=dict)  # of unknown kinds: themselves, not to be looked into
    appended: dict[int, AppendedList] = field(default_factory=dict)  # lists that were only appended to
    namespaces: dict[int, tuple[object, str]] = field(default_factory=dict)  # dictionary -> its owner, attribute
    instance_dictionaries: set[int] = field(default_factory=set)  # of objects that have shadows
    reordered_sets: dict[int, Any] = field(default_factory=dict)  # whose shadows iterate in another order
    set_iterators: dict[int, tuple[object, object]] = field(default_factory=dict)  # over those -> (iterator, set)
    globals: dict[int, tuple[dict[str, Any], dict[str, object]]] = field(default_factory=dict)  # -> (dict, written)
    reached: dict[int, Lazy] = field(default_factory=dict)  # what the program reached, perhaps without looking at it
    reads: list[tuple[Source, object]] | None = None  # what the program looks at, where somebody asks
    keep: list[object] = field(default_factory=list)  # ids above stay valid while these live

    def forget_reals(self) -> None:
        """Let shadows know nothing of real objects: shadows that refer to each other live until they are collected."""
        for record in self.by_shadow.values():
            record.real = None
            held = record.items.values() if isinstance(record.items, dict) else record.items
            for value in (*(record.attributes or {}).values(), *(held or ())):
                if type(value) is Lazy:
                    value.real = value.value = None

    # -- records and sources --------------------------------------------------------------------------------------

    def add_record(self, record: Record) -> object:
        self.by_real[id(record.real)] = record
        self.by_shadow[id(record.shadow)] = record
        self.keep.append(record)
        self.guards.distinct.setdefault(record.source)
        return record.shadow

    def record_of(self, value: object) -> Record | None:
        return self.by_shadow.get(id(value))

    def name_source(self, value: object, source: Source) -> None:
        if id(value) not in self.sources:
            self.sources[id(value)] = source
            self.keep.append(value)

    def source_of(self, value: object) -> Source | None:
        record = self.by_shadow.get(id(value))
        return record.source if record is not None else self.sources.get(id(value))

    def pinned(self, value: object) -> Source:
        """The value's source; one that holds it if nothing else leads there."""
        source = self.source_of(value)
        if source is None:
            source = Pinned(Identity(value))
            self.name_source(value, source)
        return source

    # -- globals --------------------------------------------------------------------------------------------------

    def globals_source(self, namespace: dict[str, Any]) -> Source:
        return GlobalsOf(None if namespace is self.function.__globals__ else Identity(namespace))

    def written_globals(self, namespace: dict[str, Any]) -> dict[str, object]:
        return self.globals.setdefault(id(namespace), (namespace, {}))[1]

    def load_global(self, namespace: dict[str, Any], name: str) -> object:
        """A global as the program sees it: written by it, or outside (guarded), or a builtin."""
        written = self.globals.get(id(namespace))
        if written is not None and name in written[1]:
            value = written[1][name]
            if value is DELETED:
                raise Raised(NameError(f"name {name!r} is not defined", name=name))
            return value
        source = self.globals_source(namespace)
        if name in namespace:
            return self.reach(Lazy(namespace[name], Item(source, name)))
        builtins = namespace.get("__builtins__", __builtins__)
        builtins = builtins.__dict__ if isinstance(builtins, types.ModuleType) else builtins
        self.guards.add(source, "lacks_key", name)
        if name not in builtins:
            raise Raised(NameError(f"name {name!r} is not defined", name=name))
        value = builtins[name]
        self.guards.add(Item(GlobalsOf(Identity(builtins)), name), "identity", value)
        return value

    # -- presence -------------------------------------------------------------------------------------------------

    def reach(self, value: object) -> object:
        """The program has reached a value, and perhaps never looks at it: at least that it is there is assumed."""
        if type(value) is Lazy and not value.done:
            self.reached[id(value)] = value
        return value

    def guard_presence(self) -> None:
        """Guard what was reached and not looked at, once capture is done. (Of sequences the length is guarded.)"""
        types: dict[Source, type] = {guard.source: plain(guard.value) for guard in self.guards if guard.kind == "type"}
        for value in self.reached.values():
            source = value.source
            if value.done:
                continue
            if isinstance(source, InstanceAttribute):
                self.guards.add(source.base, "has_attribute", source.name)
            elif isinstance(source, Item) and issubclass(types.get(source.base, dict), dict):
                self.guards.add(source.base, "has_key", source.key)
            elif isinstance(source, Attribute) and source.name == "cell_contents":
                self.guards.add(source.base, "full_cell")
