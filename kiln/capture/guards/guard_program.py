"""Guards as a native program: most assumptions about objects, all tensors, and the reading of the graph's inputs.

A check function is Python text; for a model with hundreds of modules that is thousands of lines. What can be said in a
few native steps - entries of dictionaries, types, lengths, constants - goes into one ``_native.GuardProgram`` instead,
which walks from the call's roots over registers and gives the tuple of graph inputs it met. Steps defend themselves, so
they need no order among the guards that stay text; those come after, and may rely on the program.
"""

from __future__ import annotations

import collections
import types
from collections.abc import Callable
from typing import Any

from ... import _native
from ..._native import is_instance as isinstance
from .guards import ANY_KEY, Guard, GuardSet, TensorGuard, plain, same_constant
from .source import (
    Attribute,
    ClosureCell,
    Elements,
    GlobalsOf,
    Identity,
    InstanceAttribute,
    Item,
    Local,
    Pinned,
    Source,
    Values,
    bases_of,
)

Step = tuple[str, int, int, object]
Fact = tuple[str, object, object]

SIZED = (dict, collections.OrderedDict, collections.defaultdict, list, tuple)
KEYS = (str, int)
IN_PLAIN_ORDER = (dict, collections.defaultdict)
LISTED = (Elements, Values)  # lists that Python makes, of which elements are read
ROOTS = (Local, ClosureCell)


class GuardProgram:
    """Steps and registers under construction."""

    def __init__(self, guards: GuardSet):
        self.types: dict[Source, object] = {
            guard.source: plain(guard.value) for guard in guards if guard.kind == "type"
        }
        self.roots: dict[Source, int] = {}
        self.constants: dict[Source, int] = {}
        self.registers: dict[Source, tuple[str, int]] = {}  # roots and constants are numbered when all are known
        self.steps: list[tuple[str, Source, object, object]] = []
        self.tables: dict[tuple[Source, bool], list[tuple[str, object, object]]] = {}
        self.fillers: dict[Source, None] = {}

    # -- which sources can be read --------------------------------------------------------------------------------

    def reads(self, source: Source) -> bool:
        """Whether a source can be read natively; if so it gets a register."""
        if source in self.registers:
            return True
        if isinstance(source, ROOTS) or source.read_first or source == GlobalsOf():
            self.registers[source] = ("root", len(self.roots))
            self.roots[source] = len(self.roots)
            return True
        if isinstance(source, (Pinned, GlobalsOf)):
            self.registers[source] = ("constant", len(self.constants))
            self.constants[source] = len(self.constants)
            return True
        reader = READERS.get(type(source))
        through = source.base if isinstance(source, Item) and isinstance(source.base, LISTED) else source
        if reader is None or not all(map(self.reads, bases_of(through))) or not reader(self, source):
            return False
        self.registers[source] = ("filled", len(self.fillers))
        self.fillers[source] = None
        return True

    def read_attribute(self, source: InstanceAttribute) -> bool:
        self.add_fact(source.base, True, ("read", source.name, source))
        return True

    def read_item(self, source: Item) -> bool:
        if isinstance(source.base, LISTED):
            return self.read_place(source, source.base)
        kind = dict if isinstance(source.base, GlobalsOf) else self.types.get(source.base)
        if isinstance(source.key, Identity) or not isinstance(kind, type):
            return False
        if issubclass(kind, dict) and type(source.key) in KEYS:
            self.add_fact(source.base, False, ("read", source.key, source))
            return True
        if issubclass(kind, (list, tuple)) and type(source.key) is int and source.key >= 0:
            self.steps.append(("element", source.base, source.key, source))
            return True
        return False

    def read_place(self, source: Item, listed: Elements | Values) -> bool:
        """A key or a value of a dictionary, by its place in the order."""
        in_order = self.types.get(listed.base) in IN_PLAIN_ORDER
        if not in_order or type(source.key) is not int or source.key < 0:
            return False
        self.add_fact(
            listed.base, False, ("key_at" if isinstance(listed, Elements) else "value_at", source.key, source)
        )
        return True

    def read_gradient(self, source: Source) -> bool:
        (base,) = bases_of(source)
        self.steps.append(("gradient", base, -1, source))
        return True

    def read_cell(self, source: Attribute) -> bool:
        if source.name != "cell_contents" or not isinstance(source.base, ClosureCell):
            return False
        self.steps.append(("cell", source.base, -1, source))
        return True

    def add_fact(self, base: Source, attributes: bool, fact: tuple[str, object, object]) -> None:
        """Add to what is known of a dictionary; the first thing known makes it a step."""
        facts = self.tables.get((base, attributes))
        if facts is None:
            facts = self.tables[base, attributes] = []
            self.steps.append(("table", base, attributes, facts))
        facts.append(fact)

    # -- guards ---------------------------------------------------------------------------------------------------

    def takes(self, guard: Guard) -> bool:
        """Put a guard into the program, if there are steps for it."""
        row = WRITERS.get(guard.kind)
        return row is not None and row[0](self, row[1], guard.source, plain(guard.value))

    def add_step(self, op: str, source: Source, value: object) -> bool:
        if not self.reads(source):
            return False
        self.steps.append((op, source, -1, value))
        return True

    def add_value(self, op: str, source: Source, value: object) -> bool:
        """A guard on an object itself: where it is an attribute it is known with the other attributes."""
        if type(value) is types.CodeType:
            op = "is"
        if isinstance(source, InstanceAttribute) and self.reads(source.base):
            self.add_fact(source.base, True, (op, source.name, value))
            return True
        return self.add_step(op, source, value)

    def add_attribute(self, op: str, source: Source, name: object) -> bool:
        if not self.reads(source):
            return False
        self.add_fact(source, True, (op, name, None))
        return True

    def add_key(self, op: str, source: Source, key: object) -> bool:
        kind = self.types.get(source)
        dictionary = isinstance(kind, type) and issubclass(kind, dict)
        if not dictionary or type(key) not in KEYS or not self.reads(source):
            return False
        self.add_fact(source, False, (op, key, None))
        return True

    def add_keys(self, op: str, source: Source, keys: Any) -> bool:
        if not keys:
            return self.add_sized("length", source, 0)
        native = self.types.get(source) in IN_PLAIN_ORDER and all(key is ANY_KEY or type(key) in KEYS for key in keys)
        if not native or not self.reads(source):
            return False
        self.add_fact(source, False, (op, "", tuple(... if key is ANY_KEY else key for key in keys)))
        return True

    def add_sized(self, op: str, source: Source, value: object) -> bool:
        if self.types.get(source) not in SIZED or not self.reads(source):
            return False
        if op == "truth":
            op, value = ("full" if value else "empty"), -1
        self.steps.append((op, source, value, None))
        return True

    def add_same(self, op: str, source: Source, other: object) -> bool:
        if not isinstance(other, Source) or not self.reads(other):
            return False
        return self.add_step(op, source, other)

    # -- the native object ----------------------------------------------------------------------------------------

    @property
    def is_worthwhile(self) -> bool:
        """Whether there is anything to walk to: arguments alone are read faster by Python."""
        return bool(self.fillers)

    def number(self, source: Source) -> int:
        kind, index = self.registers[source]
        if kind == "root":
            return index
        return len(self.roots) + index + (len(self.constants) if kind == "filled" else 0)

    def build(
        self,
        inputs: list[Source],
        distinct: list[Source],
        tensors: list[TensorGuard],
        tensor_check: _native.TensorCheck | None,
    ) -> _native.GuardProgram:
        """The program; ``inputs`` is what it answers with. All these sources can be read."""
        return _native.GuardProgram(
            registers=len(self.registers),
            roots=len(self.roots),
            constants=[constant_value(source) for source in self.constants],
            steps=[self.native_step(*step) for step in self.steps],
            inputs=[self.number(source) for source in inputs],
            distinct=[self.number(source) for source in distinct],
            tensors=[self.number(tensor.source) for tensor in tensors],
            tensor_check=tensor_check,
            same_constant=same_constant,
        )

    def native_step(self, op: str, base: Source, number: Any, what: Any) -> Step:
        register = self.number(base)
        if op == "table":
            return op, register, -1, (number, [self.native_fact(*fact) for fact in what])
        if op in ("same", "not_same"):
            return op, register, self.number(what), None
        if op in ("element", "cell", "gradient"):
            return op, register, number, self.number(what)
        return op, register, number, what

    def native_fact(self, op: str, key: Any, what: Any) -> Fact:
        return op, key, self.number(what) if op in ("read", "key_at", "value_at") else what


