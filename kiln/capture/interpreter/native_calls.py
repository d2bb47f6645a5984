"""Native code on shadows: running a builtin while tracing, or breaking the graph.

What may run is in ``builtin_tables.py``, what native code may be given in ``native_arguments.py``; builtins that need a
special answer have a rule (``builtin_rules.py``). Whatever is not listed breaks the graph.
"""

from __future__ import annotations

import collections
import enum
import functools
import inspect
import math
import sys
import types
from collections.abc import Callable, Iterable

import torch

from ..._native import is_instance as isinstance
from ...platform.python_objects import HEAP_TYPE, words
from ..guards.source import lookup
from ..shadows import hashing
from ..shadows.bound_builtins import native_descriptor
from ..shadows.builtin_tables import (
    CONTAINERS,
    HASHING_FUNCTIONS,
    HASHING_TYPES,
    ITERATOR_TYPES,
    KEYED_NAMES,
    LAZY_ITERATORS,
    NATIVE_METHODS,
    SAFE_OWNERS,
    SET_CONSUMING_NAMES,
    SYMBOLIC_FUNCTIONS,
    TEXT_FUNCTIONS,
    TEXT_NAMES,
    VIEW_TYPES,
    consumes,
    describe,
    is_allowed,
    is_hashing,
    is_keyed,
    is_mutating,
    is_shallow,
    runs_overrides,
)
from ..shadows.native_arguments import (
    COMPARISONS,
    VIEWS_AND_PROXIES,
    Proxy,
    Settled,
    Survey,
    as_callback,
    callbacks,
    copied_containers,
    guard_all_keys,
    guard_keys,
    is_object,
    is_special,
    proxies,
    proxy,
    python_methods,
    unchanged,
    unproxy,
)
from ..shadows.symbolic_numbers import NUMBER_FUNCTIONS, SYMBOLIC, arithmetic, is_arithmetic
from ..shadows.tensors import RecordMode
from ..shadows.wrap import force, getattr_static_dict
from ..state.exceptions import from_native, is_of_program, needs_real
from ..state.native_watch import call_watched
from ..state.operations import operations
from ..state.trace import Trace
from ..state.values import CONSTANT_TYPES, GraphBreak, InterpretedIterator, Lazy, Raised
from .polyfills import POLYFILLS

RULES: dict[object, Callable] = {}


def rule(*functions: object) -> Callable:
    """Register a handler ``(trace, args, kwargs)`` for builtins that need more than running them."""

    def register(handler: Callable) -> Callable:
        for function in functions:
            RULES[function] = handler
        return handler

    return register


def leave_to_python(function: object, name: str, why: str = "") -> None:
    """Give a function the rule that the graph ends before a call of it."""

    @rule(function)
    def leave(trace, args, kwargs):
        raise trace.fail(f"a call to {name}" + (f": {why}" if why else ""), "call it outside the compiled function")


def rule_for(function: object) -> Callable | None:
    kind = type(function)
    if kind.__flags__ & HEAP_TYPE and isinstance(lookup(kind, "__hash__"), types.FunctionType):
        return None  # an object of the program, whose __hash__ must not run here
    try:
        return RULES.get(function)
    except TypeError:  # unhashable callable object
        return None


def call_rule(trace: Trace, handler: Callable, function: object, args: tuple, kwargs: dict) -> object:
    """Rules expect the arguments that fit; with others, CPython has the message."""
    least, most, keywords = limits(function)
    if not least <= len(args) <= most or (kwargs and not keywords):
        raise wrong_arguments(trace, function, args, kwargs)
    try:
        return handler(trace, args, kwargs)
    except (IndexError, ValueError) as error:
        if error.__traceback__.tb_next.tb_next is not None:  # type: ignore[union-attr]  # not in the rule itself
            raise
        if type(function) is types.FunctionType:
            return call_rule_in_order(trace, handler, function, args, kwargs)
        try:
            function(*args, **kwargs)  # type: ignore[operator]
        except TypeError as wrong:
            raise Raised(from_native(trace, wrong)) from None
        raise


def call_rule_in_order(trace: Trace, handler: Callable, function: object, args: tuple, kwargs: dict) -> object:
    """The rule of a Python function that was called with names for arguments that the rule takes by position."""
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)  # type: ignore[arg-type]
    except TypeError:
        raise wrong_arguments(trace, function, args, kwargs) from None
    return handler(trace, bound.args, bound.kwargs)


