"""Which builtins may run while tracing, in tables: owners, modules and functions, and how deep each looks.

A builtin may run natively if it has no effect outside its arguments and does not look past what shadows can show.
"""

from __future__ import annotations

import builtins
import collections
import enum
import functools
import itertools
import math
import os
import re
import types
from typing import Any

import torch

from ... import operator_functions as operator
from ..._native import is_instance as isinstance
from ...platform.cpython import count_elements, tee_class
from ...platform.python_objects import words
from ...platform.torch_functions import log_api_usage
from ..guards.source import lookup
from ..state.operations import Args

NATIVE_METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType)  # ``list.append``, ``list.__len__``

_EMPTY: list[Any] = [
    [],
    (),
    {},
    set(),
    "",
    b"",
    range(0),
    range(1 << 70, 1 << 71),
    {}.items(),
    {}.values(),
    bytearray(),
]
_ITERATORS = [type(iter(empty)) for empty in _EMPTY]
_ITERATORS += [type(reversed([])), type(reversed({})), type(reversed({}.items())), type(reversed({}.values()))]
_ITERATORS += [type(iter(collections.deque())), type(reversed(collections.deque())), type(iter(int, 0))]
_ITERATORS += [type(iter(collections.OrderedDict())), type(reversed(range(0)))]
ITERATOR_TYPES: frozenset[type] = frozenset(_ITERATORS)

_VIEWS = [type({}.keys()), type({}.values()), type({}.items())]
_VIEWS += [type(getattr(collections.OrderedDict(), name)()) for name in ("keys", "values", "items")]
VIEW_TYPES: frozenset[type] = frozenset(_VIEWS)

LAZY_ITERATORS: frozenset[type] = frozenset(
    {enumerate, zip, map, filter, reversed}
    | {value for value in vars(itertools).values() if isinstance(value, type) and value.__module__ == "itertools"}
)

CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque, collections.OrderedDict, collections.defaultdict)

SAFE_OWNERS: frozenset[type] = frozenset(
    {int, float, bool, str, bytes, bytearray, complex, range, slice, type(None), super, types.MethodType}
    | set(CONTAINERS)
    | {functools.partial, operator.itemgetter, operator.attrgetter, operator.methodcaller, torch.Size, torch.dtype}
    | {torch.device, types.CellType, types.FunctionType, types.SimpleNamespace, types.MappingProxyType, types.CodeType}
    | {property, staticmethod, classmethod, types.GenericAlias, type(NotImplemented), type(Ellipsis), torch.finfo}
    | {torch.iinfo, enum.EnumMeta, re.Pattern, re.Match, functools.cmp_to_key(lambda a, b: 0).__class__}
    | {value for value in vars(builtins).values() if isinstance(value, type) and issubclass(value, BaseException)}
    | ITERATOR_TYPES
    | VIEW_TYPES
    | LAZY_ITERATORS
)

SAFE_MODULES = frozenset(
    {"math", "cmath", "_operator", "operator", "itertools", "_bisect", "_heapq", "_stat", "_struct"}
)

SAFE_FUNCTIONS: frozenset[object] = frozenset(
    {abs, all, any, ascii, bin, callable, chr, divmod, format, hex, iter, len, max, min, next, oct, ord, pow, round}
    | {sorted, sum, functools.reduce, functools.cmp_to_key, count_elements}
    | {repr, hash, str.maketrans, bytes.maketrans, os.fspath, log_api_usage, torch.typename}
)

# They pass elements on without looking at them.
SHALLOW_NAMES = words(
    "append appendleft extend extendleft insert pop popleft clear copy reverse rotate __getitem__ __setitem__ "
    "__delitem__ __len__ __iter__ __reversed__ get setdefault items values keys popitem update move_to_end fromkeys "
    "__contains__ __init__ __new__ add __next__ __copy__ __length_hint__ __bool__ __ior__ __or__ __iadd__ __imul__ "
    "__add__ __mul__ __class_getitem__ __missing__"
)
KEYED_NAMES = words("__getitem__ __missing__ get __contains__ pop setdefault __delitem__ move_to_end")
SHALLOW_FUNCTIONS: frozenset[object] = frozenset(
    {iter, len, next, enumerate, zip, reversed, list, tuple, dict, callable}
)
SHALLOW_FUNCTIONS |= {collections.OrderedDict, collections.deque, collections.defaultdict, itertools.chain}
SHALLOW_FUNCTIONS |= {itertools.chain.from_iterable, itertools.islice, itertools.cycle, itertools.repeat}
SHALLOW_FUNCTIONS |= {itertools.zip_longest, itertools.product, itertools.pairwise, itertools.permutations}
SHALLOW_FUNCTIONS |= {itertools.combinations, itertools.tee, itertools.count, functools.partial, types.MethodType}
SHALLOW_FUNCTIONS |= {super, types.SimpleNamespace, operator.getitem, operator.setitem, map, filter, itertools.starmap}
SHALLOW_FUNCTIONS |= {itertools.combinations_with_replacement, tee_class, slice}
SHALLOW_FUNCTIONS |= {itertools.accumulate, itertools.takewhile, itertools.dropwhile, itertools.filterfalse}

