"""Arguments for native code: lazies looked at, callbacks as trampolines, objects with Python methods as proxies.

Native code must meet neither a lazy value nor a special method that is Python code: a :class:`Survey` forces what it
would look at, :class:`ForcedIterator` does so for elements that come out of an iterator, and proxies lead special
methods back into the interpreter.
"""

from __future__ import annotations

import collections
import enum
import functools
import itertools
import math
import re
import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ... import _native
from ... import operator_functions as operator
from ..._native import MISSING
from ..._native import is_instance as isinstance
from ...config import config
from ...platform.python_objects import HEAP_TYPE, words
from ..guards.source import lookup, mapping_of, native_iterator, native_length
from ..state.enum_tables import watch_members
from ..state.operations import Args, Kwargs, operation, operations
from ..state.progress import long_computation
from ..state.trace import Trace
from ..state.values import CONSTANT_TYPES, InterpretedIterator, Opaque, Record, SpecialMethod, Trampoline, new_tuple
from . import module_hooks
from .builtin_tables import (
    CONTAINERS,
    ITERATOR_TYPES,
    KEYED_NAMES,
    LAZY_ITERATORS,
    NATIVE_METHODS,
    VIEW_TYPES,
    describe,
)
from .symbolic_numbers import SYMBOLIC, concrete
from .wrap import IDENTITY_TYPES, class_attribute, force, guard_all_elements, is_constant

# -- keys of outside dictionaries ------------------------------------------------------------------------------------


def guard_keys(trace: Trace, function: object, args: Args) -> None:
    """Guard as much of an outside dictionary as this call sees: one key, or all of them."""
    name = getattr(function, "__name__", "")
    for position, arg in enumerate(args):
        arg = force(trace, arg)
        record = trace.outside.record_of(viewed_mapping(arg) if type(arg) in VIEWS_AND_PROXIES else arg)
        if record is None or record.loaded or not isinstance(record.shadow, dict):
            continue
        if position == 0 and name in KEYED_NAMES and len(args) > 1:
            guard_key(trace, record, force(trace, args[1]))
        elif position == 0 and name in ("__setitem__",):
            continue
        else:
            guard_all_keys(trace, record)


def viewed_mapping(value: object) -> object:
    """The mapping that a view or read-only proxy shows; any other value itself."""
    while type(value) in VIEWS_AND_PROXIES:
        value = mapping_of(value)
    return value


VIEWS_AND_PROXIES: frozenset[type] = VIEW_TYPES | {types.MappingProxyType}


def guard_key(trace: Trace, record: Record, key: object) -> None:
    key = concrete(trace, key)
    hooks = module_hooks.are_hooks(record.source)
    if hooks and module_hooks.compares_keys_only(trace, record) and module_hooks.guard_membership(trace, record, key):
        return
    if hooks or not is_constant(key) or "__contains__" in python_methods(type(record.real)):
        guard_these_keys(trace, record)
        return
    present = key in record.items
    trace.guards.add(record.source, "has_key" if present else "lacks_key", key)


def guard_all_keys(trace: Trace, record: Record) -> None:
    if module_hooks.compares_keys_only(trace, record):
        module_hooks.guard_order(trace, record)
    else:
        guard_these_keys(trace, record)


def load_keys(trace: Trace, mapping: object) -> None:
    """Guard the keys of a dictionary from outside, once."""
    record = trace.outside.record_of(mapping)
    if record is not None and not record.loaded:
        guard_all_keys(trace, record)


def guard_these_keys(trace: Trace, record: Record) -> None:
    guard_all_elements(trace, record.real, record.source)
    record.loaded = True


# -- what native code would meet ------------------------------------------------------------------------------------

SPECIAL_METHODS = words(
    "__eq__ __ne__ __lt__ __le__ __gt__ __ge__ __hash__ __iter__ __next__ __len__ __getitem__ __contains__ __bool__ "
    "__int__ __index__ __float__ __call__ __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __abs__ "
    "__neg__ __round__ __reversed__ __repr__ __str__ __format__ __length_hint__ __divmod__ __pow__ __mod__ "
    "__floordiv__ __setitem__ __enter__ __exit__ __iadd__ __trunc__ __floor__ __ceil__ __complex__ __bytes__ keys"
)

_PYTHON_METHODS: weakref.WeakKeyDictionary[type, tuple[int, tuple[str, ...], tuple[str, ...], tuple[str, ...]]]
_PYTHON_METHODS = weakref.WeakKeyDictionary()


