"""From real objects to shadows, with the guards that this takes.

``force`` turns a :class:`Lazy` into a value. What a type needs is a row in a table: constants are guarded by value,
containers by type and length and copied with lazy elements, instances by type and copied with lazy attributes. A type
that nobody knows stays itself, unlooked at, and every operation on it breaks the graph.
"""

from __future__ import annotations

import collections
import enum
import functools
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from ... import operator_functions as operator
from ..._native import MISSING
from ..._native import is_instance as isinstance
from ...bytecode.split import UNBOUND
from ...platform.python_objects import HEAP_TYPE, mapping_items, plain_value
from ...platform.torch_operators import HigherOrderOperator, OpNamespace, OpOverload, OpOverloadPacket, Ops
from ..guards.guards import ANY_KEY
from ..guards.hints import NEEDED
from ..guards.source import (
    Attribute,
    ClassAttribute,
    Computed,
    Elements,
    GlobalsOf,
    Identity,
    InstanceAttribute,
    Item,
    Pinned,
    Slot,
    Source,
    TypeOf,
    Values,
    getattr_static_dict,
    is_direct,
    lookup,
    namespace_of,
    native_iterator,
    native_length,
)
from ..state.operations import operation, operations
from ..state.ordered_sets import insertion_order, make_set
from ..state.trace import Trace
from ..state.values import CONSTANT_TYPES, DELETED, GraphBreak, Kind, Lazy, Record, Trampoline, is_struct, new_tuple
from . import module_hooks
from .bound_builtins import wrap_bound_builtin

IDENTITY_TYPES: tuple[type, ...] = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.MethodWrapperType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.ModuleType,
    types.GenericAlias,
    types.UnionType,
    type,
    property,
    staticmethod,
    classmethod,
    re.Pattern,
    torch.dtype,
    torch.layout,
    torch.memory_format,
    OpOverload,
    OpOverloadPacket,
    OpNamespace,
    Ops,
    HigherOrderOperator,
    typing.TypeVar,
    inspect.Signature,
    inspect.Parameter,
    re.Match,
    torch.finfo,
    torch.iinfo,
)


@operation
def force(trace: Trace, value: object) -> Any:
    """The value itself: a lazy one is looked at now."""
    if type(value) is not Lazy:
        return value
    if not value.done:
        value.value = wrap(trace, value.real, value.source)
        value.done = True
    return value.value


@operation
def wrap(trace: Trace, real: object, source: Source) -> Any:
    """The shadow of a real object, guarded."""
    if trace.outside.reads is not None:
        trace.outside.reads.append((source, real))
    kind = type(real)
    if kind in CONSTANT_TYPES:
        return wrap_constant(trace, real, source)
    record = trace.outside.by_real.get(id(real))
    if record is not None:
        if record.source != source:
            trace.guards.add(source, "same", record.source)
        return record.shadow
    copy = trace.outside.copies.get(id(real))
    if copy is not None:  # one object, two ways to it
        if copy[1] != source:
            trace.guards.add(source, "same", copy[1])
        return copy[0]
    if trace.outside.sources.get(id(real)) == source:
        return real
    wrapper = WRAPPERS.get(kind)
    if wrapper is not None:
        return wrapper(trace, real, source)
    return wrap_by_class(trace, real, source)


def wrap_constant(trace: Trace, real: Any, source: Source) -> object:
    if type(real) in (int, float):
        return operations.wrap_number(trace, real, source)
    if trace.hints:
        break_if_dynamic(trace, source)
    if not isinstance(source, ClassAttribute):  # a class attribute is watched with its class
        trace.guards.add(source, "constant", real)
    return real


def break_if_dynamic(trace: Trace, source: Source) -> None:
    """A value that had several entries already is not assumed once more: its use is left to Python."""
    if trace.hints.get(source.describe()) == NEEDED and not trace.options.fullgraph:
        raise trace.fail(f"the value of {source.describe()}, which varies from call to call")


@operation
def wrap_identity(trace: Trace, real: object, source: Source) -> object:
    if not isinstance(source, Pinned):
        trace.guards.add(source, "identity", real)
    if isinstance(real, type) and real.__flags__ & HEAP_TYPE:
        watch_class(trace, real)
    trace.outside.name_source(real, source)
    return real


