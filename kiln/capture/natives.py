"""Native code on shadows: which builtins may run while tracing, and with what arguments.

A builtin runs natively if it has no effect outside its arguments and does not look past what shadows can show. The
rest is caution, all in tables: names that need the concrete number, text or identity of something; callbacks, which
go through trampolines; objects whose special methods are Python, which go through proxies that lead back into the
interpreter. Whatever is not listed breaks the graph.
"""

from __future__ import annotations

import builtins
import collections
import enum
import functools
import itertools
import math
import operator
import types
from collections.abc import Callable

import torch

from .source import lookup
from .symbols import SYMBOLIC, concrete
from .trace import Trace
from .values import CONSTANT_TYPES, GraphBreak, Lazy, Opaque, Raised, Trampoline
from .wrap import HEAP_TYPE, IDENTITY_TYPES, force

RULES: dict[object, Callable] = {}


def rule(*functions: object) -> Callable:
    """Register a handler ``(trace, args, kwargs)`` for builtins that need more than running them."""

    def register(handler: Callable) -> Callable:
        for function in functions:
            RULES[function] = handler
        return handler

    return register


def rule_for(function: object) -> Callable | None:
    try:
        return RULES.get(function)
    except TypeError:  # unhashable callable object
        return None


# -- what may run ---------------------------------------------------------------------------------------------------

_ITERATORS = [
    type(iter(empty))
    for empty in ([], (), {}, set(), "", b"", range(0), range(1 << 70, 1 << 71), {}.items(), {}.values(), bytearray())
]
_ITERATORS += [type(reversed([])), type(reversed({})), type(reversed({}.items())), type(reversed({}.values()))]
_ITERATORS += [type(iter(collections.deque())), type(reversed(collections.deque())), type(iter(int, 0))]
_ITERATORS += [type(iter(collections.OrderedDict())), type(reversed(range(0)))]
ITERATOR_TYPES: frozenset[type] = frozenset(_ITERATORS)

_VIEWS = [type({}.keys()), type({}.values()), type({}.items())]
_VIEWS += [type(getattr(collections.OrderedDict(), name)()) for name in ("keys", "values", "items")]
VIEW_TYPES: frozenset[type] = frozenset(_VIEWS)

LAZY_ITERATORS: frozenset[type] = frozenset(
    {enumerate, zip, map, filter, reversed}
    | {value for value in vars(itertools).values() if isinstance(value, type)}
    | {itertools.chain}
)

CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque, collections.OrderedDict, collections.defaultdict)

SAFE_OWNERS: frozenset[type] = frozenset(
    {int, float, bool, str, bytes, bytearray, complex, range, slice, type(None), super, types.MethodType}
    | set(CONTAINERS)
    | {functools.partial, operator.itemgetter, operator.attrgetter, operator.methodcaller, torch.Size, torch.dtype}
    | {torch.device, types.CellType, types.FunctionType, types.SimpleNamespace, types.MappingProxyType, types.CodeType}
    | {property, staticmethod, classmethod, types.GenericAlias, type(NotImplemented), type(Ellipsis), torch.finfo}
    | {torch.iinfo, enum.EnumMeta, functools.cmp_to_key(lambda a, b: 0).__class__}
    | {value for value in vars(builtins).values() if isinstance(value, type) and issubclass(value, BaseException)}
    | ITERATOR_TYPES
    | VIEW_TYPES
    | LAZY_ITERATORS
)

SAFE_MODULES = frozenset({"math", "cmath", "_operator", "operator", "itertools", "_bisect", "_heapq", "_stat", "_struct"})

SAFE_FUNCTIONS: frozenset[object] = frozenset(
    {abs, all, any, ascii, bin, callable, chr, divmod, format, hex, iter, len, max, min, next, oct, ord, pow, round}
    | {sorted, sum, functools.reduce, functools.cmp_to_key, collections._count_elements}  # type: ignore[attr-defined]
    | {repr, hash, torch._C._log_api_usage_once, torch.typename}
)

