"""Guards: what capture assumed, as a list of ``(source, kind, value)``, rendered into one check per entry.

Each kind is a row of a table: how it is written as an expression, and how it is said in words when it fails. Tensor
properties are checked in native code in one call; class attributes by class version; fixed-dictionary lookups
(globals, module attributes) in one native call as well. The order of discovery is kept: a guard may rely on the ones
before it.
"""

from __future__ import annotations

import abc
import math
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ... import _native
from ... import operator_functions as operator
from ..._native import is_instance as isinstance
from ...platform.light_dataclass import dataclass
from ...platform.python_objects import HEAP_TYPE, cell_is_empty, plain_value, words
from ...program.shapes.expressions import in_words
from .cached_calls import CachedCalls
from .descriptions import full_name, module_of_globals, names_of, short_name, short_text
from .source import (
    Bind,
    GlobalsOf,
    Identity,
    Item,
    Source,
    has_text,
    lookup,
    namespace_of,
    native_iterator,
    native_length,
    render_key,
)
from .tensor_class import methods_of_tensors


@dataclass(unsafe_hash=True)  # never changed; made by the thousand
class Guard:
    """One assumption. ``value`` is wrapped in :class:`Identity` so that guards hash whatever it is."""

    source: Source
    kind: str
    value: Any = None

    def describe(self) -> str:
        return f"{self.source.describe()} {KINDS[self.kind].words(plain(self.value))}"


def is_empty_tuple(value: object) -> bool:
    """Whether a guard asks for no elements. (Comparing values would run the ``__eq__`` of their classes.)"""
    return type(value) is tuple and not value


def plain(value: object) -> Any:
    return value.value if isinstance(value, Identity) else value


@dataclass(eq=False)
class KindOfGuard:
    """A row of the guard table."""

    render: Callable[[str, Any, Bind], str]
    words: Callable[[Any], str]
    seen: Callable[[Any], str]
    inside: bool = False  # it looks into the object: only safe once that is known to have the type it had


def _render_constant(expr: str, value: Any, bind: Bind) -> str:
    if value is None or isinstance(value, bool):
        return f"{expr} is {value!r}"
    if value is Ellipsis or value is NotImplemented:
        return f"{expr} is _k_{value!r}"
    kind = type(value)
    if kind is float:
        return _render_float(expr, value)
    if kind in (int, str, bytes) and has_text(value):
        return f"(_k_type({expr}) is _k_{kind.__name__} and {expr} == {value!r})"
    if kind is types.CodeType:
        return f"{expr} is {bind(value, 'code')}"
    if kind is complex:
        return f"{bind(same_constant, 'same_constant')}({expr}, {bind(value, 'value')})"
    return f"(_k_type({expr}) is {bind(kind, kind.__name__)} and {expr} == {bind(value, 'value')})"


def _render_float(expr: str, value: float) -> str:
    if math.isnan(value):
        return f"(_k_type({expr}) is _k_float and {expr} != {expr})"
    if value == 0:  # 0.0 == -0.0, but 1/x is not the same
        return f"(_k_type({expr}) is _k_float and _k_str({expr}) == {str(value)!r})"
    literal = repr(value) if not math.isinf(value) else f"_k_float({str(value)!r})"
    return f"(_k_type({expr}) is _k_float and {expr} == {literal})"


def _keys_expression(expr: str, keys: tuple[Any, ...], bind: Bind) -> str:
    """Whether a dictionary has these keys in this order."""
    if not keys:
        return f"not {expr}"
    expected = bind(keys, "keys")
    mostly = f"{bind(_native.has_keys, 'has_keys')}({expr}, {expected})"  # and soon told
    return f"({mostly} or {bind(same_keys, 'same_keys')}({expr}, {expected}))"