def watch_class(trace: Trace, cls: type) -> None:
    """A class that the program uses: what Python looks up in it and in its metaclass is assumed."""
    trace.guards.classes.watch_class(cls)
    metaclass: type = type(cls)
    if metaclass.__flags__ & HEAP_TYPE:
        trace.guards.classes.watch_class(metaclass)


def wrap_equal(trace: Trace, real: object, source: Source) -> object:
    """Immutable values compared by ``==`` (devices)."""
    trace.guards.add(source, "constant", real)
    return real


def wrap_function(trace: Trace, real: types.FunctionType, source: Source) -> object:
    if isinstance(source, Item) and isinstance(source.base, GlobalsOf):  # checked natively, all at once
        return wrap_identity(trace, real, source)
    if not isinstance(source, Pinned):
        trace.guards.add(source, "type", types.FunctionType)
        trace.guards.add(source, "code", real.__code__)
    guard_same(trace, real, source)
    return real


def guard_same(trace: Trace, real: object, source: Source) -> None:
    """Name the source of an object that is not guarded by identity; where it has one already, they must stay one."""
    known = trace.outside.sources.get(id(real))
    if known is not None and known != source and not isinstance(source, Pinned):
        trace.guards.add(source, "same", known)
    trace.outside.name_source(real, source)


def wrap_method(trace: Trace, real: types.MethodType, source: Source) -> object:
    trace.guards.add(source, "type", types.MethodType)
    function = wrap(trace, real.__func__, Attribute(source, "__func__"))
    owner = wrap(trace, real.__self__, Attribute(source, "__self__"))
    shadow = types.MethodType(function, owner)
    return name_copy(trace, shadow, source, real)


def wrap_super(trace: Trace, real: super, source: Source) -> object:
    """A ``super`` object is immutable, but what it is bound to has a shadow."""
    guard_type(trace, real, source)
    parts = [wrap(trace, object.__getattribute__(real, name), Attribute(source, name)) for name in SUPER_PARTS]
    shadow = super(*parts) if object.__getattribute__(real, "__self_class__") else super(parts[0])
    return name_copy(trace, shadow, source, real)


SUPER_PARTS = ("__thisclass__", "__self__")


@operation
def name_copy(trace: Trace, shadow: object, source: Source, real: object) -> object:
    """An immutable copy that may be given back as the original, and stands for it wherever else it is met."""
    trace.outside.name_source(shadow, source)
    if shadow is not real:
        trace.outside.copies[id(real)] = (shadow, source)
        trace.outside.keep.append(real)
    return shadow


def wrap_list(trace: Trace, real: list[Any], source: Source) -> object:
    guard_type(trace, real, source)
    guard_length(trace, real, source)
    shadow = _empty_like(real, list)
    container = _container(real, list)
    items = [Lazy(item, Item(source, index, container)) for index, item in enumerate(native_iterator(real))]
    list.extend(shadow, items)
    pending = trace.outside.appended.pop(id(real), None)
    if pending is not None:  # it was only appended to so far
        list.extend(shadow, pending.values)
        if pending.source != source:
            trace.guards.add(source, "same", pending.source)
            trace.guards.distinct.pop(pending.source, None)  # one object, two ways to it
    record = Record(shadow, real, source, Kind.LIST, items=list(items), loaded=True)
    add_attributes(record)
    return trace.outside.add_record(record)


def _empty_like(real: object, base: Any) -> Any:
    return base() if type(real) is base else base.__new__(type(real))


def _container(real: object, base: type) -> type | None:
    return None if type(real) is base else base


def wrap_tuple(trace: Trace, real: tuple[Any, ...], source: Source) -> object:
    """Tuples are immutable and native code looks into them, so their elements are looked at at once."""
    if is_struct(type(real)):
        if type(real).__module__ == "sys":  # there is one object of each such class
            return wrap_identity(trace, real, source)
        raise trace.fail(f"a {type(real).__module__}.{type(real).__qualname__} from outside")
    guard_type(trace, real, source)
    guard_length(trace, real, source)
    items = [wrap(trace, item, Item(source, index, tuple)) for index, item in enumerate(native_iterator(real))]
    shadow = new_tuple(type(real), items)
    if hasattr(shadow, "__dict__"):
        return record_attributes(trace, shadow, real, source)
    if all(a is b for a, b in zip(items, native_iterator(real), strict=True)):
        shadow = real
    return name_copy(trace, shadow, source, real)


