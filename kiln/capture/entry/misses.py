"""Why an entry does not fit a call, in words, and what that teaches about sizes and numbers that vary.

Only run on a miss: guards are evaluated one by one, in order. None of the program's code runs for it, and nothing
warns: what stands where something else stood is looked at by its type alone.
"""

from __future__ import annotations

import collections
import types
from collections.abc import Callable
from typing import Any

import torch

from ... import _native
from ..._native import MISSING
from ..._native import is_instance as isinstance
from ...config import config
from ...platform.python_objects import mapping_items
from ...program.shapes.expressions import NAMES
from ..guards.descriptions import PLAIN_IDS, full_name, short_name
from ..guards.generated_text import Text
from ..guards.guards import KINDS, Guard, GuardSet, ShapeCondition, is_empty_tuple, plain
from ..guards.hints import NEEDED, Hints, is_operand
from ..guards.source import (
    ClosureCell,
    Computed,
    GlobalsOf,
    Identity,
    Item,
    Local,
    Pinned,
    Source,
    TypeOf,
    bases_of,
    native_iterator,
    native_length,
    signature,
    with_bases,
)
from ..interpreter.call_wrappers import FILE as CALLERS_FILE
from ..interpreter.call_wrappers import parameter_names
from ..state.operations import Args, Kwargs
from .entry import Entry


def reason_for_miss(entry: Entry, function: types.FunctionType, args: Args, kwargs: Kwargs, hints: Hints) -> str:
    """The first assumption that fails. All sizes and numbers that differ are noted in ``hints``."""
    reader = SourceReader(function, args, kwargs, entry.guards)
    reasons = [entry.state.reason()]
    reasons += [failed(reader, guard, hints) for guard in entry.guards]
    reasons += failed_elsewhere(entry, reader, hints)
    reasons += [same_objects(entry, reader), reader.first_refused]
    return next((words for words in reasons if words is not None), "an assumption that cannot be named")


def in_callee_names(source: Source, names: list[str]) -> Source:
    """What is compiled for a module or a callable object takes ``*args``: name them as the user's own function does."""
    if isinstance(source, Item) and source.base == Local("args") and type(source.key) is int:
        return Local(names[source.key]) if source.key < len(names) else source
    if isinstance(source, Item) and source.base == Local("kwargs") and type(source.key) is str:
        return Local(source.key)
    if source == Local("target"):
        return Local("self")
    return with_bases(source, tuple([in_callee_names(base, names) for base in bases_of(source)]))


def same_objects(entry: Entry, reader: SourceReader) -> str | None:
    """Which two objects, different when the entry was made, are the same one now."""
    found: dict[int, Source] = {}
    for source in entry.guards.distinct:
        try:
            value = reader.read(source)
        except Unreachable:
            continue
        other = found.setdefault(id(value), source)
        if other is not source:
            return f"{reader.describe(other)} and {reader.describe(source)} are the same object now, and were two"
    return None


def failed(reader: SourceReader, guard: Guard, hints: Hints) -> str | None:
    name = reader.describe(guard.source)
    value = plain(guard.value)
    try:
        seen = reader.read(guard.source)
    except Refused:  # it may well be as it was: the reason only if there is no other
        reader.first_refused = reader.first_refused or f"{name} may not be what it was"
        return None
    except Unreachable:
        return f"{name} is not there any more"
    if isinstance(value, Source):
        if reader.leads_to(value, seen) is (guard.kind == "same"):
            return None
        return f"{name} {KINDS[guard.kind].words(reader.named(value))} expected, {KINDS[guard.kind].seen(seen)} seen"
    kind = KINDS[guard.kind]
    if kind.inside and not reader.is_familiar(guard.source, seen):
        expected = reader.types.get(guard.source, object)
        return f"{name} type: {full_name(expected)} expected, {full_name(type(seen))} seen"
    if reader.holds(guard, seen, value):
        return None
    if guard.kind == "constant" and type(value) is type(seen) and config.automatic_dynamic:
        learn_from_constant(guard.source.describe(), value, reader, hints)
    other = f" of type {short_name(type(seen))}" if guard.kind == "constant" and type(seen) is not type(value) else ""
    return f"{name} {kind.words(value)}, {safe(kind.seen, seen)}{other} seen"