def same_keys(mapping: dict[Any, Any], keys: tuple[Any, ...]) -> bool:
    """Whether a dictionary (or set) iterates over just these keys, types included."""
    if native_length(mapping) != len(keys):
        return False
    if all(map(operator.is_, native_iterator(mapping), keys)):
        return True
    pairs = zip(native_iterator(mapping), keys, strict=True)
    return all(b is ANY_KEY or a is b or same_constant(a, b) for a, b in pairs)


ANY_KEY: object = type("AnyKey", (), {"__repr__": lambda self: "an object"})()
"""In the keys of a guard: a key that is no constant. It is looked at as an object, by guards of its own."""


def same_constant(a: Any, b: Any) -> bool:
    """Whether no program could tell two constants apart (other than by ``is``)."""
    kind = type(a)
    if kind is not type(b):
        return False
    if kind is tuple or kind is frozenset:
        return len(a) == len(b) and all(map(same_constant, a, b))
    if kind is float or kind is complex:  # -0.0 == 0.0 and nan != nan, but their texts are exact
        return repr(a) == repr(b)
    same: bool = a == b
    return same


def _type_name(value: object) -> str:
    return full_name(value) if isinstance(value, type) else short_text(value)


KINDS: dict[str, KindOfGuard] = {
    "constant": KindOfGuard(_render_constant, lambda v: f"== {short_text(v)}", short_text),
    "identity": KindOfGuard(
        lambda e, v, bind: f"{e} is {bind(v, 'object')}", lambda v: f"is {short_text(v)}", lambda v: short_text(v)
    ),
    "not_identity": KindOfGuard(
        lambda e, v, bind: f"{e} is not {bind(v, 'object')}",
        lambda v: f"is not {short_text(v)}",
        lambda v: short_text(v),
    ),
    "constant_subclass": KindOfGuard(
        lambda e, v, bind: _render_constant(f"{bind(plain_value, 'plain_value')}({e})", v, bind),
        lambda v: f"== {short_text(v)}",
        short_text,
    ),
    "type": KindOfGuard(
        lambda e, v, bind: f"_k_type({e}) is {bind(v, short_name(v))}",
        lambda v: f"type: {_type_name(v)} expected",
        lambda v: _type_name(type(v)),
    ),
    "length": KindOfGuard(
        lambda e, v, bind: f"_k_len({e}) == {v}",
        lambda v: f"length: {v} expected",
        lambda v: str(native_length(v)),
        inside=True,
    ),
    "native_length": KindOfGuard(
        lambda e, v, bind: f"{bind(native_length, 'native_length')}({e}) == {v}",
        lambda v: f"length: {v} expected",
        lambda v: str(native_length(v)),
        inside=True,
    ),
    "truth": KindOfGuard(
        lambda e, v, bind: f"{e}" if v else f"not {e}",
        lambda v: "not empty" if v else "empty",
        lambda v: "not empty" if native_length(v) else "empty",
        inside=True,
    ),
    "has_key": KindOfGuard(
        lambda e, v, bind: f"{render_key(v, bind)} in {e}",
        lambda v: f"has key {short_text(v)}",
        lambda v: "no such key",
        inside=True,
    ),
    "lacks_key": KindOfGuard(
        lambda e, v, bind: f"{render_key(v, bind)} not in {e}",
        lambda v: f"has no key {short_text(v)}",
        lambda v: "one",
        inside=True,
    ),
    "keys": KindOfGuard(
        _keys_expression,
        lambda v: f"keys: {short_text(list(v))} expected",
        lambda v: short_text(list(native_iterator(v))),
        inside=True,
    ),
    "code": KindOfGuard(
        lambda e, v, bind: f"{e}.__code__ is {bind(v, 'code')}",
        lambda v: f"code of {v.co_qualname} (line {v.co_firstlineno})",
        lambda v: short_text(v),
        inside=True,
    ),
    "no_attribute": KindOfGuard(
        lambda e, v, bind: f"{v!r} not in {bind(namespace_of, 'namespace_of')}({e})",
        lambda v: f"has no attribute {v!r}",
        lambda v: "one",
        inside=True,
    ),
    "has_attribute": KindOfGuard(
        lambda e, v, bind: f"{v!r} in {bind(namespace_of, 'namespace_of')}({e})",
        lambda v: f"has attribute {v!r}",
        lambda v: "has it not",
        inside=True,
    ),
    "empty_slot": KindOfGuard(  # the value is the slot's descriptor
        lambda e, v, bind: f"{bind(slot_is_empty, 'slot_is_empty')}({bind(v, 'slot')}, {e})",
        lambda v: f"has no attribute {v.__name__!r}",
        lambda v: "one",
        inside=True,
    ),
    "empty_cell": KindOfGuard(
        lambda e, v, bind: f"{bind(cell_is_empty, 'cell_is_empty')}({e})",
        lambda v: "unbound",
        lambda v: "bound",
        inside=True,
    ),
    "full_cell": KindOfGuard(
        lambda e, v, bind: f"not {bind(cell_is_empty, 'cell_is_empty')}({e})",
        lambda v: "bound",
        lambda v: "unbound",
        inside=True,
    ),
    "id": KindOfGuard(lambda e, v, bind: f"_k_id({e}) == {v}", lambda v: f"id {v}", lambda v: str(id(v))),
    "not_same": KindOfGuard(
        lambda e, v, bind: f"{e} is not {v}", lambda v: f"is not {v.describe()}", lambda v: "the same object"
    ),
    "same": KindOfGuard(lambda e, v, bind: f"{e} is {v}", lambda v: f"is {v.describe()}", lambda v: "another object"),
}