def guard_length(trace: Trace, real: object, source: Source) -> None:
    plain = not type(real).__flags__ & HEAP_TYPE
    trace.guards.add(source, "length" if plain else "native_length", native_length(real))


def wrap_dict(trace: Trace, real: dict[Any, Any], source: Source) -> object:
    if dict.__contains__(real, "__builtins__") or is_module_namespace(real):
        raise trace.fail("global variables as a dictionary", "read and write them by name")
    if module_hooks.are_unguarded(source):
        return module_hooks.wrap_unguarded(trace, real, source)
    if id(real) in trace.outside.instance_dictionaries:
        raise trace.fail("an object and its dictionary, which the program reaches on its own")
    guard_type(trace, real, source)
    ordered = isinstance(real, collections.OrderedDict)
    shadow: Any = _empty_ordered(real) if ordered else _empty_like(real, dict)
    base: Any = collections.OrderedDict if ordered else dict
    container = collections.defaultdict if hasattr(type(real), "__missing__") else _container(real, dict)
    try:
        items = mapping_items(real)
    except KeyError:  # of an OrderedDict, which looks its keys up
        raise outdated_hash(trace, real) from None
    for index, (key, value) in enumerate(items):
        shadow_key = wrap_key(trace, key, source, index)
        prepare_key(trace, shadow_key)
        known = is_constant(key) and not module_hooks.are_hooks(source)
        place = Item(source, key, container) if known else Item(Values(source), index)
        base.__setitem__(shadow, shadow_key, Lazy(value, place))
    refuse_outdated_hashes(trace, real)
    if isinstance(real, collections.defaultdict):
        factory = wrap(trace, real.default_factory, Attribute(source, "default_factory"))
        native = factory is None or (isinstance(factory, type) and not factory.__flags__ & HEAP_TYPE)
        shadow.default_factory = factory if native else trace.trampoline(factory)
    record = Record(shadow, real, source, Kind.DICT, items=dict(mapping_items(shadow)))
    add_attributes(record)
    return trace.outside.add_record(record)


def is_module_namespace(real: dict[Any, Any]) -> bool:
    """Whether a dictionary holds the globals of a module: these have bookkeeping of their own."""
    name = dict.get(real, "__name__")
    module = sys.modules.get(name) if type(name) is str else None
    return getattr(module, "__dict__", None) is real


def _empty_ordered(real: Any) -> collections.OrderedDict[Any, Any]:
    return collections.OrderedDict.__new__(type(real))


def key_pattern(keys: Iterable[object]) -> tuple[Any, ...]:
    """Keys as a guard knows them: constants as they are, objects only by their place."""
    return tuple([key if is_constant(key) else ANY_KEY for key in keys])


def guard_all_elements(trace: Trace, real: object, source: Source) -> None:
    """Guard the keys of a dictionary, or elements of a set, and their order."""
    keys = key_pattern(native_iterator(real))
    if keys or not type(real).__flags__ & HEAP_TYPE:
        trace.guards.add(source, "keys", keys)
    else:  # the truth of it may be Python code
        trace.guards.add(source, "native_length", 0)


def wrap_key(trace: Trace, key: object, source: Source, index: int) -> object:
    """Constant keys are guarded with the dictionary's keys; others are looked at as objects."""
    if is_constant(key):
        return key
    return wrap(trace, key, Item(Elements(source), index))


def prepare_key(trace: Trace, key: object) -> None:
    """A key is about to be hashed by the shadow of its container."""
    if not is_constant(key):
        operations.prepare_hashing(trace, (key,))


def refuse_equal_hashes(trace: Trace, keys: list[Any]) -> None:
    """Making a set of keys with equal hashes compares them: with a comparison in Python, that is the program's code."""
    if all(map(is_constant, keys)):
        return

    hashes = [hash(key) for key in keys]
    if len({*hashes}) < len(hashes) and any(map(operations.hashed_in_python, keys)):
        raise trace.fail("a set from outside of objects with equal hashes, which compare in Python")