# They pass elements on without looking at them.
SHALLOW_NAMES = frozenset(
    "append appendleft extend extendleft insert pop popleft clear copy reverse rotate __getitem__ __setitem__ "
    "__delitem__ __len__ __iter__ __reversed__ get setdefault items values keys popitem update move_to_end fromkeys "
    "__contains__ __init__ __new__ add __next__ __copy__ __length_hint__ __bool__ __ior__ __or__ __iadd__ __imul__ "
    "__add__ __mul__ __class_getitem__ __missing__".split()
)
KEYED_NAMES = frozenset("__getitem__ get __contains__ pop setdefault __delitem__ move_to_end".split())
SHALLOW_FUNCTIONS: frozenset[object] = frozenset({iter, len, next, enumerate, zip, reversed, list, tuple, dict, callable})
SHALLOW_FUNCTIONS |= {collections.OrderedDict, collections.deque, collections.defaultdict, itertools.chain}
SHALLOW_FUNCTIONS |= {itertools.chain.from_iterable, itertools.islice, itertools.cycle, itertools.repeat}
SHALLOW_FUNCTIONS |= {itertools.zip_longest, itertools.product, itertools.pairwise, itertools.permutations}
SHALLOW_FUNCTIONS |= {itertools.combinations, itertools.tee, itertools.count, functools.partial, types.MethodType}
SHALLOW_FUNCTIONS |= {super, types.SimpleNamespace, operator.getitem, operator.setitem, map, filter}

TEXT_NAMES = frozenset("__repr__ __str__ __format__ format __mod__ __hash__ join".split())
TEXT_FUNCTIONS: frozenset[object] = frozenset({str, repr, format, ascii, hash})

SYMBOLIC_FUNCTIONS: frozenset[object] = frozenset(
    {abs, max, min, sum, divmod, pow, round, iter, next, enumerate, zip, list, tuple, map, filter, sorted, any, all}
    | {getattr(operator, name) for name in dir(operator) if not name.startswith("_")} - {operator.index}
    | {getattr(math, name) for name in ("sqrt", "floor", "ceil", "trunc", "pow")}
    | {slice, torch.Size}
)


def is_allowed(function: object) -> bool:
    """Whether a builtin may run while tracing."""
    kind = type(function)
    if kind in (types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType):
        return function.__objclass__ in SAFE_OWNERS or function.__objclass__ is object  # type: ignore[attr-defined]
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


# -- calling --------------------------------------------------------------------------------------------------------


def call_native(trace: Trace, function: object, args: tuple, kwargs: dict) -> object:
    """Run a builtin on shadows, or break."""
    function, args = unbind(function, args)
    handler = rule_for(function)
    if handler is not None:
        return handler(trace, args, kwargs)
    if not is_allowed(function):
        raise trace.fail(
            f"a call to {describe(function)}, which is native code that Kiln knows nothing about",
            "call it outside the compiled function, or register it with kiln.allow_in_graph if it works on tensors",
        )
    guard_keys(trace, function, args)
    return run(trace, function, args, kwargs)


def run(trace: Trace, function: object, args: tuple, kwargs: dict) -> object:
    """Prepare the arguments and run natively."""
    shallow = is_shallow(function)
    name = getattr(function, "__name__", "")
    text = function in TEXT_FUNCTIONS or (name in TEXT_NAMES and not isinstance(function, type))
    survey = Survey(trace, keep_symbols=shallow or function in SYMBOLIC_FUNCTIONS, shallow=shallow)
    args = tuple([survey.visit(arg, top=True) for arg in args])
    kwargs = {key: survey.visit(value, top=True) for key, value in kwargs.items()}
    if survey.unknown is not None and not shallow:
        kind = type(survey.unknown)
        raise trace.fail(f"{describe(function)} on a {kind.__module__}.{kind.__qualname__} object from outside")
    if text and (survey.tensors or survey.objects):
        raise trace.fail(f"the text or hash of a tensor or object ({describe(function)})")
    if survey.objects and not shallow:
        args, kwargs = proxies(trace, function, args, kwargs)
    return run_natively(trace, function, callbacks(trace, function, args), callback_keywords(trace, kwargs))


def call_native_default(trace: Trace, function: object, args: tuple, kwargs: dict) -> object:
    """Run a builtin that has a rule, past that rule."""
    guard_keys(trace, function, args)
    return run(trace, function, args, kwargs)


def is_value(value: object, deep: bool = False) -> bool:
    """Whether a value is known by its contents alone: text and hash of it do not depend on identity."""
    kind = type(value)
    if kind in CONSTANT_TYPES or isinstance(value, enum.Enum | torch.dtype | torch.device | type | types.ModuleType):
        return True
    if kind in (tuple, frozenset, torch.Size, slice):
        parts = (value.start, value.stop, value.step) if kind is slice else value  # type: ignore[attr-defined]
        return all(is_value(item, deep) for item in parts)  # type: ignore[attr-defined]
    if deep and kind in (list, set, collections.deque):
        return all(is_value(item.real if type(item) is Lazy else item, deep) for item in value)  # type: ignore[attr-defined]
    if deep and kind in (dict, collections.OrderedDict, collections.defaultdict, collections.Counter):
        parts = [*dict.keys(value), *(v.real if type(v) is Lazy else v for v in dict.values(value))]  # type: ignore[arg-type]
        return all(is_value(item, deep) for item in parts)
    return isinstance(value, types.BuiltinFunctionType | torch.layout | torch.memory_format) or kind in SYMBOLIC