def slot_is_empty(descriptor: types.MemberDescriptorType, owner: object) -> bool:
    """Whether a ``__slots__`` member was never set, or deleted; ``hasattr`` might call a ``__getattr__``."""
    try:
        descriptor.__get__(owner)
    except AttributeError:
        return True
    return False


class ClassWatch:
    """Assumptions about class attributes: checked by class version, re-verified one by one when that moved.

    The attributes' values are held: an entry that guards a function's class keeps that class's attributes alive as
    long as the entry lives, no longer.
    """

    def __init__(self) -> None:
        self.found: dict[type, dict[str, object]] = {}
        self.special: dict[type, dict[str, object]] = {}  # the special methods of each class, and its order of bases
        self.names: dict[type, tuple[str, str, object]] = {}  # where the program asks; no version tells
        self.related: dict[tuple[type, type], bool] = {}  # (class, other class) -> whether it is a subclass
        self.unchanged: Callable[[], bool] = lambda: False
        self.token: object = None  # moves when a class is registered with an abstract one

    def watch(self, cls: type, name: str, raw: object) -> None:
        """Assume that looking a name up in a class gives this; ``MISSING`` that it gives nothing."""
        names = self.found.get(cls)
        if names is None:
            names = self.watch_class(cls)
        names[name] = raw

    def watch_class(self, cls: type) -> dict[str, object]:
        """Assume what Python itself looks up in a class of whose instances something is asked: its special methods."""
        names = self.found.get(cls)
        if names is None:
            names = self.found[cls] = {}
            self.special[cls] = special_attributes(cls)
        return names

    def watch_name(self, cls: type) -> None:
        """Assume what a class is called."""
        if cls.__flags__ & HEAP_TYPE:
            self.names[cls] = names_of(cls)

    def watch_names_in(self, text: str) -> None:
        """Assume what the classes are called that a text (the message of an error) may name."""
        for cls in self.found:
            if cls not in self.names and any(name in text for name in names_of(cls)[:2]):
                self.watch_name(cls)

    def relate(self, cls: type, other: type, subclass: bool) -> None:
        """Assume that a class is (or is not) a subclass of another; where that can change."""
        if type(other) is not type or cls.__flags__ & HEAP_TYPE:
            self.related[cls, other] = subclass

    def __bool__(self) -> bool:
        return bool(self.found or self.related or self.names)

    def note_versions(self) -> None:
        """Remember the versions; called when capture is done."""
        classes = dict.fromkeys([*self.found, *(cls for cls, _ in self.related if cls.__flags__ & HEAP_TYPE)])
        self.unchanged = _native.ClassCheck([(cls, _native.type_version(cls)) for cls in classes])
        self.token = abc.get_cache_token() if self.related else None

    @property
    def versions_tell(self) -> bool:
        """Whether all assumptions hold as long as no class has another version; asked when it is sealed."""
        return not self.names and self.token is None

    def check(self) -> bool:
        if self.names and not all(names_of(cls) == names for cls, names in self.names.items()):
            return False
        unchanged = self.unchanged() and (self.token is None or self.token == abc.get_cache_token())
        return unchanged or self.verify()

    def verify(self) -> bool:
        if self.reason() is not None:
            return False
        self.note_versions()
        return True

    def reason(self) -> str | None:
        """The first assumption that no longer holds, in words."""
        for cls, names in self.found.items():
            for name, raw in names.items():
                seen = lookup(cls, name, _native.MISSING)
                if seen is not raw:
                    return f"{short_name(cls)}.{name}: {described(raw)} expected, {described(seen)} seen"
        for cls, special in self.special.items():
            now = special_attributes(cls)
            for name in special.keys() | now.keys():
                raw, seen = special.get(name, _native.MISSING), now.get(name, _native.MISSING)
                if raw is not seen and not (name == "__mro__" and same_objects(raw, seen)):
                    return f"{short_name(cls)}.{name}: {described(raw)} expected, {described(seen)} seen"
        for cls, known in self.names.items():
            if names_of(cls) != known:
                return f"class {known[1]} is called {short_name(cls)} now"
        for (cls, other), subclass in self.related.items():
            if not decides_natively(other):
                return f"{short_name(cls)} may be or not be a subclass of {short_name(other)} now"
            if issubclass(cls, other) is not subclass:
                return f"{short_name(cls)} {'was' if subclass else 'was not'} a subclass of {short_name(other)}"
        return None