def refuse_outdated_hashes(trace: Trace, real: dict[Any, Any] | set[Any]) -> None:
    """A container keeps the hashes that its keys had when they came in: by another hash it does not find them."""
    if all(map(is_constant, native_iterator(real))):
        return

    base: Any = dict if isinstance(real, dict) else set if isinstance(real, set) else frozenset
    for key in list(native_iterator(real)):
        if operations.hashed_in_python(key) and not base.__contains__(real, key):
            raise outdated_hash(trace, real)


def outdated_hash(trace: Trace, real: dict[Any, Any] | set[Any]) -> GraphBreak:
    return trace.fail(f"a {type(real).__name__} with a key whose hash has changed since it was put in")


def is_constant(value: Any) -> bool:
    """Whether a value is immutable all the way down and compares by value."""
    kind: Any = type(value)
    if kind is tuple or kind is frozenset:
        return all(is_constant(item) for item in value)
    if kind in CONSTANT_TYPES or kind in CONSTANT_LIKE or isinstance(value, enum.Enum):
        return True
    return isinstance(value, type) and kind.__hash__ is type.__hash__ and kind.__eq__ is type.__eq__


CONSTANT_LIKE: frozenset[type] = frozenset(
    {torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size, types.ModuleType, type}
)


def wrap_set(trace: Trace, real: set[Any], source: Source) -> object:
    """Sets are guarded by contents *and* order of iteration, which the program can see."""
    guard_type(trace, real, source)
    guard_all_elements(trace, real, source)
    items = [wrap_key(trace, item, source, index) for index, item in enumerate(native_iterator(real))]
    for item in items:
        prepare_key(trace, item)
    refuse_equal_hashes(trace, items)
    refuse_outdated_hashes(trace, real)
    if isinstance(real, frozenset):
        unchanged = all(a is b for a, b in zip(items, native_iterator(real), strict=True))
        shadow = real if unchanged and type(real) is frozenset else frozenset.__new__(type(real), items)
        if hasattr(shadow, "__dict__"):
            return record_attributes(trace, shadow, real, source)
        return name_copy(trace, shadow, source, real)
    found = insertion_order(items)
    shadow = make_set(*found) if found is not None else set(items)
    if type(real) is not set:
        plain, shadow = shadow, set.__new__(type(real))
        set.update(shadow, plain)
    if not all(map(operator.is_, set.__iter__(shadow), items)):
        trace.outside.reordered_sets[id(shadow)] = shadow
    record = Record(shadow, real, source, Kind.SET, items=set(items), loaded=True, order=tuple(items))
    add_attributes(record)
    return trace.outside.add_record(record)


def wrap_deque(trace: Trace, real: collections.deque[Any], source: Source) -> object:
    guard_type(trace, real, source)
    guard_length(trace, real, source)
    trace.guards.add(Attribute(source, "maxlen"), "constant", real.maxlen)
    container = _container(real, collections.deque)
    elements = collections.deque.__iter__(real)
    items = [Lazy(item, Item(source, index, container)) for index, item in enumerate(elements)]
    shadow = _empty_like(real, collections.deque)
    collections.deque.__init__(shadow, items, real.maxlen)
    iterator: Iterator[Any] = collections.deque.__iter__(shadow)
    record = Record(shadow, real, source, Kind.DEQUE, items=list(items), loaded=True, iterator=iterator)
    add_attributes(record)
    return trace.outside.add_record(record)


def wrap_cell(trace: Trace, real: types.CellType, source: Source) -> object:
    try:
        contents: object = Lazy(real.cell_contents, Attribute(source, "cell_contents"))
        shadow = types.CellType(contents)
        items: tuple[Any, ...] = (contents,)
    except ValueError:
        trace.guards.add(source, "empty_cell")
        shadow, items = types.CellType(), ()
    return trace.outside.add_record(Record(shadow, real, source, Kind.CELL, items=items, loaded=True))


def wrap_partial(trace: Trace, real: functools.partial[Any], source: Source) -> object:
    if partial_attributes(real) is not None:
        return wrap_instance(trace, real, source)
    guard_type(trace, real, source)
    trace.guards.add(Computed(partial_attributes, (source,)), "constant", None)
    function = wrap(trace, real.func, Attribute(source, "func"))
    args = wrap(trace, real.args, Attribute(source, "args"))
    keywords = wrap(trace, real.keywords, Attribute(source, "keywords"))
    shadow: Any = functools.partial(function)
    shadow.__setstate__((function, args, keywords, None))
    return name_copy(trace, shadow, source, real)