def python_methods(cls: type) -> tuple[str, ...]:
    """Special methods of a class that are Python code: native code must not call them past the interpreter."""
    return special_methods(cls)[1]


def special_methods(cls: type) -> tuple[int, tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """The version of a class, its special methods in Python, those that are ``None``, and those of a native base."""
    found = _PYTHON_METHODS.get(cls)
    if found is None or not found[0] or found[0] != _native.type_version(cls):
        raw = {name: lookup(cls, name, MISSING) for name in SPECIAL_METHODS}
        python = tuple([name for name in raw if is_python(raw[name])])
        blocked = tuple([name for name in raw if raw[name] is None])
        native = tuple([name for name in raw if is_of_native_base(raw[name])])
        found = _PYTHON_METHODS[cls] = (_native.type_version(cls), python, blocked, native)
    return found


def is_of_native_base(method: object) -> bool:
    return isinstance(method, NATIVE_METHODS) and method.__objclass__ is not object


def is_python(method: object) -> bool:
    """Whether a special method is Python code. (``None`` in its place means the same to native code.)"""
    return isinstance(method, types.FunctionType) or (method is not None and is_special(method))


UNUSUAL_METHODS = (staticmethod, classmethod, property, types.MethodType, types.BuiltinFunctionType, type)


def is_special(method: object) -> bool:
    """Whether what a class has for a special method is neither a function nor a native class's own descriptor."""
    if method is MISSING:
        return False
    return not callable(method) or isinstance(method, UNUSUAL_METHODS) or bool(type(method).__flags__ & HEAP_TYPE)


def is_object(value: object) -> bool:
    """Whether a value has special methods in Python that native code would run past the interpreter."""
    kind = type(value)
    if isinstance(value, enum.EnumMeta) and runs_python(value):  # native code iterates over its members
        return True
    return bool(kind.__flags__ & HEAP_TYPE) and runs_python(kind)


def runs_python(kind: type) -> bool:
    """Whether native code on instances of a class would run special methods in Python."""
    methods = python_methods(kind)
    if not methods or issubclass(kind, PLAIN_OBJECTS):
        return False
    if issubclass(kind, (enum.Enum, type)):  # those of the enum module, and texts of constants, may run natively
        others = (lookup(kind, name) for name in methods if name not in ("__str__", "__repr__", "__format__"))
        return any(getattr(method, "__module__", None) != "enum" for method in others)
    return True


class Survey:
    """Looks through arguments: forces lazies, makes symbols concrete, and notes what native code would meet."""

    def __init__(self, trace: Trace, *, keep_symbols: bool, shallow: bool, iterates: bool = True):
        self.trace = trace
        self.keep_symbols = keep_symbols
        self.iterates = iterates  # native code may take elements out of iterators, and not only compare these
        self.shallow = shallow
        self.tensors = False
        self.objects = False
        self.number_objects = False  # among the objects are numbers
        self.symbols = False  # that native code will see
        self.other_numbers = False  # those that symbolic numbers know nothing of
        self.unknown: object = None
        self.buffer: type | None = None  # a class whose memory Python code gives, past any proxy
        self.seen: set[int] = set()

    def visit(self, value: object) -> object:
        value = force(self.trace, value)
        kind = type(value)
        if kind in CONSTANT_TYPES:
            if kind is complex or kind is bool:
                self.other_numbers = True
            return value
        if kind in SYMBOLIC:
            kept = self.shallow or (self.keep_symbols and kind is torch.SymInt)  # no sums of floats by sympy
            self.symbols = self.symbols or kept
            return value if kept else concrete(self.trace, value)
        if isinstance(value, torch.Tensor):
            self.tensors = True
            return value
        if isinstance(value, tuple):
            return self.visit_tuple(value)
        if isinstance(value, (list, dict, collections.deque, set, frozenset)):
            return self.visit_container(value)
        if isinstance(value, types.SimpleNamespace):
            load_namespace_keys(self.trace, value)
            self.visit(value.__dict__)
        if kind in NATIVE_ITERATORS or issubclass(kind, InterpretedIterator):
            return self.visit_iterator(value, kind)
        if kind is types.MappingProxyType:
            if not self.shallow:
                self.visit(mapping_of(value))
            return value
        self.note(value, kind)
        return value

    def visit_tuple(self, value: tuple[Any, ...]) -> tuple[Any, ...]:
        before = value if type(value) is tuple else tuple(tuple.__iter__(value))
        items = [self.visit(item) for item in before]
        self.note_class(type(value))
        if all(a is b for a, b in zip(items, before, strict=True)):
            return value
        return new_tuple(type(value), items)

    def visit_container(self, value: object) -> object:
        if id(value) in self.seen or self.shallow:
            self.note_class(type(value))
            return value
        self.seen.add(id(value))
        iterates, self.iterates = self.iterates, False  # iterators in it are elements
        record = self.trace.outside.record_of(value)
        if record is not None and not record.loaded and isinstance(value, dict):
            guard_all_keys(self.trace, record)
        if isinstance(value, dict):
            for key in dict.keys(value):
                self.visit(key)
            for key, item in list(dict.items(value)):
                visited = self.visit(item)
                if visited is not item:
                    dict.__setitem__(value, key, visited)
        elif isinstance(value, (list, collections.deque)):
            base: Any = list if isinstance(value, list) else collections.deque
            for index, item in enumerate(list(base.__iter__(value))):
                visited = self.visit(item)
                if visited is not item:
                    base.__setitem__(value, index, visited)
        else:
            for item in list(native_iterator(value)):
                self.visit(item)
        self.iterates = iterates
        self.note_class(type(value))
        return value

    def visit_iterator(self, value: object, kind: type) -> object:
        if id(value) in self.trace.outside.foreign:
            self.unknown = value
            return value
        if self.shallow:
            return value
        if kind in VIEW_TYPES:
            owner = mapping_of(value)
            objects, self.objects = self.objects, False
            self.visit(owner)
            self.objects = objects or any(is_object(item) for entry in dict.items(owner) for item in entry)
            return value
        return ForcedIterator(self.trace, value) if self.iterates else value

    def note(self, value: object, kind: type) -> None:
        if kind.__flags__ & HEAP_TYPE and isinstance(lookup(kind, "__buffer__"), types.FunctionType):
            self.buffer = kind
        if id(value) in self.trace.outside.foreign:
            self.unknown = value
        elif kind not in KNOWN_KINDS and (not isinstance(value, KNOWN_TYPES) or isinstance(value, (enum.Enum, type))):
            self.note_class(kind)
            self.objects = self.objects or is_object(value)
            if isinstance(value, (int, float, complex)):
                self.other_numbers = True
                self.number_objects = self.number_objects or is_object(value)
            if isinstance(value, enum.EnumMeta):
                watch_members(self.trace, value)

    def note_class(self, kind: type) -> None:
        if not kind.__flags__ & HEAP_TYPE:
            return
        watch_special_methods(self.trace, kind)
        if runs_python(kind):
            self.objects = True


def load_namespace_keys(trace: Trace, value: object) -> None:

    operations.load_namespace(trace, value)


def watch_special_methods(trace: Trace, kind: type) -> None:
    """A special method that a class gets later would change what native code does with its instances."""
    if "__length_hint__" not in trace.guards.classes.found.get(kind, ()):
        for name in SPECIAL_METHODS:
            class_attribute(trace, kind, name)


STEPS_EACH = 30  # elements that native code takes in about the time of one interpreted step


class ForcedIterator:
    """An iterator handed to native code: its elements are looked at as they come."""

    __slots__ = ("iterator", "steps", "trace")

    def __init__(self, trace: Trace, iterator: Any):
        self.trace = trace
        self.iterator = iterator
        self.steps = 0

    def __iter__(self) -> ForcedIterator:
        return self

    def __next__(self) -> object:
        # The iterator moves on: an instruction that breaks after this must be run again.
        self.trace.progress.entered += 1
        self.steps += 1
        if self.steps > STEPS_EACH * config.max_idle_steps and not self.trace.options.fullgraph:
            raise long_computation(self.trace)
        value = next(self.iterator)
        return value if type(value) in CONSTANT_TYPES else forced_iterator(self.trace, value)

    def __length_hint__(self) -> Any:
        hint = getattr(type(self.iterator), "__length_hint__", None)
        return NotImplemented if hint is None else hint(self.iterator)


def forced_iterator(trace: Trace, value: object) -> object:
    """A value that native code may look at and compare."""
    survey = Survey(trace, keep_symbols=True, shallow=False)
    value = survey.visit(value)
    if survey.unknown is not None:
        raise trace.fail(f"native code on a {type(survey.unknown).__qualname__} object from outside")
    return proxied(trace, value, {}) if survey.objects else value


NATIVE_ITERATORS: frozenset[type] = ITERATOR_TYPES | LAZY_ITERATORS | VIEW_TYPES
KNOWN_KINDS: frozenset[type] = NATIVE_ITERATORS | frozenset(
    {
        types.FunctionType,
        types.MethodType,
        Trampoline,
        Opaque,
        slice,
        functools.partial,
        super,
        types.CellType,
        ForcedIterator,
    }
)
KNOWN_TYPES = (*IDENTITY_TYPES, enum.Enum, BaseException, operator.itemgetter, operator.attrgetter, torch.device)
PLAIN_OBJECTS = (torch.Tensor, Trampoline, ForcedIterator, *SYMBOLIC)  # their methods may run natively


# -- callbacks ------------------------------------------------------------------------------------------------------

# Where a builtin takes a callable that it calls on elements: position, keyword.
CALLBACKS: dict[object, tuple[int | None, str | None]] = {
    map: (0, None),
    filter: (0, None),
    functools.reduce: (0, None),
    functools.cmp_to_key: (0, "mycmp"),
    sorted: (None, "key"),
    min: (None, "key"),
    max: (None, "key"),
    list.sort: (None, "key"),
    collections.defaultdict.__init__: (1, None),
    collections.defaultdict: (0, None),
    itertools.accumulate: (1, "func"),
    itertools.dropwhile: (0, None),
    itertools.takewhile: (0, None),
    itertools.filterfalse: (0, None),
    itertools.starmap: (0, None),
    itertools.groupby: (1, "key"),
    iter: (0, None),
    re.Pattern.sub: (1, "repl"),
    re.Pattern.subn: (1, "repl"),
}
# What a missing callback stands for, where native code would look at elements itself.
IMPLIED_CALLBACKS: dict[object, object] = {
    filter: bool,
    itertools.filterfalse: bool,
    itertools.accumulate: operator.add,
}


def callbacks(trace: Trace, function: object, args: Args, kwargs: Kwargs) -> tuple[tuple[Any, ...], dict[Any, Any]]:
    """Arguments with the callables that native code is going to call as trampolines."""
    try:
        position, keyword = CALLBACKS.get(function, (None, None))
    except TypeError:
        return args, kwargs
    implied = IMPLIED_CALLBACKS.get(function)
    if position is not None and position < len(args) and (function is not iter or len(args) == 2):
        callback = implied if args[position] is None else args[position]
        args = (*args[:position], as_callback(trace, callback, function), *args[position + 1 :])
    elif implied is not None and position == len(args) and keyword not in kwargs:
        args = (*args, as_callback(trace, implied))
    if keyword in kwargs:
        callback = implied if kwargs[keyword] is None else kwargs[keyword]
        kwargs = {**kwargs, keyword: as_callback(trace, callback, function)}
    return args, kwargs


# They look at what their callback returns.
LOOKING: frozenset[object] = frozenset({sorted, min, max, list.sort, itertools.groupby, filter, itertools.filterfalse})
LOOKING |= {itertools.takewhile, itertools.dropwhile, functools.cmp_to_key, iter}


FACTORY_TAKERS: frozenset[object] = frozenset({collections.defaultdict, collections.defaultdict.__init__})


def as_callback(trace: Trace, value: object, function: object = None) -> object:
    """A callable for native code: calling it comes back into the interpreter."""
    if function is iter and not callable(value):
        return value  # for CPython's error
    if function in LOOKING and value is not None and type(value) is not COMPARISON_KEY:
        return Trampoline(unproxy(value), lambda *call: forced_iterator(trace, trace.invoke(*call)))
    if value is None or type(value) is Trampoline or not callable(value) or type(value) is COMPARISON_KEY:
        return value
    if function in FACTORY_TAKERS and isinstance(value, type) and not value.__flags__ & HEAP_TYPE:
        return value
    return trace.trampoline(unproxy(value))


COMPARISON_KEY = type(functools.cmp_to_key(lambda a, b: 0))


# -- proxies --------------------------------------------------------------------------------------------------------


class Proxy:
    """Stands for an object whose special methods are Python code; each leads back into the interpreter."""

    __slots__ = ("__weakref__", "target", "trace")

    target: Any
    trace: Trace


_PROXY_CLASSES: dict[tuple[object, ...], type] = {}
"""By what `special_methods` finds, and whether it is a builtin container."""


def proxy(trace: Trace, value: object) -> Any:
    _, methods, blocked, native = special_methods(type(value))
    container = isinstance(value, CONTAINERS)
    cls = _PROXY_CLASSES.get((methods, blocked, native, container))
    if cls is None:
        namespace: dict[str, object] = {name: _native_method(name) for name in native}
        if container:
            namespace.update({"__iter__": _native_iter, "__len__": _native_len})
        namespace.update({name: _special_method(name) for name in methods})
        namespace.update(dict.fromkeys(blocked))
        if "__eq__" in namespace:
            namespace.setdefault("__hash__", None)
        cls = type("Proxy", (Proxy,), {**namespace, "__slots__": ()})
        _PROXY_CLASSES[methods, blocked, native, container] = cls
    made = cls()
    made.target = value
    made.trace = trace
    return made


def _native_iter(self: Proxy) -> ForcedIterator:
    """Elements of a builtin container whose subclass has other methods in Python."""
    return ForcedIterator(self.trace, native_iterator(self.target))


def _native_len(self: Proxy) -> int:
    return native_length(self.target)


def _special_method(name: str) -> Callable[..., Any]:
    def method(self: Proxy, *args: Any) -> object:
        if name == "__index__" and isinstance(self.target, int):
            return int.__index__(self.target)  # native code does not ask an int
        if name == "__float__" and isinstance(self.target, float):
            return float.__float__(self.target)  # nor a float
        function = lookup(type(self.target), name)
        if isinstance(function, types.FunctionType):
            name_method(self.trace, type(self.target), name, function)
        else:
            function = SpecialMethod(name)
        return _invoke_method(self, name, function, args)

    method.__name__ = name
    return method


def name_method(trace: Trace, cls: type, name: str, function: object) -> None:
    """A method of a class from outside has cells from outside: it is not taken for a function made here."""

    operations.name_class_value(trace, cls, name, function)


def _native_method(name: str) -> Callable[..., Any]:
    """What a subclass of a builtin class inherits: the operation is done on the object that the proxy stands for."""
    operation = BUILTIN_OPERATIONS.get(name) or getattr(operator, name, None)

    def method(self: Proxy, *args: Any) -> object:
        return _invoke_method(self, name, operation or lookup(type(self.target), name), args)

    method.__name__ = name
    return method


def _invoke_method(self: Proxy, name: str, function: Any, args: Args) -> object:
    result = self.trace.invoke(function, (self.target, *(unproxy(arg) for arg in args)), {})
    if name == "__iter__" and (type(result) in NATIVE_ITERATORS or issubclass(type(result), InterpretedIterator)):
        return ForcedIterator(self.trace, result)  # native code looks at the elements
    result = concrete(self.trace, result) if name in NUMBER_METHODS else result
    if name in CONVERSIONS:
        check_conversion(self.trace, name, result)
    return proxied(self.trace, result, {})


def check_conversion(trace: Trace, name: str, result: object) -> None:
    """Python warns of an instance of a subclass, and raises at other classes: that is left to it."""
    if type(result) is not CONVERSIONS[name]:
        raise trace.fail(f"a {name} that returns a {type(result).__qualname__}")


CONVERSIONS: dict[str, type] = {"__index__": int, "__int__": int, "__float__": float, "__complex__": complex}
BUILTIN_OPERATIONS: dict[str, object] = {
    f"__{function.__name__}__": function
    for function in (
        hash,
        iter,
        next,
        len,
        bool,
        int,
        float,
        complex,
        reversed,
        repr,
        str,
        format,
        divmod,
        round,
        bytes,
    )
}
NUMBER_METHODS = words("__len__ __hash__ __index__ __int__ __float__ __bool__ __length_hint__")

# Builtins that work on proxies: they neither keep their arguments nor look at more than special methods.
PROXY_FUNCTIONS: frozenset[object] = frozenset(
    {
        sorted,
        sum,
        min,
        max,
        any,
        all,
        list,
        tuple,
        set,
        frozenset,
        map,
        filter,
        zip,
        enumerate,
        reversed,
        iter,
        len,
        next,
    }
    | {dict, functools.reduce, float, int, abs, divmod, round, str.join, itertools.chain, itertools.islice, pow}
    | {operator.length_hint, operator.index, list.extend, set.update, collections.deque, itertools.accumulate}
    | {operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge, repr, str, ascii, complex, bytes}
    | {tuple.index, tuple.count}
    | {math.floor, math.ceil, math.trunc, operator.countOf, operator.indexOf, format, math.sqrt, math.prod, math.fsum}
    | {hex, bin, oct, chr, range}
)


COMPARISONS = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)