@functools.cache
def limits(function: object) -> tuple[float, float, bool]:
    """The least and the largest number of positional arguments, and whether there are others."""
    if function in UNSIGNED:
        return (*UNSIGNED[function], function is object.__init__)
    if type(function) is types.FunctionType:
        code = function.__code__
        return 0, math.inf if code.co_flags & inspect.CO_VARARGS else code.co_argcount, True
    if not isinstance(function, SIGNED_TYPES):
        return 0, math.inf, True
    try:
        parameters = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
    except ValueError:
        return 0, math.inf, True
    if any(parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL) for parameter in parameters):
        return 0, math.inf, True
    single = [parameter for parameter in parameters if parameter.kind is parameter.POSITIONAL_ONLY]
    required = sum(parameter.default is parameter.empty for parameter in single)
    return required, len(single) if len(single) == len(parameters) else math.inf, False


SIGNED_TYPES = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
UNSIGNED = {getattr: (2, 3), next: (1, 2), iter: (1, 2), vars: (0, 1), dir: (0, 1), bool: (0, 1), super: (0, 2)}
UNSIGNED |= {sys.exit: (0, 1), sys.exc_info: (0, 0), sys.exception: (0, 0), object.__init__: (1, math.inf)}
"""Builtins whose signature Python cannot tell."""


def wrong_arguments(trace: Trace, function: object, args: tuple, kwargs: dict) -> Raised | GraphBreak:
    """The error for too many or too few arguments: they are counted before anybody looks at them."""
    if not isinstance(function, NATIVE_METHODS):
        try:
            function(*[None] * len(args), **dict.fromkeys(kwargs))  # type: ignore[operator]
        except TypeError as error:
            return Raised(from_native(trace, error))
    return trace.fail(f"{describe(function)} with arguments that it does not take")


# -- calling --------------------------------------------------------------------------------------------------------


def call_native(trace: Trace, function: object, args: tuple, kwargs: dict) -> object:
    """Run a builtin on shadows, or break."""
    function, args = unbind(function, args)
    handler = rule_for(function)
    if handler is not None:
        return call_rule(trace, handler, function, args, kwargs)
    if not is_allowed(function):
        reason = trace.fail(
            f"a call to {describe(function)}, which is native code that Kiln knows nothing about",
            "call it outside the compiled function, or register it with kiln.allow_in_graph if it works on tensors",
        )
        raise needs_real(trace, reason) if describe(function).startswith("torch.") else reason
    guard_keys(trace, function, args)
    return run(trace, function, args, kwargs)


class Traits:
    """What the tables say of a builtin, whatever its arguments are."""

    __slots__ = ("iterates", "mutating", "name", "shallow", "symbolic", "text")

    def __init__(self, function: object):
        self.name: str = getattr(function, "__name__", "")
        self.shallow = is_shallow(function)  # it passes elements on without looking at them
        self.text = function in TEXT_FUNCTIONS or (self.name in TEXT_NAMES and not isinstance(function, type))
        self.symbolic = self.shallow or function in SYMBOLIC_FUNCTIONS
        self.iterates = function not in COMPARISONS and self.name not in KEY_NAMES
        self.mutating = is_mutating(function)


TRAITS: dict[object, Traits] = {}


def traits_of(function: object) -> Traits:
    """The traits of a builtin; those of methods, and of functions of modules, are worked out once."""
    found = TRAITS.get(function)
    if found is None:
        found = Traits(function)
        owner = getattr(function, "__self__", None)
        if isinstance(function, NATIVE_METHODS) or isinstance(owner, types.ModuleType):
            TRAITS[function] = found
    return found


