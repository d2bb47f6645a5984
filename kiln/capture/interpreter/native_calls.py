"""Native code on shadows: running a builtin while tracing, or breaking the graph.

What may run is in ``builtin_tables.py``, what native code may be given in ``native_arguments.py``; builtins that need
a special answer have a rule (``call_rules.py``). Whatever is not listed breaks the graph.
"""

from __future__ import annotations

import collections
import enum
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from ..._native import is_instance as isinstance
from ...platform.python_objects import words
from ..shadows import hashing
from ..shadows.bound_builtins import native_descriptor
from ..shadows.builtin_tables import (
    ITERATOR_TYPES,
    LAZY_ITERATORS,
    NATIVE_METHODS,
    SYMBOLIC_FUNCTIONS,
    TEXT_FUNCTIONS,
    TEXT_NAMES,
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
    ForcedIterator,
    Proxy,
    Survey,
    callbacks,
    copied_containers,
    guard_keys,
    proxies,
    unchanged,
    unproxy,
)
from ..shadows.symbolic_numbers import NUMBER_FUNCTIONS, SYMBOLIC, arithmetic, is_arithmetic
from ..shadows.tensors import RecordMode
from ..shadows.wrap import force
from ..state.exceptions import from_native, is_of_program, needs_real
from ..state.native_watch import call_watched
from ..state.operations import Args, Kwargs, operations
from ..state.trace import Trace
from ..state.values import CONSTANT_TYPES, GraphBreak, InterpretedIterator, Lazy, Raised, Trampoline
from .call_rules import call_rule, rule_for
from .container_arguments import KEY_NAMES, hashed_argument, iterable_argument, ordered_elements


def call_native(trace: Trace, function: object, args: Args, kwargs: Kwargs) -> Any:
    """Run a builtin on shadows, or break."""
    function, args = unbind_method(function, args)
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
    return prepare_and_run(trace, function, args, kwargs)


class Traits:
    """What the tables say of a builtin, whatever its arguments are."""

    __slots__ = ("iterates", "mutating", "name", "shallow", "symbolic", "text")

    def __init__(self, function: object) -> None:
        self.name: str = getattr(function, "__name__", "")
        self.shallow = is_shallow(function)  # it passes elements on without reading them
        self.text = function in TEXT_FUNCTIONS or (self.name in TEXT_NAMES and not isinstance(function, type))
        self.symbolic = self.shallow or function in SYMBOLIC_FUNCTIONS
        self.iterates = function not in COMPARISONS and self.name not in KEY_NAMES
        self.mutating = is_mutating(function)


TRAITS: dict[object, Traits] = {}


def traits_of(function: object) -> Traits:
    """The traits of a builtin, cached for methods and for functions of modules."""
    found = TRAITS.get(function)
    if found is None:
        found = Traits(function)
        owner = getattr(function, "__self__", None)
        if isinstance(function, NATIVE_METHODS) or isinstance(owner, types.ModuleType):
            TRAITS[function] = found
    return found