def proxies(trace: Trace, function: object, args: Args, kwargs: Kwargs) -> tuple[tuple[Any, ...], dict[Any, Any]]:
    """Arguments for a builtin that may call special methods written in Python."""
    if function not in PROXY_FUNCTIONS:
        raise trace.fail(f"{describe(function)} on an object whose special methods are Python code")
    if function in COMPARISONS and any(type(arg) in VIEWS_AND_PROXIES for arg in args):
        raise trace.fail("comparing a view of a dictionary with objects in it")
    known: dict[int, object] = {}
    return (
        tuple([proxied(trace, arg, known) for arg in args]),
        {key: proxied(trace, value, known) for key, value in kwargs.items()},
    )


def unchanged(containers: list[tuple[object, list[object]]]) -> bool:
    """Whether containers that native code saw copies of are still as they were."""
    return all(list(map(id, native_iterator(value))) == list(map(id, items)) for value, items in containers)


def copied_containers(values: Iterable[object], found: list[tuple[object, list[object]]]) -> list[Any]:
    """The lists, sets and mappings among some values and in them, with what they hold."""
    for value in values:
        if type(value) in PROXIED_CONTAINERS and not any(value is known for known, _ in found):
            items = list(native_iterator(value))
            if type(value) is not tuple:
                found.append((value, items))
            copied_containers(items, found)
    return found