def run(trace: Trace, function: object, args: tuple, kwargs: dict) -> object:
    """Prepare the arguments and run natively."""
    if function in NUMBER_FUNCTIONS and not kwargs:
        args = tuple([force(trace, arg) for arg in args])
        if is_arithmetic(args):
            return arithmetic(trace, function, args)
    traits = traits_of(function)
    shallow, text, name = traits.shallow, traits.text, traits.name
    survey = Survey(trace, keep_symbols=traits.symbolic, shallow=shallow, iterates=traits.iterates)
    args = tuple([survey.visit(arg) for arg in args])
    kwargs = {key: survey.visit(value) for key, value in kwargs.items()}
    if (
        trace.outside.set_iterators
        and traits.mutating
        and any(owner is args[0] for _, owner in trace.outside.set_iterators.values())
    ):
        raise trace.fail("changing a set from outside over which there is an iterator")
    if trace.outside.reordered_sets and name not in ORDERLESS:
        args = tuple([ordered_elements(trace, function, arg) for arg in args])
    unknown = survey.unknown
    if survey.complex and not shallow:
        concrete_survey = Survey(trace, keep_symbols=False, shallow=False)
        args = tuple([concrete_survey.visit(arg) for arg in args])
        kwargs = {key: concrete_survey.visit(value) for key, value in kwargs.items()}
    if shallow:
        foreign = (
            [at for at, arg in enumerate(args) if id(arg) in trace.outside.foreign] if trace.outside.foreign else ()
        )
        unknown = next((args[at] for at in foreign if consumes(function, at)), None)
    if unknown is not None:
        kind = type(unknown)
        raise trace.fail(f"{describe(function)} on a {kind.__module__}.{kind.__qualname__} object from outside")
    if text and (survey.tensors or survey.objects):
        raise trace.fail(f"the text or hash of a tensor or object ({describe(function)})")
    if name == "__hash__" and not trace.progress.key_method_depth and not all(is_value(arg) for arg in args):
        raise trace.fail(f"{describe(function)} of an object that hashes by identity")
    override = runs_overrides(function, args)
    if override is not None:
        raise trace.fail(f"{describe(function)}, which calls a {override} that is Python code")
    if name == "__class_getitem__" and any(type(arg) is Settled for arg in args):
        raise trace.fail(f"{describe(function)} of an iterator")
    if trace.progress.key_method_depth and traits.mutating:
        raise trace.fail("an effect inside a __hash__ or __eq__ that a dictionary or set is going to call")
    if function in ONE_BY_ONE and is_one_by_one(args):
        return update_one_by_one(trace, function, args, kwargs)
    if is_hashing(function, args):
        args = tuple([hashed_argument(trace, function, at, arg) for at, arg in enumerate(args)])
        hashing.prepare(trace, args[:2] if is_keyed(function) else args)
    elif survey.objects and not shallow:
        if function in POLYFILLS:
            return call_polyfill(trace, function, args, kwargs)
        return run_on_proxies(trace, function, args, kwargs)
    if shallow:
        args = tuple([iterable_argument(trace, function, at, arg) for at, arg in enumerate(args)])
    result = run_natively(trace, function, *callbacks(trace, function, args, kwargs))
    if text and type(result) is str and "kiln.capture" in result:
        raise trace.fail(f"{describe(function)}, which shows what stands for an object while tracing")
    return result


def ordered_elements(trace: Trace, function: object, value: object) -> object:
    """A set from outside whose shadow iterates in another order: its elements in their order, where these will do."""
    if id(value) not in trace.outside.reordered_sets:
        return value
    record = trace.outside.record_of(value)
    if function not in ITERATING or set(set.__iter__(value)) != record.items:  # type: ignore[arg-type, union-attr]
        raise trace.fail(f"{describe(function)} on a set from outside whose order no other set has")
    if function not in (iter, enumerate, zip, map, filter):
        return record.order  # type: ignore[union-attr]
    iterator = iter(record.order)  # type: ignore[union-attr]
    trace.outside.set_iterators[id(iterator)] = (iterator, value)
    return iterator


ITERATING: frozenset[object] = frozenset(
    {list, tuple, sorted, sum, min, max, any, all, enumerate, zip, map, filter, collections.deque, iter, str.join}
)
"""Builtins that iterate over an argument, and do nothing else with it."""


def run_on_proxies(trace: Trace, function: object, args: tuple, kwargs: dict) -> object:
    """Native code that may call special methods in Python: it sees copies, which must stay true to what they copy."""
    containers = copied_containers((*args, *kwargs.values()), [])
    result = run_natively(trace, function, *callbacks(trace, function, *proxies(trace, function, args, kwargs)))
    if not unchanged(containers):
        raise trace.fail(f"{describe(function)} on a container that changes meanwhile")
    return result


def iterable_argument(trace: Trace, function: object, position: int, value: object) -> object:
    """An argument that native code iterates over: one that iterates in Python becomes a proxy."""
    if type(value) in CONSTANT_TYPES:
        return value
    if isinstance(value, type):
        return proxy(trace, value) if consumes(function, position) and iterates_in_python(value) else value
    if not consumes(function, position) or not is_object(value) or issubclass(type(value), InterpretedIterator):
        return value
    if isinstance(value, CONTAINERS) and "__iter__" not in python_methods(type(value)):
        sized = function in LENGTH_TAKERS and "__len__" in python_methods(type(value))
        if not sized or isinstance(value, dict):
            return value  # native code looks past the other methods
    if isinstance(value, dict) and (
        function in HASHING_FUNCTIONS or getattr(function, "__objclass__", None) in HASHING_TYPES
    ):
        return value  # a dictionary asks another one for its keys
    if position == 0 and isinstance(function, NATIVE_METHODS):
        return value
    return proxy(trace, value)