# Of these: what only keeps its arguments, and which methods look into theirs (all look into their owner).
STORING_FUNCTIONS: frozenset[object] = frozenset({callable, functools.partial, types.MethodType, types.SimpleNamespace})
STORING_FUNCTIONS |= {super, itertools.repeat, operator.setitem, slice}
CONSUMING_NAMES = words("extend extendleft update fromkeys __init__ __new__ __ior__ __or__ __iadd__ __add__")
INDEXED_NAMES = words("pop insert rotate __mul__ __imul__ __getitem__ __setitem__ __delitem__")
INDEXED_TYPES = (list, tuple, collections.deque, range)
"""Methods that ask their first argument for a number, and of which classes."""
SET_CONSUMING_NAMES = words(
    "union intersection difference symmetric_difference issubset issuperset isdisjoint "
    "difference_update intersection_update symmetric_difference_update"
)

TEXT_NAMES = words("__repr__ __str__ __format__ format __mod__ __hash__ join")
TEXT_FUNCTIONS: frozenset[object] = frozenset({str, repr, format, ascii, hash})

SYMBOLIC_FUNCTIONS: frozenset[object] = frozenset(
    {abs, max, min, sum, divmod, pow, round, iter, next, enumerate, zip, list, tuple, map, filter, sorted, any, all}
    | {getattr(operator, name) for name in dir(operator) if not name.startswith("_")} - {operator.index}
    | {getattr(math, name) for name in ("sqrt", "floor", "ceil", "trunc", "pow")}
    | {slice, torch.Size}
)


def is_allowed(function: Any) -> bool:
    """Whether a builtin may run while tracing."""
    kind = type(function)
    if kind in (types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType):
        owner = function.__objclass__
        name = function.__name__
        if owner in LAZY_ITERATORS and name in ("__reduce__", "__setstate__"):
            return False  # they would show trampolines, and what stands for a callback that is not given
        if name == "__sizeof__":
            return False  # of a shadow
        if name in ("__setattr__", "__delattr__") and not issubclass(owner, BaseException):
            return owner is object  # for which there is a rule; past it, nobody would know
        return owner in SAFE_OWNERS or owner is object
    if isinstance(function, type):
        return function in SAFE_OWNERS or is_plain_exception(function) or is_native_subclass(function)
    owner = getattr(function, "__self__", None)
    if isinstance(owner, types.ModuleType):
        return owner.__name__ in SAFE_MODULES or function in SAFE_FUNCTIONS
    if isinstance(owner, type):
        return any(base in SAFE_OWNERS for base in owner.__mro__) or owner is object
    if owner is None:
        return function in SAFE_FUNCTIONS
    return any(base in SAFE_OWNERS for base in type(owner).__mro__)


def is_plain_exception(cls: type) -> bool:
    return issubclass(cls, BaseException) and not isinstance(lookup(cls, "__init__"), types.FunctionType)


def is_native_subclass(cls: type) -> bool:
    """A Python subclass of a builtin container that adds no constructor of its own."""
    return any(base in SAFE_OWNERS for base in cls.__mro__)


SHALLOW_VIEW_NAMES = words("__iter__ __len__ __reversed__")
SHALLOW_OWNERS = (*CONTAINERS, torch.Size)  # sizes stay symbolic


def is_shallow(function: object) -> bool:
    """Whether a builtin passes elements on without looking at them."""
    if not isinstance(function, NATIVE_METHODS):
        return function in SHALLOW_FUNCTIONS
    owner, name = function.__objclass__, function.__name__
    if name == "__contains__":
        return owner in HASHING_TYPES  # a sequence compares its elements
    if owner in VIEW_TYPES:
        return name in SHALLOW_VIEW_NAMES  # what a view has of a set hashes its elements
    return name in SHALLOW_NAMES and (owner in SHALLOW_OWNERS or owner in ITERATOR_TYPES)


