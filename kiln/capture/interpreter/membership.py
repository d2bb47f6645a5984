"""Identity (``is``) and membership (``in``)."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from typing import Any, cast

import torch

from ... import operator_functions as operator
from ..._native import is_instance as isinstance
from ...bytecode.split import UNBOUND
from ...platform.python_objects import message_of
from ..guards.source import lookup, mapping_of, native_iterator
from ..shadows.builtin_tables import CONTAINERS, VIEW_TYPES
from ..shadows.native_arguments import load_keys
from ..shadows.symbolic_numbers import concrete, is_symbolic
from ..shadows.wrap import force
from ..state.exceptions import from_native
from ..state.operations import operations
from ..state.trace import Trace
from ..state.values import CONSTANT_TYPES, Lazy, Raised
from . import calls, native_calls
from .iteration import get_iterator, iterate_rest
from .program_types import native_name
from .protocols import special_method, truth


def is_same(trace: Trace, left: Any, right: Any) -> bool:
    """``left is right``. Values from outside that were not forced are compared as they are, and guarded."""
    for one, other in ((left, right), (right, left)):
        if other is UNBOUND and type(one) is Lazy:
            trace.guards.add(one.source, "identity" if one.real is UNBOUND else "not_identity", UNBOUND)
            return one.real is UNBOUND
        if type(one) is Lazy and not one.done and (other is None or other is True or other is False):
            if one.real is None or isinstance(one.real, bool):
                return force(trace, one) is other
            if type(one.real) not in CONSTANT_TYPES:
                force(trace, one)
                return False
    lazy = type(left) is Lazy and type(right) is Lazy
    if lazy and is_guarded_by_value(left.real) and is_guarded_by_value(right.real):
        same = left.real is right.real
        if left.source != right.source:
            trace.guards.add(left.source, "same" if same else "not_same", right.source)
        return same
    for one in (left, right):
        if type(one) is Lazy and (
            isinstance(one.real, types.FunctionType) or id(force(trace, one)) in trace.outside.foreign
        ):
            trace.guards.add(one.source, "identity", one.real)
    if type(right) is Lazy:
        right = force(trace, right)
        if right is UNBOUND:
            return is_same(trace, left, right)
    left = force(trace, left)
    if left is right:
        guard_identity(trace, left)
        return True
    if isinstance(left, types.FunctionType) and isinstance(right, types.FunctionType):
        guard_identity(trace, left)
        guard_identity(trace, right)
    guard_not_same(trace, left, right)
    if isinstance(left, types.MethodType) and isinstance(right, types.MethodType):
        return False
    if is_symbolic(left) or is_symbolic(right):
        return False if left is None or right is None else concrete(trace, left) is concrete(trace, right)
    return left is right


def is_guarded_by_value(real: object) -> bool:
    """Whether an object is guarded by value, so that equal objects need not be identical."""
    return isinstance(real, (int, float, str, bytes, complex, tuple, frozenset, slice))


def guard_identity(trace: Trace, value: object) -> None:
    if isinstance(value, types.FunctionType):
        source = trace.outside.source_of(value)
        if source is not None:
            trace.guards.add(source, "identity", value)


def guard_not_same(trace: Trace, left: object, right: object) -> None:
    """Guard that two immutable objects from outside, which have copies, are not the same object."""
    if type(left) is super and type(right) is super and left is not right:
        raise trace.fail("whether two super objects are the same")
    if type(left) is type(right) and isinstance(left, COPIED):
        sources = trace.outside.source_of(left), trace.outside.source_of(right)
        if sources[0] is not None and sources[1] is not None:
            trace.guards.add(sources[0], "not_same", sources[1])


COPIED: tuple[type, ...] = (
    types.MethodType,
    types.BuiltinFunctionType,
    types.MethodWrapperType,
    types.MappingProxyType,
)
COPIED += (functools.partial, slice, *VIEW_TYPES)


def contains(trace: Trace, container: Any, value: Any) -> bool:
    """``value in container``."""
    method = special_method(trace, container, "__contains__")
    if method is not None:
        return truth(trace, calls.call(trace, method, (container, value), {}))
    if isinstance(container, torch.Tensor):
        raise trace.fail("`in` on a tensor: it needs the tensor's values")
    if type(container) in VIEW_TYPES:
        return contains_in_view(trace, container, value)
    if type(container) is types.MappingProxyType:
        return contains(trace, mapping_of(container), value)
    if isinstance(container, (dict, set, frozenset)):
        return contains_hashed(trace, container, value)
    if isinstance(container, (str, bytes, range)):
        return bool(native_calls.call_without_rule(trace, operator.contains, (container, concrete(trace, value)), {}))
    if isinstance(container, CONTAINERS):  # native code ignores an __iter__ in Python
        return search(trace, native_iterator(container), value)
    if isinstance(lookup(type(container), "__contains__"), (types.WrapperDescriptorType, types.MethodDescriptorType)):
        return bool(native_calls.call_native(trace, operator.contains, (container, concrete(trace, value)), {}))
    try:
        iterator = get_iterator(trace, container)
    except Raised as raised:
        if not isinstance(raised.error, TypeError):
            raise
        raise Raised(TypeError(NO_CONTAINER.format(native_name(trace, container)))) from None
    return search(trace, iterate_rest(trace, iterator), value)


NO_CONTAINER = message_of(functools.partial(operator.contains, cast(Any, 0), 0)).replace("int", "{}")


def contains_in_view(trace: Trace, view: object, value: Any) -> bool:
    """``in`` on the keys, values or items of a dictionary, whose values may be lazy."""
    owner, kind = mapping_of(view), type(view).__name__
    if kind.endswith("keys"):
        return contains_hashed(trace, owner, value)
    if kind.endswith("values"):
        load_keys(trace, owner)
        return search(trace, iter(dict.values(owner)), value)
    if not isinstance(value, tuple) or len(value) != 2 or not contains_hashed(trace, owner, value[0]):
        return False
    return search(trace, iter([dict.__getitem__(owner, concrete(trace, value[0]))]), value[1])


def contains_hashed(trace: Trace, container: Any, value: Any) -> bool:
    value = concrete(trace, value)
    base = next(base for base in (dict, set, frozenset) if isinstance(container, base))
    return bool(native_calls.call_native(trace, base.__contains__, (container, value), {}))


def search(trace: Trace, items: Iterator[Any], value: object) -> bool:
    while True:
        try:
            item = next(items)
        except StopIteration:
            return False
        except RuntimeError as error:  # an __eq__ has changed the container
            raise Raised(from_native(trace, error)) from None
        # Comparing the identity of symbolic sizes would specialise them.
        item = force(trace, item) if type(item) is Lazy and type(item.real) is int else item
        symbolic = torch.SymInt in (type(item), type(value))
        if (not symbolic and is_same(trace, item, value)) or truth(
            trace, operations.compare(trace, "==", force(trace, item), value)
        ):
            return True