def prepare_and_run(trace: Trace, function: object, args: Args, kwargs: Kwargs) -> Any:
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
    iterated, foreign = trace.outside.set_iterators, trace.outside.foreign
    if iterated and traits.mutating and any(owner is args[0] for _, owner in iterated.values()):
        raise trace.fail("changing a set from outside over which there is an iterator")
    if trace.outside.reordered_sets and name not in ORDERLESS:
        args = tuple([ordered_elements(trace, function, arg) for arg in args])
    unknown = survey.unknown
    if survey.symbols and survey.other_numbers and not shallow:
        args, kwargs = concrete_arguments(trace, args, kwargs)
    if shallow:
        places = [at for at, arg in enumerate(args) if id(arg) in foreign] if foreign else ()
        unknown = next((args[at] for at in places if consumes(function, at)), None)
    if unknown is not None:
        kind = type(unknown)
        raise trace.fail(f"{describe(function)} on a {kind.__module__}.{kind.__qualname__} object from outside")
    if text and (survey.tensors or survey.objects):
        raise trace.fail(f"the text or hash of a tensor or object ({describe(function)})")
    if name == "__hash__" and not trace.progress.key_method_depth and not all(is_value(arg) for arg in args):
        raise trace.fail(f"{describe(function)} of an object that hashes by identity")
    if survey.buffer is not None and not shallow and sys.version_info >= (3, 12):
        raise trace.fail(f"{describe(function)} on a {survey.buffer.__qualname__}, whose __buffer__ is Python code")
    if function is collections.defaultdict.__init__ and trace.outside.record_of(args[0]) is not None:
        raise trace.fail("a new default factory of a defaultdict from outside")
    override = runs_overrides(function, args)
    if override is not None:
        raise trace.fail(f"{describe(function)}, which calls a {override} that is Python code")
    if name == "__class_getitem__" and any(type(arg) is ForcedIterator for arg in args):
        raise trace.fail(f"{describe(function)} of an iterator")
    if trace.progress.key_method_depth and traits.mutating:
        raise trace.fail("an effect inside a __hash__ or __eq__ that a dictionary or set is going to call")
    if function in ELEMENTWISE_UPDATES and has_lazy_elements(args):
        update_elementwise(trace, function, args, kwargs)
        return None
    if is_hashing(function, args):
        args = tuple([hashed_argument(trace, function, at, arg) for at, arg in enumerate(args)])
        hashing.prepare_hashing(trace, args[:2] if is_keyed(function) else args)
    elif survey.objects and not shallow:
        if function in POLYFILLS:
            return call_polyfill(trace, function, args, kwargs)
        if function is sum and survey.number_objects:  # CPython adds some of them without their methods
            raise trace.fail("the sum of objects whose class derives from a number and has methods of its own")
        if survey.symbols:
            args, kwargs = concrete_arguments(trace, args, kwargs)
        return run_on_proxies(trace, function, args, kwargs)
    if shallow:
        args = tuple([iterable_argument(trace, function, at, arg) for at, arg in enumerate(args)])
    try:
        result = run_natively(trace, function, *callbacks(trace, function, args, kwargs))
    except Raised:
        if not survey.symbols or shallow or traits.mutating:
            raise
        args, kwargs = concrete_arguments(trace, args, kwargs)  # the message names the class of an operand
        result = run_natively(trace, function, *callbacks(trace, function, args, kwargs))
    if text and type(result) is str and "kiln.capture" in result:
        raise trace.fail(f"{describe(function)}, which shows what stands for an object while tracing")
    return result