def decides_natively(cls: type) -> bool:
    """Whether asking for subclasses of a class runs no code but Python's own."""
    check = lookup(type(cls), "__subclasscheck__")
    hook = lookup(cls, "__subclasshook__")
    return all(is_of_python(part.__func__ if isinstance(part, classmethod) else part) for part in (check, hook))


def is_of_python(function: object) -> bool:
    """Whether a method is native, or a function of the standard library."""
    module = module_of_globals(function.__globals__) if isinstance(function, types.FunctionType) else "builtins"
    return module.partition(".")[0] in sys.stdlib_module_names


def special_attributes(cls: type) -> dict[str, object]:
    """The attributes of a class and its bases that Python looks up by itself, and the order of the bases.

    Rules of capture ask for these in many places, each of which would have to watch them.
    """
    found: dict[str, object] = {"__mro__": cls.__mro__}
    for base in reversed(cls.__mro__):
        if base is torch.Tensor:
            found |= methods_of_tensors()
        elif base.__flags__ & HEAP_TYPE:
            found |= [item for item in vars(base).items() if item[0][:2] == "__" and item[0] not in NOT_SPECIAL]
    return found


NOT_SPECIAL = words(
    "__doc__ __module__ __dict__ __weakref__ __annotations__ __annotate__ __annotations_cache__ __annotate_func__ "
    "__slotnames__ __qualname__ __name__ __orig_bases__ __parameters__ __slots__ "
    "__firstlineno__ __static_attributes__ __dataclass_params__ __dataclass_fields__"
)


def same_objects(some: Any, others: Any) -> bool:
    """Whether two tuples hold the same objects."""
    return len(some) == len(others) and all(map(operator.is_, some, others))


def described(value: object) -> str:
    return "nothing" if value is _native.MISSING else short_text(value)