LENGTH_TAKERS: frozenset[object] = frozenset({list, tuple, list.extend, list.__init__, list.__iadd__})
"""Builtins that ask an iterable for its length before they iterate."""


ONE_BY_ONE: dict[object, Callable] = {
    set.update: set.add,
    set.difference_update: set.discard,
    dict.update: dict.__setitem__,
    collections.OrderedDict.update: collections.OrderedDict.__setitem__,
}


def is_one_by_one(args: tuple) -> bool:
    """Whether a container is changed by what comes out of an iterator, which may look at it, or raise, meanwhile."""
    if len(args) != 2:
        return False
    kind = type(args[1]) if type(args[1]) is not Settled else type(args[1].iterator)
    return kind in LAZY_ITERATORS or kind in ITERATOR_TYPES or issubclass(kind, InterpretedIterator)


def update_one_by_one(trace: Trace, function: object, args: tuple, kwargs: dict) -> None:

    target, items = args
    step = ONE_BY_ONE[function]
    for item in operations.consume(trace, items.iterator if type(items) is Settled else items):
        item = force(trace, item)
        if not isinstance(target, dict):
            call_native(trace, step, (target, item), {})
            continue
        if type(item) not in (tuple, list) or len(item) != 2:
            raise trace.fail(f"{describe(function)} with something else than pairs out of an iterator")
        call_native(trace, step, (target, force(trace, item[0]), item[1]), {})
    if kwargs:
        call_native(trace, function, (target, kwargs), {})


def iterates_in_python(cls: type) -> bool:
    """Whether a class has a metaclass that makes it an iterable, other than that of enums."""
    return not isinstance(cls, enum.EnumMeta) and isinstance(lookup(type(cls), "__iter__"), types.FunctionType)


def hashed_argument(trace: Trace, function: object, position: int, value: object) -> object:
    """An argument whose elements are going to be hashed: looked at, and listed if it comes out of an iterator."""
    if type(value) in CONSTANT_TYPES:
        return value
    if position == 1 and (is_keyed(function) or getattr(function, "__objclass__", None) in (set, frozenset)):
        iterates = function.__name__ not in KEY_NAMES  # type: ignore[attr-defined]
        value = Survey(trace, keep_symbols=False, shallow=False, iterates=iterates).visit(value)
    method = isinstance(function, NATIVE_METHODS)
    consumed = consumes(function, position) or (method and function.__name__ in SET_CONSUMING_NAMES)
    if (position == 0 and method) or not consumed or isinstance(value, (dict, str, range)):
        return value
    survey = Survey(trace, keep_symbols=False, shallow=False)
    of_sets = function in (set, frozenset) or getattr(function, "__objclass__", None) in (set, frozenset)
    of_sets = of_sets or function in COMPARISONS
    past = of_sets and isinstance(value, (set, frozenset))  # sets take the elements of sets past any __iter__
    if "__iter__" in python_methods(type(value)) and isinstance(value, CONTAINERS) and not past:
        return [survey.visit(item) for item in elements_in_python(trace, function, value)]
    if isinstance(value, (list, tuple, set, frozenset, collections.deque)) or type(value) in VIEW_TYPES:
        return survey.visit(value)
    if type(value) is Settled:
        value = value.iterator
    if type(value) in ITERATOR_TYPES or type(value) in LAZY_ITERATORS or issubclass(type(value), InterpretedIterator):
        trace.progress.entered += 1  # the iterator moves on: an instruction that breaks after this must be run again
        return [survey.visit(item) for item in elements_in_python(trace, function, value)]
    takes_all = isinstance(function, type) or function == dict.fromkeys or (method and not is_operator(function))
    if is_object(value) and takes_all:
        trace.progress.entered += 1
        return [survey.visit(item) for item in elements_in_python(trace, function, value)]
    return value


KEY_NAMES = KEYED_NAMES | words("add discard remove contains __setitem__ __hash__")
"""Methods that take a key or an element as it is, also where that is an iterator."""


def is_operator(function: object) -> bool:
    name = function.__name__  # type: ignore[attr-defined]
    return name.startswith("__") and name not in ("__init__", "__new__", "__ior__")


def elements_in_python(trace: Trace, function: object, value: object) -> list:
    """What native code would get out of an iterable, or for a dictionary out of a mapping, that is Python code."""

    base = getattr(function, "__objclass__", function)
    mapping = isinstance(base, type) and issubclass(base, dict)
    keys = operations.load_or(trace, value, "keys", None) if mapping else None
    if keys is None:
        return up_to_refused(operations.consume(trace, value), mapping)
    names = operations.consume(trace, operations.call(trace, keys, (), {}))
    return [(key, force(trace, operations.get_item(trace, value, key))) for key in names]