def concrete_arguments(trace: Trace, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
    """Arguments with the plain numbers that symbolic ones in them are."""
    survey = Survey(trace, keep_symbols=False, shallow=False)
    return tuple([survey.visit(arg) for arg in args]), {key: survey.visit(value) for key, value in kwargs.items()}


def run_on_proxies(trace: Trace, function: object, args: Args, kwargs: Kwargs) -> object:
    """Run native code that may call special methods in Python, on copies. The originals must not change meanwhile."""
    containers = copied_containers((*args, *kwargs.values()), [])
    result = run_natively(trace, function, *callbacks(trace, function, *proxies(trace, function, args, kwargs)))
    if not unchanged(containers):
        raise trace.fail(f"{describe(function)} on a container that changes meanwhile")
    return result


ELEMENTWISE_UPDATES: dict[object, Callable[..., Any]] = {
    set.update: set.add,
    set.difference_update: set.discard,
    dict.update: dict.__setitem__,
    collections.OrderedDict.update: collections.OrderedDict.__setitem__,
}


def has_lazy_elements(args: Args) -> bool:
    """Whether the elements come from an iterator that may read the container, or raise, while it changes."""
    if len(args) != 2:
        return False
    kind = type(args[1]) if type(args[1]) is not ForcedIterator else type(args[1].iterator)
    return kind in LAZY_ITERATORS or kind in ITERATOR_TYPES or issubclass(kind, InterpretedIterator)


def update_elementwise(trace: Trace, function: object, args: Args, kwargs: Kwargs) -> None:
    target, items = args
    step = ELEMENTWISE_UPDATES[function]
    for item in operations.consume(trace, items.iterator if type(items) is ForcedIterator else items):
        item = force(trace, item)
        if not isinstance(target, dict):
            call_native(trace, step, (target, item), {})
            continue
        if type(item) not in (tuple, list) or len(item) != 2:
            raise trace.fail(f"{describe(function)} with something else than pairs out of an iterator")
        call_native(trace, step, (target, force(trace, item[0]), item[1]), {})
    if kwargs:
        call_native(trace, function, (target, kwargs), {})


POLYFILLS: dict[object, Callable[..., Any]] = {}
"""Builtins -> the same in Python, interpreted where native code would call special methods itself."""


def call_polyfill(trace: Trace, function: object, args: Args, kwargs: Kwargs) -> object:
    polyfill = POLYFILLS[function]
    trace.outside.pinned(polyfill)
    return operations.run_function(trace, polyfill, operations.bind_arguments(trace, polyfill, args, kwargs))


def call_without_rule(trace: Trace, function: object, args: Args, kwargs: Kwargs) -> Any:
    """Run a builtin natively although it has a rule."""
    guard_keys(trace, function, args)
    return prepare_and_run(trace, function, args, kwargs)


def is_value(value: Any, deep: bool = False) -> bool:
    """Whether text and hash of a value depend on its contents only, not on its identity."""
    kind = type(value)
    if kind in CONSTANT_TYPES or isinstance(value, (enum.Enum, torch.dtype, torch.device, type, types.ModuleType)):
        return True
    if kind in (tuple, frozenset, torch.Size, slice):
        parts = (value.start, value.stop, value.step) if kind is slice else value
        return all(is_value(item, deep) for item in parts)
    if deep and kind in (list, set, collections.deque):
        return all(is_value(item.real if type(item) is Lazy else item, deep) for item in value)
    if deep and kind in (dict, collections.OrderedDict, collections.defaultdict, collections.Counter):
        parts = [*dict.keys(value), *(v.real if type(v) is Lazy else v for v in dict.values(value))]
        return all(is_value(item, deep) for item in parts)
    return isinstance(value, (types.BuiltinFunctionType, torch.layout, torch.memory_format)) or kind in SYMBOLIC


def run_natively(trace: Trace, function: Any, args: Args, kwargs: Kwargs) -> Any:
    """Make the call. Operations on tensors inside it are recorded; its exceptions are raised in the program."""
    trace.progress.entered += 1
    try:
        with RecordMode(trace):
            result = call_watched(trace, function, args, kwargs)
    except (GraphBreak, Raised):
        raise
    except RecursionError as error:  # of the program, or only of interpreting it
        raise trace.fail("recursion too deep to interpret", error=error) from None
    except BaseException as error:
        if not is_of_program(trace, error):
            raise
        if any(name in str(error) for name in STAND_INS):  # eager's message names the real class
            raise trace.fail(f"{describe(function)} raises {type(error).__name__}", error=error) from None
        raise Raised(from_native(trace, error)) from None
    return unproxy(result)


ORDERLESS = words(
    "len contains __len__ __contains__ add discard remove clear issubset issuperset isdisjoint __eq__ __ne__"
)
"""Functions of sets whose results do not depend on the order of elements."""

STAND_INS: tuple[str, ...] = ("FakeTensor", "'SymInt'", "'InterpretedGenerator'")
STAND_INS += tuple(f"'{kind.__name__}'" for kind in (Proxy, Trampoline, ForcedIterator, Lazy))


def unbind_method(function: Any, args: Args) -> tuple[object, tuple[Any, ...]]:
    """A bound builtin method as its descriptor with the owner as first argument."""
    owner = getattr(function, "__self__", None)
    if owner is None or isinstance(owner, types.ModuleType):
        return function, args
    if isinstance(function, (types.BuiltinFunctionType, types.MethodWrapperType)):
        descriptor = native_descriptor(function)
        # A class has methods of its metaclass, and class methods of its own, which may have the same names.
        if descriptor is not None and (not isinstance(owner, type) or descriptor.__get__(owner) == function):
            return descriptor, (owner, *args)
    return function, args