def run_natively(trace: Trace, function: object, args: tuple, kwargs: dict) -> object:
    """The call itself; operations on tensors inside it are recorded, exceptions are the program's."""
    from .tensors import RecordMode

    try:
        with RecordMode(trace):
            result = function(*args, **kwargs)  # type: ignore[operator]
    except (GraphBreak, Raised):
        raise
    except Exception as error:
        raise Raised(clean(error)) from None
    return unproxy(result)


def clean(error: BaseException) -> BaseException:
    """Drop the traceback: its frames are Kiln's, and would keep the trace alive."""
    error.__traceback__ = None
    if error.__context__ is not None and isinstance(error.__context__, Raised | GraphBreak):
        error.__context__ = None
    return error


def unbind(function: object, args: tuple) -> tuple[object, tuple]:
    """A bound builtin method as its descriptor with the owner as first argument."""
    owner = getattr(function, "__self__", None)
    if owner is None or isinstance(owner, types.ModuleType | type):
        return function, args
    if isinstance(function, types.BuiltinFunctionType | types.MethodWrapperType):
        descriptor = lookup(type(owner), function.__name__)
        if isinstance(descriptor, types.MethodDescriptorType | types.WrapperDescriptorType):
            return descriptor, (owner, *args)
    return function, args


def is_shallow(function: object) -> bool:
    if isinstance(function, types.MethodDescriptorType | types.WrapperDescriptorType):
        owner = function.__objclass__
        return function.__name__ in SHALLOW_NAMES and (owner in CONTAINERS or owner in ITERATOR_TYPES or owner in VIEW_TYPES)
    return function in SHALLOW_FUNCTIONS


def guard_keys(trace: Trace, function: object, args: tuple) -> None:
    """Guard as much of an outside dictionary as this call sees: one key, or all of them."""
    name = getattr(function, "__name__", "")
    for position, arg in enumerate(args):
        record = trace.record_of(force(trace, arg))
        if record is None or record.loaded or not isinstance(record.shadow, dict):
            continue
        if position == 0 and name in KEYED_NAMES and len(args) > 1:
            guard_key(trace, record, force(trace, args[1]))
        elif position == 0 and name in ("__setitem__",):
            continue
        else:
            guard_all_keys(trace, record)


def guard_key(trace: Trace, record: object, key: object) -> None:
    from .wrap import is_constant

    key = concrete(trace, key)
    if not is_constant(key):
        guard_all_keys(trace, record)
        return
    present = key in record.items  # type: ignore[attr-defined]
    trace.guards.add(record.source, "has_key" if present else "lacks_key", key)  # type: ignore[attr-defined]


def guard_all_keys(trace: Trace, record: object) -> None:
    trace.guards.add(record.source, "keys", tuple(dict.keys(record.real)))  # type: ignore[attr-defined]
    record.loaded = True  # type: ignore[attr-defined]


def describe(function: object) -> str:
    module = getattr(function, "__module__", None)
    owner = getattr(function, "__objclass__", None)
    name = getattr(function, "__qualname__", None) or getattr(function, "__name__", None) or repr(function)
    if owner is not None:
        return f"{owner.__name__}.{function.__name__}"  # type: ignore[attr-defined]
    return f"{module}.{name}" if module and module != "builtins" else name


# -- arguments ------------------------------------------------------------------------------------------------------

SPECIAL_METHODS = (
    "__eq__ __ne__ __lt__ __le__ __gt__ __ge__ __hash__ __iter__ __next__ __len__ __getitem__ __contains__ __bool__ "
    "__int__ __index__ __float__ __call__ __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __abs__ "
    "__neg__ __round__ __reversed__ __repr__ __str__ __format__ __length_hint__ __divmod__ __pow__ __mod__ __floordiv__ "
    "__setitem__ __enter__ __exit__ keys"
).split()

_PYTHON_METHODS: dict[type, tuple[str, ...]] = {}


