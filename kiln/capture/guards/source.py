"""Sources: how to reach a real object again from the arguments, globals and closure of the captured function.

A source is a small immutable tree. Guards and rebuilt code are *text*, so the one thing a source must do is render
itself as a Python expression; :meth:`Source.render` takes the renderer of the base, so that shared prefixes are read
once. ``describe`` gives the name that people see (``L['x'].weight``).
"""

from __future__ import annotations

import collections
import gc
import re
import types
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any, TypeVar, dataclass_transform

from ..._native import is_instance as isinstance
from ...operator_functions import attrgetter
from ...platform.light_dataclass import dataclass
from .descriptions import short_name, text_of

NOT_WORD = re.compile(r"\W")

AnySource = TypeVar("AnySource", bound="Source")
Bind = Callable[[object, str], str]
"""Gives the name of an object that generated text refers to."""


class Source:
    """Base of all sources. Subclasses are dataclasses that never change: hashable, comparable; most have a ``base``."""

    _hash: int | None = None
    read_first = False  # a check reads it before its native program runs, and hands it over

    def render(self, base: str, bind: Bind) -> str:
        """The expression that reads this source, given the expression of its base."""
        raise NotImplementedError

    def describe(self) -> str:
        raise NotImplementedError

    def __repr__(self) -> str:
        parts = [f"{name}={value!r}" for name, value in vars(self).items() if name != "_hash"]
        return f"{type(self).__qualname__}({', '.join(parts)})"


@dataclass_transform(frozen_default=True)
def source(cls: type[AnySource]) -> type[AnySource]:
    """A dataclass that works out its hash once: sources are long chains, and keys of many dictionaries.

    Nothing writes to a source (type checkers see to it); a frozen dataclass would take three times as long to make one.
    Comparison and hash are closures: methods that `dataclass` generates take much of the time of a first compile.
    """
    cls = dataclass(eq=False)(cls)
    names = [each.name for each in fields(cls)]  # type: ignore[arg-type]
    values: Callable[[Any], Any] = (
        attrgetter(*names) if len(names) > 1 else lambda self: tuple(vars(self)[name] for name in names)
    )

    def equal(self: Any, other: object) -> bool:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    def cached(self: Any) -> int:
        found: int | None = self._hash
        if found is None:
            found = self._hash = hash(values(self))
        return found

    type.__setattr__(cls, "__eq__", equal)
    type.__setattr__(cls, "__hash__", cached)
    return cls


@source
class Local(Source):
    """A parameter of the captured function."""

    name: str

    def render(self, base: str, bind: Bind) -> str:
        return parameter_name(self.name)

    def describe(self) -> str:
        return f"L[{self.name!r}]"


@source
class GlobalsOf(Source):
    """A globals dictionary: of the captured function itself (``owner is None``) or of another function's module."""

    owner: Identity | None = None  # the dictionary, wrapped so that it hashes by identity

    def render(self, base: str, bind: Bind) -> str:
        return "_k_G" if self.owner is None else bind(self.owner.value, "globals")

    def describe(self) -> str:
        return "G" if self.owner is None else f"G<{text_of(self.owner.value.get('__name__', '?')).strip(chr(39))}>"


@source
class ClosureCell(Source):
    """The cell object at a position of the captured function's closure."""

    index: int
    name: str

    def render(self, base: str, bind: Bind) -> str:
        return f"_k_C[{self.index}]"

    def describe(self) -> str:
        return f"closure {self.name!r}"


@source
class Pinned(Source):
    """An object that the entry holds itself (a module, a class): no path leads to it, none is needed."""

    owner: Identity

    def render(self, base: str, bind: Bind) -> str:
        return bind(self.owner.value, "pinned")

    def describe(self) -> str:
        value = self.owner.value
        if isinstance(value, type):
            return short_name(value).rpartition(".")[2]
        return value.__name__ if type(value) in NAMED else short_name(type(value)).rpartition(".")[2]


NAMED = (types.FunctionType, types.BuiltinFunctionType, types.ModuleType)


class Identity:
    """A wrapper that hashes and compares by identity, to put any object into a frozen source."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and other.value is self.value


@source
class Attribute(Source):
    """A native attribute read (``base.name``); only where no user code can run."""

    base: Source
    name: str

    def render(self, base: str, bind: Bind) -> str:
        return f"{base}.{self.name}" if self.name.isidentifier() else f"_k_getattr({base}, {self.name!r})"

    def describe(self) -> str:
        return self.base.describe() if self.name == "cell_contents" else f"{self.base.describe()}.{self.name}"


@source
class InstanceAttribute(Source):
    """An entry of the instance dictionary, read without running descriptors or ``__getattr__``."""

    base: Source
    name: str
    direct: bool = True  # no ``__getattribute__`` of the program's is in the way

    def render(self, base: str, bind: Bind) -> str:
        namespace = f"{base}.__dict__" if self.direct else f"{bind(namespace_of, 'namespace_of')}({base})"
        return f"{namespace}[{self.name!r}]"

    def describe(self) -> str:
        return f"{self.base.describe()}.{self.name}"


@source
class ClassAttribute(Source):
    """What the class's method resolution order gives for a name, without descriptors being run."""

    base: Source
    name: str

    def render(self, base: str, bind: Bind) -> str:
        return f"{bind(lookup, 'lookup')}({base}, {self.name!r})"

    def describe(self) -> str:
        return f"{self.base.describe()}.{self.name}"