def up_to_refused(items: Iterable, pairs: bool) -> list:
    """Elements up to the first that native code refuses: it takes no more of them either."""
    taken = []
    for item in items:
        taken.append(item)
        kind = type(item)
        if pairs and (kind in REFUSED_AS_PAIRS or (kind in (tuple, list, str) and len(item) != 2)):
            break
        if not pairs and kind in (list, dict, set):
            break
    return taken


REFUSED_AS_PAIRS: frozenset[type] = frozenset({int, float, bool, complex, type(None)})


def call_polyfill(trace: Trace, function: object, args: tuple, kwargs: dict) -> object:

    polyfill = POLYFILLS[function]
    trace.outside.pinned(polyfill)
    return operations.run_function(trace, polyfill, operations.bind_arguments(trace, polyfill, args, kwargs))


def call_native_default(trace: Trace, function: object, args: tuple, kwargs: dict) -> object:
    """Run a builtin that has a rule, past that rule."""
    guard_keys(trace, function, args)
    return run(trace, function, args, kwargs)


def is_value(value: object, deep: bool = False) -> bool:
    """Whether a value is known by its contents alone: text and hash of it do not depend on identity."""
    kind = type(value)
    if kind in CONSTANT_TYPES or isinstance(value, (enum.Enum, torch.dtype, torch.device, type, types.ModuleType)):
        return True
    if kind in (tuple, frozenset, torch.Size, slice):
        parts = (value.start, value.stop, value.step) if kind is slice else value  # type: ignore[attr-defined]
        return all(is_value(item, deep) for item in parts)  # type: ignore[attr-defined]
    if deep and kind in (list, set, collections.deque):
        return all(is_value(item.real if type(item) is Lazy else item, deep) for item in value)  # type: ignore[attr-defined]
    if deep and kind in (dict, collections.OrderedDict, collections.defaultdict, collections.Counter):
        parts = [*dict.keys(value), *(v.real if type(v) is Lazy else v for v in dict.values(value))]  # type: ignore[arg-type]
        return all(is_value(item, deep) for item in parts)
    return isinstance(value, (types.BuiltinFunctionType, torch.layout, torch.memory_format)) or kind in SYMBOLIC


def run_natively(trace: Trace, function: object, args: tuple, kwargs: dict) -> object:
    """The call itself; operations on tensors inside it are recorded, exceptions are the program's."""
    trace.progress.entered += 1
    try:
        with RecordMode(trace):
            result = call_watched(trace, function, args, kwargs)  # type: ignore[arg-type]
    except (GraphBreak, Raised):
        raise
    except RecursionError as error:  # of the program, or only of interpreting it
        raise trace.fail("recursion too deep to interpret", error=error) from None
    except BaseException as error:
        if not is_of_program(trace, error):
            raise
        if any(name in str(error) for name in STAND_INS):  # eager's message has the real name
            raise trace.fail(f"{describe(function)} raises {type(error).__name__}", error=error) from None
        raise Raised(from_native(trace, error)) from None
    return unproxy(result)


ORDERLESS = words(
    "len contains __len__ __contains__ add discard remove clear issubset issuperset isdisjoint __eq__ __ne__"
)
"""Of what takes sets, what does not show their order."""

STAND_INS = ("FakeTensor", "'Proxy'", "'Trampoline'", "'Settled'", "'Lazy'", "'SymInt'", "'InterpretedGenerator'")


def unbind(function: object, args: tuple) -> tuple[object, tuple]:
    """A bound builtin method as its descriptor with the owner as first argument."""
    owner = getattr(function, "__self__", None)
    if owner is None or isinstance(owner, types.ModuleType):
        return function, args
    if isinstance(function, (types.BuiltinFunctionType, types.MethodWrapperType)):
        descriptor = native_descriptor(function)
        # A class has methods of its metaclass, and class methods of its own, which may have the same names.
        if descriptor is not None and (not isinstance(owner, type) or descriptor.__get__(owner) == function):  # type: ignore[attr-defined]
            return descriptor, (owner, *args)
    return function, args


__all__ = [
    "CONTAINERS",
    "ITERATOR_TYPES",
    "LAZY_ITERATORS",
    "SAFE_OWNERS",
    "VIEWS_AND_PROXIES",
    "VIEW_TYPES",
    "Proxy",
    "Settled",
    "as_callback",
    "call_native",
    "call_native_default",
    "enum",
    "getattr_static_dict",
    "guard_all_keys",
    "is_special",
    "is_object",
    "is_value",
    "lookup",
    "proxy",
    "python_methods",
    "rule",
    "rule_for",
    "run_natively",
]