@dataclass(eq=False)
class TensorGuard:
    """A graph input's properties."""

    source: Source
    real: Any  # the tensor
    dynamic: tuple[bool, ...] | None
    strides: bool = True
    words: str = ""

    def forget(self) -> None:
        """Keep the words, let the tensor go: entries outlive the arguments they were made for."""
        self.words = self.describe()
        self.real = None

    def describe(self) -> str:
        tensor = self.real
        if tensor is None:
            return self.words
        free = self.dynamic or (False,) * len(tensor.shape)
        sizes = ["any" if any_size else str(size) for size, any_size in zip(tensor.shape, free, strict=True)]
        dtype = str(tensor.dtype).removeprefix("torch.")
        grad = ", requires grad" if tensor.requires_grad else ""
        kind = type(tensor).__name__
        return f"{self.source.describe()} {kind} {dtype}[{', '.join(sizes)}] on {tensor.device}{grad}"


class GuardSet:
    """All assumptions of one capture, in order of discovery."""

    def __init__(self) -> None:
        self.guards: dict[Guard, None] = {}
        self.classes = ClassWatch()
        self.codes: dict[types.FunctionType, types.CodeType] = {}  # of functions known by identity
        self.tensors: list[TensorGuard] = []
        self.distinct: dict[Source, None] = {}
        self.shapes: list[ShapeCondition] = []
        self.needed: set[str] = set()  # symbolic numbers whose very value was needed, by description
        self.state: object = None
        self.types: dict[Source, type] = {}  # that objects had, once capture is done
        self.extras: list[tuple[str, Callable[[], bool]]] = []  # words, predicate without arguments
        self.cached = CachedCalls()

    def add(self, source: Source, kind: str, value: object = None) -> None:
        wrapped = value if kind in HASHED else Identity(value)
        self.guards.setdefault(Guard(source, kind, wrapped))

    def add_code(self, function: types.FunctionType, source: Source | None) -> None:
        """Assume an inlined function's code, where its source is guarded by identity (or not at all)."""
        if source is not None and Guard(source, "code", Identity(function.__code__)) not in self.guards:
            self.codes[function] = function.__code__

    def note_types(self) -> dict[Source, type]:
        """What is known of the types of objects, by their sources: from guards, and from tensors while they live."""
        self.types = {guard.source: plain(guard.value) for guard in self.guards if guard.kind == "type"}
        self.types |= {tensor.source: type(tensor.real) for tensor in self.tensors}
        return self.types

    def code_reason(self) -> str | None:
        """Which function got other code."""
        for function, code in self.codes.items():
            if function.__code__ is not code:
                return f"{function.__module__}.{function.__qualname__} has other code than it had"
        return None

    def __iter__(self) -> Iterator[Guard]:
        return iter(self.guards)

    def describe(self) -> list[str]:
        """The guards in words, for people."""
        lines = [guard.describe() for guard in self.guards]
        lines += [tensor.describe() for tensor in self.tensors]
        lines += [condition.describe() for condition in self.shapes]
        for cls, names in self.classes.found.items():
            lines.append(f"class {cls.__qualname__}: {', '.join(sorted(names))} unchanged")
        for (cls, other), subclass in self.classes.related.items():
            lines.append(f"{cls.__qualname__} {'is' if subclass else 'is not'} a subclass of {other.__qualname__}")
        lines += [words for words, _ in self.extras]
        lines += self.cached.describe()
        if len(self.distinct) > 1:
            lines.append(f"{len(self.distinct)} arguments and objects are not the same object")
        return lines


@dataclass(unsafe_hash=True)  # never changed
class ShapeCondition:
    """A condition on symbolic sizes: text in terms of ``symbols``."""

    text: str
    symbols: tuple[tuple[str, Source], ...]

    def describe(self, describe: Callable[[Source], str] = lambda source: source.describe()) -> str:
        return in_words(self.text, {name: describe(source) for name, source in self.symbols})


HASHED = words("length native_length id truth no_attribute has_attribute same not_same")


def is_global_lookup(source: Source) -> bool:
    """Whether a source is ``fixed dictionary[name]``."""
    return isinstance(source, Item) and isinstance(source.base, GlobalsOf)