def constant_value(source: Source) -> object:
    assert isinstance(source, (Pinned, GlobalsOf)) and source.owner is not None
    return source.owner.value


READERS: dict[type, Callable[[GuardProgram, Any], bool]] = {
    InstanceAttribute: GuardProgram.read_attribute,
    Item: GuardProgram.read_item,
    Attribute: GuardProgram.read_cell,
}

Writer = Callable[[GuardProgram, str, Source, object], bool]
WRITERS: dict[str, tuple[Writer, str]] = {
    "type": (GuardProgram.add_step, "type"),
    "code": (GuardProgram.add_step, "code"),
    "constant": (GuardProgram.add_value, "equals"),
    "identity": (GuardProgram.add_value, "is"),
    "not_identity": (GuardProgram.add_value, "is_not"),
    "length": (GuardProgram.add_sized, "length"),
    "native_length": (GuardProgram.add_sized, "length"),
    "truth": (GuardProgram.add_sized, "truth"),
    "keys": (GuardProgram.add_keys, "keys"),
    "has_key": (GuardProgram.add_key, "present"),
    "lacks_key": (GuardProgram.add_key, "absent"),
    "has_attribute": (GuardProgram.add_attribute, "present"),
    "no_attribute": (GuardProgram.add_attribute, "absent"),
    "same": (GuardProgram.add_same, "same"),
    "not_same": (GuardProgram.add_same, "not_same"),
}