@source
class Slot(Source):
    """A ``__slots__`` member, read through its descriptor."""

    base: Source
    name: str
    descriptor: Identity

    def render(self, base: str, bind: Bind) -> str:
        return f"{bind(self.descriptor.value, 'slot')}.__get__({base})"

    def describe(self) -> str:
        return f"{self.base.describe()}.{self.name}"


@source
class Item(Source):
    """``base[key]`` for a builtin container; subclasses are read past any ``__getitem__`` of theirs.

    ``container`` is the builtin class; for dictionaries with a ``__missing__``, which must not run, ``defaultdict``.
    """

    base: Source
    key: object
    container: type | None = None

    def render(self, base: str, bind: Bind) -> str:
        key = bind(self.key.value, "key") if isinstance(self.key, Identity) else render_key(self.key, bind)
        if self.container is None:
            return f"{base}[{key}]"
        if self.container is collections.defaultdict:
            return f"{bind(present_item, 'present_item')}({base}, {key})"
        return f"{bind(self.container, self.container.__name__)}.__getitem__({base}, {key})"

    def describe(self) -> str:
        key = self.key.value if isinstance(self.key, Identity) else self.key
        return f"{self.base.describe()}[{text_of(key)}]"


@source
class Elements(Source):
    """The elements, as a list, of an iterable that has no index (dictionary keys, sets, deques)."""

    base: Source

    def render(self, base: str, bind: Bind) -> str:
        return f"{bind(elements_of, 'elements_of')}({base})"

    def describe(self) -> str:
        return f"list({self.base.describe()})"


@source
class Referent(Source):
    """What a weak reference refers to."""

    base: Source

    def render(self, base: str, bind: Bind) -> str:
        return f"{base}()"

    def describe(self) -> str:
        return f"{self.base.describe()}()"


@source
class Values(Source):
    """The values of a dictionary, as a list: for keys that are objects which the entry must not keep alive."""

    base: Source

    def render(self, base: str, bind: Bind) -> str:
        return f"{bind(values_of, 'values_of')}({base})"

    def describe(self) -> str:
        return f"list({self.base.describe()}.values())"


@source
class MappingOf(Source):
    """The dictionary behind one of its views, or the mapping behind a read-only proxy."""

    base: Source

    def render(self, base: str, bind: Bind) -> str:
        return f"{bind(mapping_of, 'mapping_of')}({base})"

    def describe(self) -> str:
        return f"mapping of {self.base.describe()}"


@source
class TypeOf(Source):
    """``type(base)``."""

    base: Source

    def render(self, base: str, bind: Bind) -> str:
        return f"_k_type({base})"

    def describe(self) -> str:
        return f"type({self.base.describe()})"


@source
class Made(Source):
    """A variable of the run function, which it makes itself before it calls the graph."""

    name: str

    def render(self, base: str, bind: Bind) -> str:
        return self.name

    def describe(self) -> str:
        return self.name.removeprefix("_k_")


@source
class Literal(Source):
    """A number written in the program: an operand of a :class:`Computed`. (1, 1.0 and True are three literals.)"""

    kind: type
    text: str

    def render(self, base: str, bind: Bind) -> str:
        return f"_k_float({self.text!r})" if self.text.lstrip("-") in ("inf", "nan") else f"({self.text})"

    def describe(self) -> str:
        return self.text


def bases_of(source: Source) -> tuple[Source, ...]:
    """The sources that are read for another one."""
    if isinstance(source, Computed):
        return source.operands
    base = getattr(source, "base", None)
    return () if base is None else (base,)


def with_bases(source: Any, bases: tuple[Source, ...]) -> Source:
    """The same source of other bases."""
    made: Source = source
    if not bases:
        return made
    changed = {"operands": bases} if isinstance(source, Computed) else {"base": bases[0]}
    made = replace(source, **changed)
    return made


@source
class Computed(Source):
    """What a function without effects gives for numbers that are read from other sources."""

    function: Callable[..., Any]
    operands: tuple[Source, ...]

    def render_call(self, operands: list[str], bind: Bind) -> str:
        return f"{bind(self.function, self.function.__name__)}({', '.join(operands)})"

    def describe(self) -> str:
        operands = [operand.describe() for operand in self.operands]
        words = getattr(self.function, "words", None)
        if words is not None:
            return f"({words(operands)})"
        name = self.function.__name__
        if name in SIGNS and len(operands) == 2:
            return f"({operands[0]} {SIGNS[name]} {operands[1]})"
        return f"{name}({', '.join(operands)})"