def partial_attributes(partial: functools.partial[Any]) -> dict[Any, Any] | None:
    """Its instance dictionary, if it has one: reading ``__dict__`` would make one, and it would not nest as before."""
    state: Any = partial.__reduce__()[2]
    attributes: dict[str, Any] | None = state[3]
    return attributes


def wrap_getter(trace: Trace, real: object, source: Source) -> object:
    """``operator.itemgetter`` and the like: immutable, if what they were made with is."""
    if not all(is_constant(part) for part in real.__reduce__()[1]):
        return wrap_instance(trace, real, source)
    return wrap_identity(trace, real, source)


def wrap_slice(trace: Trace, real: slice, source: Source) -> object:
    guard_type(trace, real, source)
    parts = [wrap(trace, getattr(real, name), Attribute(source, name)) for name in ("start", "stop", "step")]
    return name_copy(trace, slice(*parts), source, real)


def guard_type(trace: Trace, real: object, source: Source) -> None:
    trace.guards.add(source, "type", type(real))
    if type(real).__flags__ & HEAP_TYPE:
        trace.guards.classes.watch_class(type(real))
        trace.outside.name_source(type(real), TypeOf(source))


def wrap_by_class(trace: Trace, real: object, source: Source) -> object:
    """Types found by inheritance: tensors, enum members, classes with odd metaclasses, subclasses of containers."""
    if isinstance(real, torch.Tensor):
        return operations.wrap_tensor(trace, real, source)
    if isinstance(real, (*IDENTITY_TYPES, enum.Enum)) or real is UNBOUND:
        return wrap_identity(trace, real, source)
    native = f"{type(real).__module__}.{type(real).__name__}"
    if native in MADE_FOR_EACH_CALL or has_finalizer(type(real)):
        return wrap_foreign(trace, real, source)
    if type(real).__module__ in ("typing", "_abc", "kiln._native") or isinstance(real, Trampoline):
        return wrap_identity(trace, real, source)
    for base, wrapper in SUBCLASS_WRAPPERS:
        if isinstance(real, base):
            return wrapper(trace, real, source)
    return wrap_instance(trace, real, source)


MADE_FOR_EACH_CALL = frozenset({"kiln._native.NodeFunction", "kiln._native.RetainGrad"})
"""Native objects that stand for something of one backward pass."""


def wrap_constant_subclass(trace: Trace, real: Any, source: Source) -> object:
    """Instances of subclasses of int, str …: immutable in value, but they may have attributes."""
    guard_type(trace, real, source)
    plain: Any = plain_value(real)
    trace.guards.add(source, "constant_subclass", plain)
    if not type(real).__flags__ & HEAP_TYPE:  # numpy.float64
        return name_copy(trace, real, source, real)
    shadow = type(plain).__new__(type(real), plain)
    if not hasattr(shadow, "__dict__"):
        return name_copy(trace, shadow, source, real)
    return record_attributes(trace, shadow, real, source)


def record_attributes(trace: Trace, shadow: object, real: object, source: Source) -> object:
    """An immutable value with an instance dictionary."""
    record = Record(shadow, real, source, Kind.OBJECT, loaded=True)
    add_attributes(record)
    return trace.outside.add_record(record)


def wrap_instance(trace: Trace, real: object, source: Source) -> object:
    """An instance of a Python class: a new instance of the same class with lazy attributes."""
    cls = type(real)
    shadow = _bare_instance(cls)
    if shadow is None:
        return wrap_foreign(trace, real, source)
    guard_type(trace, real, source)
    record = Record(shadow, real, source, Kind.OBJECT, loaded=True)
    add_attributes(record)
    if record.attributes is not None:
        namespace = getattr_static_dict(real)
        if id(namespace) in trace.outside.by_real:
            raise trace.fail("an object and its dictionary, which the program reaches on its own")
        trace.outside.instance_dictionaries.add(id(namespace))
    return trace.outside.add_record(record)


def wrap_foreign(trace: Trace, real: object, source: Source) -> object:
    """An object that cannot be copied: itself, and nobody may look into it."""
    if type(real) is object:  # a sentinel
        return wrap_identity(trace, real, source)
    guard_type(trace, real, source)
    guard_same(trace, real, source)
    trace.guards.distinct.setdefault(trace.outside.sources[id(real)])
    trace.outside.foreign[id(real)] = real
    return real