def consumes(function: object, position: int) -> bool:
    """Whether a builtin that passes elements on looks into its argument number ``position`` itself."""
    if isinstance(function, NATIVE_METHODS):
        if position == 1 and function.__name__ in INDEXED_NAMES and function.__objclass__ in INDEXED_TYPES:
            return True
        return position == 0 or function.__name__ in CONSUMING_NAMES
    return function not in STORING_FUNCTIONS


def describe(function: Any) -> str:
    module = getattr(function, "__module__", None)
    owner = getattr(function, "__objclass__", None)
    name = getattr(function, "__qualname__", None) or getattr(function, "__name__", None) or repr(function)
    if owner is not None:
        return f"{owner.__name__}.{function.__name__}"
    return f"{module}.{name}" if module and module != "builtins" else name


MUTATING_NAMES = words(
    "append appendleft extend extendleft insert pop popleft clear reverse rotate sort remove add discard update "
    "setdefault popitem move_to_end __setitem__ __delitem__ __iadd__ __ior__ __iand__ __isub__ __ixor__ __imul__ "
    "difference_update intersection_update symmetric_difference_update __setstate__"
)
HASHING_TYPES = (dict, set, frozenset, collections.OrderedDict, collections.defaultdict)
HASHING_FUNCTIONS: frozenset[object] = frozenset(
    {dict, set, frozenset, collections.OrderedDict, hash, operator.contains}
)
HASHING_FUNCTIONS |= {
    dict.fromkeys,
    operator.or_,
    operator.and_,
    operator.sub,
    operator.xor,
    operator.ior,
    operator.iand,
}
HASHING_FUNCTIONS |= {operator.isub, operator.ixor}


def is_mutating(function: object) -> bool:
    """Whether a builtin changes its first argument."""
    return isinstance(function, NATIVE_METHODS) and function.__name__ in MUTATING_NAMES


def is_hashing(function: object, args: Args) -> bool:
    """Whether a builtin hashes its arguments, or elements of them, and keeps or compares them."""
    if isinstance(function, NATIVE_METHODS):
        return function.__objclass__ in HASHING_TYPES or function.__name__ == "__hash__"
    if function in (operator.eq, operator.ne, operator.le, operator.lt, operator.ge, operator.gt):
        return any(isinstance(arg, (set, frozenset)) for arg in args)
    return function in HASHING_FUNCTIONS


def is_keyed(function: object) -> bool:
    """Whether a builtin hashes only the argument after the container."""
    return getattr(function, "__name__", "") in KEYED_NAMES or getattr(function, "__name__", "") == "__setitem__"


ITEM_METHODS = ("__getitem__", "__setitem__", "__delitem__", "__contains__", "__missing__", "__iter__", "keys")
ITEM_CALLERS = words("__init__ update pop popitem setdefault copy fromkeys __or__ __ior__ __ror__ __eq__ __ne__")
COPYING_OPERATORS = (operator.add, operator.mul)
CLASS_CALLERS = words("copy __copy__ __add__ __mul__ __rmul__ fromkeys")


def runs_overrides(function: Any, args: Args) -> str | None:
    """The Python method of a subclass of a builtin container that a native method would call by itself."""
    if isinstance(function, type):  # OrderedDict's constructor sets items as anyone would
        names = ITEM_METHODS if issubclass(function, collections.OrderedDict) else ()
        return next((name for name in names if isinstance(lookup(function, name), types.FunctionType)), None)
    if function in COPYING_OPERATORS:
        copied = (type(arg) for arg in args if isinstance(arg, collections.deque))
        return next(("__iter__" for kind in copied if isinstance(lookup(kind, "__iter__"), types.FunctionType)), None)
    owner = getattr(function, "__self__", None)
    method = isinstance(function, NATIVE_METHODS)
    cls = owner if isinstance(owner, type) else type(args[0]) if method and args else None
    if cls is None or not cls.__flags__ & (1 << 9):
        return None
    base, name = function.__objclass__ if method else dict, function.__name__
    called: tuple[str, ...] = ()
    if base is collections.OrderedDict and name in ITEM_CALLERS:
        called += ITEM_METHODS
    if name in CLASS_CALLERS and base in (collections.OrderedDict, collections.deque, collections.defaultdict, dict):
        called += ("__init__", "__new__") if name != "copy" or base is not dict else ()
        called += ("__setitem__",) if name == "fromkeys" else ()
        # A copy is made by calling the class with the original, which is then iterated over.
        called += ("__iter__",) if base in (collections.deque, collections.defaultdict) and name != "fromkeys" else ()
    return next((n for n in called if isinstance(lookup(cls, n), (types.FunctionType, staticmethod))), None)