SIGNS = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**", "lt": "<"}
SIGNS |= {"le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=", "lshift": "<<", "rshift": ">>", "and_": "&"}
SIGNS |= {"or_": "|", "xor": "^", "iadd": "+", "isub": "-", "imul": "*", "itruediv": "/", "ipow": "**"}


def render_key(key: object, bind: Bind) -> str:
    """Text of a constant key: a literal where that is exact, a bound object elsewhere."""
    return repr(key) if type(key) in (str, int, bool, type(None), bytes) and has_text(key) else bind(key, "key")


def has_text(value: object) -> bool:
    """Whether a constant can be written out: Python refuses to write or read ints of thousands of digits."""
    return type(value) is not int or value.bit_length() < 4000


def parameter_name(name: str) -> str:
    """A parameter's name as an identifier (comprehensions call theirs ``.0``, pytest names its own ``@py_assert1``)."""
    return name if name.isidentifier() else "implicit" + NOT_WORD.sub("_", name)


def lookup(cls: type, name: str, default: object = None) -> Any:
    """What ``_PyType_Lookup`` finds: the raw attribute along the method resolution order."""
    if type(cls) is not type:  # a metaclass may define attributes of its own
        return lookup_past_metaclass(cls, name, default)
    for klass in cls.__mro__:
        if name in klass.__dict__:
            return klass.__dict__[name]
    return default


def lookup_past_metaclass(cls: type, name: str, default: object) -> object:
    for klass in _order(cls):
        namespace = _namespace(klass)
        if name in namespace:
            return namespace[name]
    return default


_order = type.__dict__["__mro__"].__get__
_namespace = type.__dict__["__dict__"].__get__


def namespace_of(value: object) -> dict[Any, Any]:
    """An object's instance dictionary, past any ``__getattribute__`` in Python."""
    namespace: dict[str, Any] = object.__getattribute__(value, "__dict__")
    return namespace


def getattr_static_dict(value: object) -> dict[Any, Any] | None:
    """An object's instance dictionary, past any property called ``__dict__``."""
    try:
        namespace = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return namespace if type(namespace) is dict else None


def is_direct(cls: type) -> bool:
    """Whether reading ``__dict__`` of an instance runs no code of the program."""
    return isinstance(lookup(cls, "__getattribute__"), types.WrapperDescriptorType)


def values_of(mapping: dict[Any, Any]) -> list[Any]:
    """The values of a dictionary, in its order."""
    if isinstance(mapping, collections.OrderedDict):  # a dict's own order is not that of move_to_end
        return list(collections.OrderedDict.values(mapping))
    return list(dict.values(mapping))


def mapping_of(view: object) -> Any:
    """What ``keys()``, ``values()``, ``items()`` or ``types.MappingProxyType`` shows: a view refers to nothing else."""
    return gc.get_referents(view)[0]


NATIVE_CONTAINERS: tuple[Any, ...] = (collections.OrderedDict, dict, list, tuple, set, frozenset, collections.deque)


def native_iterator(container: Any) -> Iterator[Any]:
    """Iterate over keys or elements past any ``__iter__`` in Python."""
    for base in NATIVE_CONTAINERS:
        if isinstance(container, base):
            found: Iterator[Any] = base.__iter__(container)
            return found
    return iter(container)


def native_length(container: Any) -> int:
    """The number of keys or elements, past any ``__len__`` in Python."""
    for base in NATIVE_CONTAINERS:
        if isinstance(container, base):
            count: int = base.__len__(container)
            return count
    return len(container)


_ABSENT = object()


def present_item(mapping: dict[Any, Any], key: object) -> object:
    """An item of a dictionary, without asking ``__missing__`` for what is not there."""
    found = dict.get(mapping, key, _ABSENT)
    if found is _ABSENT:
        raise KeyError(key)
    return found


def elements_of(iterable: object) -> list[Any]:
    return list(native_iterator(iterable))


def signature(code: types.CodeType) -> str:
    """The parameters of a code object, without defaults."""
    names = [parameter_name(name) for name in code.co_varnames]
    parts = names[: code.co_argcount]
    if code.co_posonlyargcount:
        parts.insert(code.co_posonlyargcount, "/")
    index = code.co_argcount + code.co_kwonlyargcount
    keyword_only = names[code.co_argcount : index]
    if code.co_flags & 0x04:
        parts.append("*" + names[index])
        index += 1
    elif keyword_only:
        parts.append("*")
    parts += keyword_only
    if code.co_flags & 0x08:
        parts.append("**" + names[index])
    return ", ".join(parts)