def proxied(trace: Trace, value: object, known: dict[int, object]) -> object:
    """The value with proxies for the objects in it; one proxy per object, since native code compares identities."""
    value = force(trace, value)
    kind = type(value)
    if kind in CONSTANT_TYPES or isinstance(value, torch.Tensor) or (isinstance(value, type) and not is_object(value)):
        return value
    if id(value) in known:
        return known[id(value)]
    if kind in VIEWS_AND_PROXIES:
        return proxied_view(trace, value, known)
    if kind in PROXIED_CONTAINERS:
        made = known[id(value)] = PROXIED_CONTAINERS[kind](trace, value, known)
        return made
    if is_object(value):
        if not isinstance(value, (InterpretedIterator, Proxy)):
            made = known[id(value)] = proxy(trace, value)
            trace.outside.keep.append(value)
            return made
    return value


def _proxied_items(trace: Trace, value: Any, known: dict[int, object]) -> object:
    return type(value)([proxied(trace, item, known) for item in value])


def _proxied_mapping(trace: Trace, value: dict[Any, Any], known: dict[int, object]) -> object:
    pairs = [(proxied(trace, key, known), proxied(trace, item, known)) for key, item in value.items()]
    return type(value)(pairs)


def proxied_view(trace: Trace, view: Any, known: dict[int, object]) -> object:
    """A view with objects in it, for native code that iterates over it."""
    if type(view) is types.MappingProxyType:
        raise trace.fail("native code on a read-only proxy of a mapping with objects in it")
    items = [proxied(trace, item, known) for item in view]
    unchanged = all(a is b for a, b in zip(items, view, strict=True))
    return view if unchanged and not type(view).__name__.endswith("items") else iter(items)


PROXIED_CONTAINERS: dict[type, Callable[..., Any]] = {
    **{kind: _proxied_items for kind in (list, tuple, set, frozenset, collections.deque)},
    **{kind: _proxied_mapping for kind in (dict, collections.OrderedDict)},
}


@operation
def unproxy(value: Any, within: tuple[int, ...] = ()) -> object:
    """Results without proxies and trampolines; ``within`` are the lists around the value, one of which it may be."""
    kind = type(value)
    if isinstance(value, Proxy):
        return value.target
    if kind is Trampoline:
        return value.function
    if kind is ForcedIterator:
        return value.iterator
    if id(value) in within:
        return value
    if kind is list and any(type(item) in (list, tuple) or isinstance(item, (Proxy, Trampoline)) for item in value):
        value[:] = [unproxy(item, (*within, id(value))) for item in value]
    elif kind is tuple and any(type(item) in (list, tuple) or isinstance(item, (Proxy, Trampoline)) for item in value):
        items = [unproxy(item, within) for item in value]
        return value if all(a is b for a, b in zip(items, value, strict=True)) else tuple(items)
    elif kind in (set, frozenset) and any(isinstance(item, Proxy) for item in value):
        return kind(unproxy(item) for item in value)
    return value