def python_methods(cls: type) -> tuple[str, ...]:
    """Special methods of a class that are Python code: native code must not call them past the interpreter."""
    known = _PYTHON_METHODS.get(cls)
    if known is None:
        known = tuple(n for n in SPECIAL_METHODS if isinstance(lookup(cls, n), types.FunctionType))
        if len(_PYTHON_METHODS) > 10_000:
            _PYTHON_METHODS.clear()
        _PYTHON_METHODS[cls] = known
    return known


class Survey:
    """Looks through arguments: forces lazies, makes symbols concrete, and notes what native code would meet."""

    def __init__(self, trace: Trace, *, keep_symbols: bool, shallow: bool):
        self.trace = trace
        self.keep_symbols = keep_symbols
        self.shallow = shallow
        self.tensors = False
        self.objects = False
        self.unknown: object = None
        self.seen: set[int] = set()

    def visit(self, value: object, top: bool = False) -> object:
        value = force(self.trace, value)
        kind = type(value)
        if kind in CONSTANT_TYPES:
            return value
        if kind in SYMBOLIC:
            return value if self.keep_symbols else concrete(self.trace, value)
        if isinstance(value, torch.Tensor):
            self.tensors = True
            return value
        if isinstance(value, tuple):
            return self.visit_tuple(value)
        if isinstance(value, list | dict | collections.deque | set | frozenset):
            return self.visit_container(value)
        self.note(value, kind)
        return value

    def visit_tuple(self, value: tuple) -> tuple:
        items = [self.visit(item) for item in value]
        if all(a is b for a, b in zip(items, value, strict=True)):
            return value
        return tuple(items) if type(value) is tuple else tuple.__new__(type(value), items)

    def visit_container(self, value: object) -> object:
        if id(value) in self.seen or self.shallow:
            self.note_class(type(value))
            return value
        self.seen.add(id(value))
        record = self.trace.record_of(value)
        if record is not None and not record.loaded and isinstance(value, dict):
            guard_all_keys(self.trace, record)
        if isinstance(value, dict):
            for key in dict.keys(value):
                self.visit(key)
            for key, item in list(dict.items(value)):
                settled = self.visit(item)
                if settled is not item:
                    dict.__setitem__(value, key, settled)
        elif isinstance(value, list | collections.deque):
            for index, item in enumerate(value):
                settled = self.visit(item)
                if settled is not item:
                    value[index] = settled
        else:
            for item in value:  # type: ignore[attr-defined]
                self.visit(item)
        self.note_class(type(value))
        return value

    def note(self, value: object, kind: type) -> None:
        if kind in KNOWN_KINDS or isinstance(value, KNOWN_TYPES):
            if kind in ITERATOR_TYPES and id(value) in self.trace.sources:
                self.unknown = value
            return
        if self.trace.record_of(value) is None and id(value) in self.trace.sources and not kind.__flags__ & HEAP_TYPE:
            self.unknown = value
        self.note_class(kind)

    def note_class(self, kind: type) -> None:
        if kind.__flags__ & HEAP_TYPE and python_methods(kind):
            self.objects = True


KNOWN_KINDS: frozenset[type] = ITERATOR_TYPES | LAZY_ITERATORS | VIEW_TYPES | frozenset(
    {types.FunctionType, types.MethodType, Trampoline, Opaque, slice, functools.partial, super, types.CellType}
)
KNOWN_TYPES = (*IDENTITY_TYPES, enum.Enum, BaseException, operator.itemgetter, operator.attrgetter, torch.device)


def callbacks(trace: Trace, function: object, args: tuple) -> tuple:
    """Python callables among the arguments become trampolines, unless they are only being stored."""
    if isinstance(function, types.MethodDescriptorType | types.WrapperDescriptorType) and not is_callback_method(function):
        return args
    if function in (callable, types.MethodType, super, list, tuple, dict):
        return args
    return tuple([as_callback(trace, arg) for arg in args])


def is_callback_method(function: object) -> bool:
    name = function.__name__  # type: ignore[attr-defined]
    owner = function.__objclass__  # type: ignore[attr-defined]
    return name == "sort" or (owner is collections.defaultdict and name == "__init__") or name == "__new__"


def callback_keywords(trace: Trace, kwargs: dict) -> dict:
    return {name: as_callback(trace, value) if name in ("key", "func", "initial") else value for name, value in kwargs.items()}


def as_callback(trace: Trace, value: object) -> object:
    kind = type(value)
    if kind is types.FunctionType or kind is types.MethodType:
        return trace.trampoline(value)
    if kind is functools._lru_cache_wrapper:
        return trace.trampoline(value)
    if isinstance(value, type) and value.__flags__ & HEAP_TYPE and not issubclass(value, BaseException | enum.Enum):
        return trace.trampoline(value) if not is_allowed(value) else value
    if kind.__flags__ & HEAP_TYPE and isinstance(lookup(kind, "__call__"), types.FunctionType):
        return trace.trampoline(value)
    return value