def has_finalizer(cls: type) -> bool:
    """Whether the class has a ``__del__``: Python would call it on shadows too, so there can be none."""
    return isinstance(lookup(cls, "__del__"), types.FunctionType)


def _bare_instance(cls: type) -> object | None:
    layout = layout_of(cls)
    if cls is object or cls.__module__ in OPAQUE_MODULES or layout not in (object, types.SimpleNamespace):
        return None
    try:
        return layout.__new__(cls)
    except TypeError:  # a C type or an abstract class
        return _bare_abstract(cls)


def layout_of(cls: type) -> type:
    """The native class that says how instances are laid out in memory."""
    return next(base for base in cls.__mro__ if not base.__flags__ & HEAP_TYPE)


def _bare_abstract(cls: type) -> object | None:
    if not getattr(cls, "__abstractmethods__", None):
        return None
    stand_in = type.__new__(type(cls), cls.__name__, (cls,), {"__abstractmethods__": frozenset()})
    shadow: object = object.__new__(stand_in)
    shadow.__class__ = cls
    return shadow


OPAQUE_MODULES = frozenset({"threading", "_io", "io", "logging", "asyncio", "multiprocessing", "weakref", "_weakref"})


def add_attributes(record: Record) -> None:
    """Give the shadow the instance dictionary of the real object, lazily."""
    real, shadow, source = record.real, record.shadow, record.source
    attributes = getattr_static_dict(real)
    if attributes is None:
        return
    direct = is_direct(type(real))
    lazies = {name: Lazy(value, InstanceAttribute(source, name, direct)) for name, value in attributes.items()}
    namespace_of(shadow).update(lazies)
    record.attributes = dict(lazies)


def load_slot(trace: Trace, record: Record, name: str, descriptor: Any) -> None:
    """Copy a ``__slots__`` member of an outside object into its shadow, once."""
    if name in record.slots:
        return
    try:
        real = descriptor.__get__(record.real)
    except AttributeError:
        trace.guards.add(record.source, "empty_slot", descriptor)
        record.slots[name] = DELETED
        return
    value = wrap(trace, real, Slot(record.source, name, Identity(descriptor)))
    record.slots[name] = value
    descriptor.__set__(record.shadow, value)


def class_attribute(trace: Trace, cls: type, name: str, default: object = None) -> Any:
    """The raw attribute of a class (no descriptor run), watched; the default where there is none."""
    raw = lookup(cls, name, MISSING)
    if cls.__flags__ & HEAP_TYPE:
        trace.guards.classes.watch(cls, name, raw)
    return default if raw is MISSING else raw


def class_attribute_source(trace: Trace, cls: type, name: str) -> Source:
    return ClassAttribute(trace.outside.pinned(cls), name)


WRAPPERS: dict[type, Callable[..., Any]] = {
    **{kind: wrap_identity for kind in IDENTITY_TYPES},
    types.BuiltinFunctionType: wrap_bound_builtin,
    types.MethodWrapperType: wrap_bound_builtin,
    types.FunctionType: wrap_function,
    types.MethodType: wrap_method,
    types.CellType: wrap_cell,
    torch.device: wrap_equal,
    list: wrap_list,
    tuple: wrap_tuple,
    torch.Size: wrap_tuple,
    dict: wrap_dict,
    collections.OrderedDict: wrap_dict,
    collections.defaultdict: wrap_dict,
    collections.Counter: wrap_dict,
    set: wrap_set,
    frozenset: wrap_set,
    collections.deque: wrap_deque,
    functools.partial: wrap_partial,
    **{kind: wrap_getter for kind in (operator.itemgetter, operator.attrgetter, operator.methodcaller)},
    slice: wrap_slice,
    super: wrap_super,
}

SUBCLASS_WRAPPERS: list[tuple[Any, Callable[..., Any]]] = [
    (dict, wrap_dict),
    (list, wrap_list),
    (collections.deque, wrap_deque),
    (tuple, wrap_tuple),
    (set, wrap_set),
    (frozenset, wrap_set),
    ((int, float, str, bytes, complex), wrap_constant_subclass),
]
