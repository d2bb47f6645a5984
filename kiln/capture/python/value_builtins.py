"""Rules for builtins on values: identity, truth, length, hash, numbers, iteration."""

from __future__ import annotations

import enum
import types
from typing import Any

import torch

from ..._native import MISSING
from ..._native import is_instance as isinstance
from ...platform.python_objects import HEAP_TYPE
from ..interpreter import native_calls
from ..interpreter.call_rules import rule
from ..interpreter.calls import call
from ..interpreter.descriptors import class_function, name_class_value
from ..interpreter.iteration import get_iterator, next_item
from ..interpreter.protocols import checked_length, force_all, special_method, truth
from ..shadows.hashing import as_hash
from ..shadows.native_arguments import Survey, check_conversion
from ..shadows.symbolic_numbers import concrete, is_symbolic
from ..shadows.wrap import class_attribute, force
from ..state.operations import Args, Kwargs, operations
from ..state.trace import Trace
from ..state.values import InterpretedIterator, Raised
from .copying import compares_ids


@rule(id)
def rule_id(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    """The id of the real object, guarded. Objects made inside have no id yet."""
    value = force(trace, args[0])
    if compares_ids(trace):
        return id(value)
    known = trace.outside.by_shadow.get(id(value)) or trace.fakes.infos.get(id(value))
    if known is not None and known.source is not None:
        trace.guards.add(known.source, "id", id(known.real))
        return id(known.real)
    if value is None or isinstance(value, (bool, type, types.ModuleType, types.BuiltinFunctionType, enum.Enum)):
        return id(value)
    raise trace.fail("id() of an object that is made inside", "compare with `is`, or take the id outside")


@rule(bool)
def rule_bool(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    if len(args) > 1 or kwargs:
        return native_calls.run_natively(trace, bool, force_all(trace, args), kwargs)  # which raises
    return truth(trace, args[0]) if args else False


@rule(len)
def rule_len(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    value = force(trace, args[0])
    if isinstance(value, torch.Tensor):
        operations.check_method(trace, value, "__len__")
        if value.dim() == 0:
            raise trace.fail("len() of a 0-d tensor")
        return value.shape[0]
    method = special_method(trace, value, "__len__")
    if method is not None:
        return checked_length(trace, concrete(trace, call(trace, method, (value,), {})))
    return native_calls.call_without_rule(trace, len, (value,), kwargs)


@rule(hash)
def rule_hash(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    value = concrete(trace, args[0])
    method = special_method(trace, value, "__hash__")
    if method is not None:
        number = concrete(trace, call(trace, method, (value,), {}))
        if not isinstance(number, int):
            raise Raised(TypeError("__hash__ method should return an integer"))
        return as_hash(number)
    value = Survey(trace, keep_symbols=False, shallow=False).visit(value)
    if isinstance(value, float) and value != value:
        raise trace.fail("hash() of a NaN, which hashes by identity")
    if not native_calls.is_value(value) and getattr(type(value), "__hash__", None) is not None:
        raise trace.fail("hash() of an object that hashes by identity")
    return native_calls.run_natively(trace, hash, (value,), {})


def number_rule(kind: type, name: str, symbolic: type) -> None:
    @rule(kind)
    def rule_number(trace: Trace, args: Args, kwargs: Kwargs) -> object:
        values = force_all(trace, args)
        if len(values) == 1 and not kwargs:
            value = values[0]
            if isinstance(value, torch.Tensor):
                raise trace.fail(f"{kind.__name__}() of a tensor: it needs the tensor's value")
            if isinstance(value, symbolic):
                return value
            if is_symbolic(value):
                return native_calls.call_without_rule(trace, kind, values, kwargs)
            converted = convert_in_python(trace, value, kind, name)
            if converted is not None:
                return converted
            if isinstance(value, (int, float, str, bytes)):  # subclasses too: native code looks at their value
                return native_calls.run_natively(trace, kind, values, kwargs)
        return native_calls.call_without_rule(trace, kind, values, kwargs)


def convert_in_python(trace: Trace, value: object, kind: type, name: str) -> Any:
    """The result of a conversion method in Python; None where native code converts."""
    cls = type(value)
    if not cls.__flags__ & HEAP_TYPE or issubclass(cls, InterpretedIterator):
        return None
    for method_name in (name, "__index__"):
        method = class_attribute(trace, cls, method_name, MISSING)
        if method is MISSING:
            continue
        if not isinstance(method, types.FunctionType):
            return None
        name_class_value(trace, cls, method_name, method)
        result = concrete(trace, call(trace, method, (value,), {}))
        check_conversion(trace, method_name, result)
        return kind(result)
    if kind is int and isinstance(class_attribute(trace, cls, "__trunc__"), types.FunctionType):
        raise trace.fail("int() by way of __trunc__, which Python warns of")
    return None


number_rule(int, "__int__", torch.SymInt)


number_rule(float, "__float__", torch.SymFloat)


@rule(complex)
def rule_complex(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    """It calls ``__float__`` even of a float, as no other native function does."""
    for value in force_all(trace, args):
        if isinstance(value, float) and class_function(trace, type(value), "__float__") is not None:
            raise trace.fail("complex() of a float that has a __float__ of its own")
    return native_calls.call_without_rule(trace, complex, args, kwargs)


@rule(iter)
def rule_iter(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    if len(args) == 1:
        return get_iterator(trace, args[0])
    return native_calls.call_without_rule(trace, iter, args, kwargs)


@rule(next)
def rule_next(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    try:
        return next_item(trace, args[0])
    except Raised as raised:
        if len(args) == 2 and isinstance(raised.error, StopIteration):
            return args[1]
        raise