def safe(words: Callable[[object], str], value: object) -> str:
    try:
        return words(value)
    except Exception:  # a length of something that has none, say
        return f"a {short_name(type(value))}"


def learn_from_constant(name: str, value: Any, reader: SourceReader, hints: Hints) -> None:
    """A constant that varies: a number becomes symbolic; where its very value is needed, or there are no symbols for
    its kind, the program's use of it is left to Python in the end."""
    if type(value) in (int, float):
        hints[name] = NEEDED if name in reader.needed else True
        return
    if is_operand(name):
        count: Any = hints.get(name) or 0
        hints[name] = NEEDED if count == NEEDED or count + 1 >= TOLERATED else count + 1


TOLERATED = 2  # so many values of an operand get an entry each


def failed_elsewhere(entry: Entry, reader: SourceReader, hints: Hints) -> list[str | None]:
    """Assumptions about classes, code, tensors and symbolic sizes."""
    guards = entry.guards
    reasons = [guards.classes.reason(), guards.code_reason()]
    if entry.tensor_check is not None:
        reasons.append(tensor_reason(entry.tensor_check, entry.tensor_sources, reader, hints))
    return reasons + [condition_reason(reader, condition, hints) for condition in guards.shapes]


def condition_reason(reader: SourceReader, condition: ShapeCondition, hints: Hints) -> str | None:
    try:
        values = {name: reader.read(source) for name, source in condition.symbols}
        holds = all(type(value) is int or type(value) is float for value in values.values()) and eval(
            condition.text, dict(NAMES), values
        )
    except (Unreachable, ArithmeticError, ValueError):  # a division by zero, say
        holds = False
    if holds:
        return None
    names = {source.describe() for _, source in condition.symbols}
    if config.automatic_dynamic and names <= reader.needed:
        for name in names:
            hints[name] = NEEDED
    return f"{condition.describe(reader.describe)} expected"


def tensor_reason(check: _native.TensorCheck, sources: list[Source], reader: SourceReader, hints: Hints) -> str | None:
    try:
        tensors = [reader.read(source) for source in sources]
    except Unreachable:
        return "a tensor is not there any more"
    if config.automatic_dynamic:
        for index, dimension in check.mismatches(*tensors):
            place = sources[index].describe()
            known = hints.get(place)
            hints[place] = (known if isinstance(known, frozenset) else frozenset()) | {dimension}
    return check.reason([reader.describe(source) for source in sources], *tensors)


class Unreachable(Exception):
    """There is nothing where a source leads, or nothing that could be read without running the program's code."""


class Refused(Unreachable):
    """Reading a source could run the program's code."""