# -- proxies --------------------------------------------------------------------------------------------------------


class Proxy:
    """Stands for an object whose special methods are Python code; each leads back into the interpreter."""

    __slots__ = ("__weakref__", "target")


_PROXY_CLASSES: dict[tuple[str, ...], type] = {}


def proxy(trace: Trace, value: object) -> object:
    methods = python_methods(type(value))
    cls = _PROXY_CLASSES.get(methods)
    if cls is None:
        namespace: dict[str, object] = {name: _special_method(name) for name in methods}
        if "__eq__" in methods:
            namespace.setdefault("__hash__", None)
        cls = _PROXY_CLASSES[methods] = type("Proxy", (Proxy,), {**namespace, "__slots__": ("trace",)})
    made = cls()
    made.target = value
    made.trace = trace
    return made


def _special_method(name: str) -> Callable:
    def method(self, *args):
        function = lookup(type(self.target), name)
        result = self.trace.invoke(function, (self.target, *(unproxy(arg) for arg in args)), {})
        result = force(self.trace, result)
        if name == "__iter__" and result is not None and python_methods(type(result)):
            return proxy(self.trace, result)
        return result

    method.__name__ = name
    return method


PROXY_FUNCTIONS: frozenset[object] = frozenset(
    {sorted, sum, min, max, any, all, list, tuple, set, frozenset, map, filter, zip, enumerate, reversed, iter, len, next}
    | {dict, functools.reduce, float, int, abs, divmod, round, str.join, itertools.chain, itertools.islice, pow}
    | {operator.length_hint, operator.index, list.extend, set.update, collections.deque, itertools.accumulate}
)


def proxies(trace: Trace, function: object, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """Arguments for a builtin that may call special methods written in Python."""
    if function not in PROXY_FUNCTIONS:
        raise trace.fail(f"{describe(function)} on an object whose special methods are Python code")
    return tuple([proxied(trace, arg) for arg in args]), {key: proxied(trace, value) for key, value in kwargs.items()}


def proxied(trace: Trace, value: object) -> object:
    kind = type(value)
    if kind is list or kind is tuple:
        return kind(proxied(trace, item) for item in value)  # type: ignore[attr-defined]
    if kind in CONSTANT_TYPES or isinstance(value, torch.Tensor) or isinstance(value, type):
        return value
    if kind.__flags__ & HEAP_TYPE and python_methods(kind) and kind is not Trampoline:
        from .generators import InterpretedGenerator

        return value if isinstance(value, InterpretedGenerator) else proxy(trace, value)
    return value


def unproxy(value: object) -> object:
    """Results without proxies and trampolines."""
    kind = type(value)
    if isinstance(value, Proxy):
        return value.target
    if kind is Trampoline:
        return value.function
    if kind is list and any(isinstance(item, Proxy) for item in value):
        value[:] = [unproxy(item) for item in value]
    elif kind is tuple and any(isinstance(item, Proxy) for item in value):
        return tuple(unproxy(item) for item in value)
    return value


# -- plain runs -----------------------------------------------------------------------------------------------------

PLAIN_FUNCTIONS: set[object] = set()


def runs_plainly(trace: Trace, function: object, args: tuple, kwargs: dict) -> bool:
    """Python code known to be pure, on constants only, need not be interpreted."""
    from .wrap import is_constant

    if isinstance(function, enum.EnumMeta):
        return all(is_constant(force(trace, arg)) for arg in args) and not kwargs
    return function in PLAIN_FUNCTIONS and all(is_known_constant(trace, arg) for arg in (*args, *kwargs.values()))


def is_known_constant(trace: Trace, value: object) -> bool:
    from .wrap import is_constant

    value = force(trace, value)
    return is_constant(value) or isinstance(value, types.FunctionType | types.MethodType | type)


def run_plainly(trace: Trace, function: object, args: tuple, kwargs: dict) -> object:
    args = tuple([force(trace, arg) for arg in args])
    kwargs = {key: force(trace, value) for key, value in kwargs.items()}
    try:
        result = function(*args, **kwargs)  # type: ignore[operator]
    except Exception as error:
        raise Raised(clean(error)) from None
    if not isinstance(result, tuple(CONSTANT_TYPES)):
        trace.pinned(result)
    return result