class SourceReader:
    """Reads sources for one call, by evaluating their text: only through objects of the types that the entry was made
    for, or of builtin ones. Of any other object an attribute, item or length could be the program's code."""

    def __init__(self, function: types.FunctionType, args: Args, kwargs: Kwargs, guards: GuardSet):
        text = f"def _k_function({signature(function.__code__)}):\n    return _k_locals()\n"
        namespace: dict[str, object] = {"_k_locals": locals}
        exec(text, namespace)
        bind: Any = namespace["_k_function"]
        bind.__defaults__ = function.__defaults__
        bind.__kwdefaults__ = function.__kwdefaults__
        self.values = bind(*args, **kwargs)
        self.function = function
        wrapped = function.__code__.co_filename == CALLERS_FILE
        self.names = parameter_names(function, args) if wrapped else None  # of what it calls
        self.known: dict[Source, object] = {}
        self.first_refused: str | None = None  # in words, the first source that was not read
        self.types = guards.types
        self.needed = guards.needed  # numbers whose very value the entry needed
        self.indices: dict[int, dict[object, object]] = {}  # of dictionaries: their constant keys

    def named(self, source: Source) -> Source:
        return source if self.names is None else in_callee_names(source, self.names)

    def describe(self, source: Source) -> str:
        return self.named(source).describe()

    def leads_to(self, source: Source, value: object) -> bool:
        """Whether this very object is where the source says."""
        try:
            return self.read(source) is value
        except Unreachable:
            return False

    def is_familiar(self, source: Source, value: object) -> bool:
        """Whether looking into an object runs no code that the check itself would not run."""
        expected = self.types.get(source)
        if expected is not None:
            return type(value) is expected
        if isinstance(source, TypeOf):
            return value is self.types.get(source.base)
        return isinstance(source, FIXED) or id(type(value)) in BUILTIN_IDS

    def holds(self, guard: Guard, seen: object, value: object) -> bool:
        """Whether an assumption is true of an object."""
        if guard.kind in ("has_key", "lacks_key"):
            return (self.find(seen, value) is not MISSING) is (guard.kind == "has_key")
        if guard.kind == "truth":
            return bool(native_length(seen)) is value
        text = Text()
        expression = "not native_length(seen)"
        if not is_empty_tuple(value):
            expression = KINDS[guard.kind].render("seen", value, text.bind)
        try:
            return bool(eval(expression, {**text.namespace, "seen": seen, "native_length": native_length}))
        except Exception:
            return False

    def find(self, container: object, key: object) -> object:
        """What a dictionary or set has for a constant, or MISSING; keys of the program's own classes are not compared
        with it, which could run their ``__eq__``."""
        index = self.indices.get(id(container))
        if index is None:
            pairs = (
                mapping_items(container) if isinstance(container, dict) else map(as_pair, native_iterator(container))
            )
            index = self.indices[id(container)] = {key_of(key): value for key, value in pairs}
        return index.get(key_of(plain(key)), MISSING)

    def read(self, source: Source) -> object:
        """The object that a source leads to; what was read once is kept: sources share long beginnings."""
        if source in self.known:
            return self.known[source]
        bases = bases_of(source)
        if not all([self.is_familiar(base, self.read(base)) for base in bases]):
            raise Refused
        if isinstance(source, Item) and isinstance(self.read(source.base), dict):
            found = self.find(self.read(source.base), source.key)
            if found is MISSING:
                raise Unreachable
        else:
            found = self.evaluate(source, bases)
        self.known[source] = found
        return found

    def evaluate(self, source: Source, bases: tuple[Source, ...]) -> object:
        text = Text()
        names: dict[str, object] = {"_k_G": self.function.__globals__, "_k_C": self.function.__closure__}
        operands = [f"_k_operand_{place}" for place, _ in enumerate(bases)]
        names |= zip(operands, map(self.read, bases), strict=True)
        if isinstance(source, Computed):
            expression = source.render_call(operands, text.bind)
        elif bases:
            expression = source.render(operands[0], text.bind)
        else:
            expression = text.read(source)
            names |= self.values
        try:
            return eval(expression, {**text.namespace, **names})
        except Exception as error:
            raise Unreachable from error


def as_pair(value: object) -> tuple[object, object]:
    return value, value


def key_of(key: Any) -> object:
    """A key that hashes and compares natively: a constant is its own, another object is known by identity."""
    kind = type(key)
    if kind is tuple:
        return tuple([key_of(item) for item in key])
    return key if id(kind) in PLAIN_IDS else Identity(key)


FIXED = (Pinned, GlobalsOf, ClosureCell)  # what these lead to is the same object at each call, or the same kind
BUILTIN: tuple[type, ...] = (
    dict,
    list,
    tuple,
    set,
    frozenset,
    collections.OrderedDict,
    collections.defaultdict,
    collections.deque,
)
BUILTIN += (types.CellType, types.FunctionType, types.MethodType, types.MappingProxyType, torch.Size)
BUILTIN_IDS = PLAIN_IDS | frozenset(map(id, BUILTIN))  # by identity: a metaclass may define __eq__ and __hash__
