"""Unary, binary, augmented and comparison operators over shadows.

An operator whose operand has the method in Python is interpreted with CPython's rules for reflected operators; one
on tensors is recorded; everything else runs natively.
"""

from __future__ import annotations

import collections
import types
from typing import Any

import torch

from ... import operator_functions as operator
from ..._native import MISSING
from ..._native import is_instance as isinstance
from ...platform.python_objects import HEAP_TYPE
from ..guards.source import lookup
from ..shadows.builtin_tables import CONTAINERS, SAFE_OWNERS, is_allowed
from ..shadows.native_arguments import is_object, python_methods
from ..shadows.symbolic_numbers import concrete, is_symbolic
from ..shadows.tensors import record
from ..shadows.wrap import class_attribute, force
from ..state.exceptions import call_for_program
from ..state.operations import operation, operations
from ..state.trace import Trace
from ..state.values import CONSTANT_TYPES, InterpretedIterator, Raised, Trampoline
from . import calls, native_calls
from .attributes import load_or_default
from .iteration import get_iterator
from .membership import is_same
from .program_types import native_name, type_of
from .protocols import call_index, special_method, truth

BINARY: dict[str, tuple[Any, str, str]] = {
    "+": (operator.add, "__add__", "__radd__"),
    "-": (operator.sub, "__sub__", "__rsub__"),
    "*": (operator.mul, "__mul__", "__rmul__"),
    "/": (operator.truediv, "__truediv__", "__rtruediv__"),
    "//": (operator.floordiv, "__floordiv__", "__rfloordiv__"),
    "%": (operator.mod, "__mod__", "__rmod__"),
    "@": (operator.matmul, "__matmul__", "__rmatmul__"),
    "**": (operator.pow, "__pow__", "__rpow__"),
    "<<": (operator.lshift, "__lshift__", "__rlshift__"),
    ">>": (operator.rshift, "__rshift__", "__rrshift__"),
    "&": (operator.and_, "__and__", "__rand__"),
    "|": (operator.or_, "__or__", "__ror__"),
    "^": (operator.xor, "__xor__", "__rxor__"),
}

INPLACE = {
    sign + "=": (getattr(operator, "i" + function.__name__.rstrip("_")), "__i" + name[2:])
    for sign, (function, name, _) in BINARY.items()
}

COMPARE: dict[str, tuple[Any, str, str]] = {
    "<": (operator.lt, "__lt__", "__gt__"),
    "<=": (operator.le, "__le__", "__ge__"),
    ">": (operator.gt, "__gt__", "__lt__"),
    ">=": (operator.ge, "__ge__", "__le__"),
    "==": (operator.eq, "__eq__", "__eq__"),
    "!=": (operator.ne, "__ne__", "__ne__"),
}

UNARY = {
    "UNARY_NEGATIVE": (operator.neg, "__neg__"),
    "UNARY_POSITIVE": (operator.pos, "__pos__"),
    "UNARY_INVERT": (operator.invert, "__invert__"),
}

SIMPLE = CONSTANT_TYPES - {types.CodeType}


def has_python_method(value: object) -> bool:
    """Whether a value's class is Python code (some builtin classes are heap types from 3.12 on)."""
    kind = type(value)
    if not kind.__flags__ & HEAP_TYPE or kind in SAFE_OWNERS:
        return False
    return not isinstance(value, (torch.Tensor, Trampoline)) and not is_symbolic(value)


def binary(trace: Trace, sign: str, left: object, right: object) -> object:
    """``left <sign> right``, augmented assignment included."""
    if type(left) in SIMPLE and type(right) in SIMPLE:
        function = INPLACE[sign][0] if sign.endswith("=") else BINARY[sign][0]
        return call_for_program(trace, function, left, right)
    if sign in ("%", "%=") and type(left) in (str, bytes):
        return operations.percent(trace, left, right)
    own = sign.endswith("=") and not isinstance(left, torch.Tensor)  # the left operand's own augmented assignment
    if own and (isinstance(left, list) or (has_python_method(left) and special_method(trace, left, INPLACE[sign][1]))):
        return inplace(trace, sign, left, right)
    if isinstance(left, torch.Tensor) or isinstance(right, torch.Tensor):
        return tensor_binary(trace, sign, left, right)
    if sign.endswith("="):
        return inplace(trace, sign, left, right)
    function, name, reflected = BINARY[sign]
    if has_python_method(left) or has_python_method(right):
        return interpret_binary(trace, sign, function, name, reflected, left, right)
    return run_native_operator(trace, function, left, right)


def run_native_operator(trace: Trace, function: object, left: object, right: object) -> object:
    if isinstance(left, str):
        right = concrete_elements(trace, right)
    return native_calls.call_without_rule(trace, function, (left, right), {})


def concrete_elements(trace: Trace, value: object) -> object:
    value = concrete(trace, value)
    if type(value) is tuple:
        return tuple([concrete_elements(trace, item) for item in value])
    return value


def tensor_binary(trace: Trace, sign: str, left: object, right: object) -> object:
    other = right if isinstance(left, torch.Tensor) else left
    if type(other).__flags__ & HEAP_TYPE:
        check_dynamic_override(trace, other)
    taken = other is right and isinstance(other, NUMBERS)  # the tensor's method comes first
    if not taken and not isinstance(other, torch.Tensor) and has_python_method(other) and not isinstance(other, type):
        function, name, reflected = BINARY[sign.rstrip("=")]
        if special_method(trace, other, reflected if other is right else name) is not None:
            return interpret_binary(trace, sign, function, name, reflected, left, right)
    if sign.endswith("=") and isinstance(left, torch.Tensor):
        function = INPLACE[sign][0]
    else:
        function = BINARY[sign.rstrip("=") if sign.endswith("=") else sign][0]
    return record_operator(trace, function, left, right)


def record_operator(trace: Trace, function: object, *operands: object) -> object:
    if trace.overrides.has_subclasses:
        operations.check_operator(trace, function, operands)
    custom = operations.operator_override(trace, function, operands)
    if custom is not None:
        return custom[0]
    if function is operator.pow and isinstance(operands[0], (int, float)) and operands[0] < 0:
        function = torch.pow  # torch.fx writes -2 ** x, which Python reads as -(2 ** x)
    return record(trace, function, operands, {})


def inplace(trace: Trace, sign: str, left: object, right: object) -> object:
    function, name = INPLACE[sign]
    if has_python_method(left):
        method = special_method(trace, left, name)
        if method is not None:
            result = force(trace, calls.call(trace, method, (left, right), {}))
            if result is not NotImplemented:
                return result
        native = lookup(type(left), name)
        if method is None and isinstance(native, types.WrapperDescriptorType) and native in UPDATING_OPERATORS:
            result = native_calls.call_native(trace, native, (left, right), {})
            if result is not NotImplemented:
                return result
    if has_python_method(left) or has_python_method(right):
        return interpret_binary(trace, sign, *BINARY[sign[:-1]], left, right)
    if isinstance(left, list) and sign == "+=":
        native_calls.call_native(trace, list.extend, (left, operand_iterable(trace, right)), {})
        return left
    return run_native_operator(trace, function, left, right)


def operand_iterable(trace: Trace, value: object) -> object:
    """An operand that native code can iterate over. Objects stay as they are: proxies also give their length."""
    if isinstance(value, (list, tuple, str, dict, set, frozenset, range)):
        return value
    iterates = is_object(value) and {"__iter__", "__getitem__"}.intersection(python_methods(type(value)))
    return value if iterates and not issubclass(type(value), InterpretedIterator) else get_iterator(trace, value)


def interpret_binary(
    trace: Trace, sign: str, function: object, name: str, reflected: str, left: object, right: object
) -> object:
    """An operator with an operand whose method is Python: CPython's order of operands, then sequence operators."""
    for owner, other, method_name in operand_order(trace, name, reflected, left, right):
        if is_sequence_operator(owner, method_name):
            continue
        result = call_operand_method(trace, owner, other, method_name)
        if result is not NotImplemented:
            return result
    for owner, other, method_name in ((left, right, name), (right, left, reflected)):
        if owner is not left and (name != "__mul__" or (sign == "*=" and type(left).__flags__ & HEAP_TYPE)):
            continue  # CPython asks the right one for a repetition, but not in place of an object's
        if is_sequence_operator(owner, method_name):
            return sequence_operator(trace, sign, owner, other, method_name)
    operands = f"'{native_name(trace, left)}' and '{native_name(trace, right)}'"
    raise Raised(TypeError(f"unsupported operand type(s) for {'** or pow()' if sign == '**' else sign}: {operands}"))


def operand_order(
    trace: Trace, name: str, reflected: str, left: object, right: object
) -> list[tuple[object, object, str]]:
    """(owner, other operand, method) in CPython's order; the right one first if its derived class overrides it."""
    first, second = (left, right, name), (right, left, reflected)
    left_kind, right_kind = type_of(trace, left), type_of(trace, right)
    if left_kind is right_kind:
        return [first]
    if left_kind in right_kind.__mro__ and overrides_method(trace, reflected, left_kind, right_kind):
        return [second, first]
    return [first, second]


def overrides_method(trace: Trace, name: str, base: type, derived: type) -> bool:
    own = class_attribute(trace, derived, name, MISSING)
    return own is not MISSING and own is not class_attribute(trace, base, name, MISSING)


def call_operand_method(trace: Trace, owner: object, other: object, name: str) -> object:
    """The result of one operand's method; ``NotImplemented`` if it has none."""
    method = special_method(trace, owner, name)
    if method is not None:
        return force(trace, calls.call(trace, method, (owner, other), {}))
    return call_native_method(trace, owner, other, name)


UPDATING_OPERATORS = frozenset(
    getattr(kind, name)
    for kind in (dict, collections.OrderedDict, set)
    for name in ("__ior__", "__iand__", "__isub__", "__ixor__")
    if hasattr(kind, name)
)
"""Augmented assignment of dictionaries and sets, which changes them in place, also instances of derived classes."""
SEQUENCE_OPERATORS = frozenset(
    getattr(kind, name)
    for kind in (list, tuple, str, bytes, bytearray, collections.deque)
    for name in ("__add__", "__mul__", "__rmul__")
    if hasattr(kind, name)
)
"""Concatenation and repetition, which CPython tries only after the methods of numbers."""


def is_sequence_operator(owner: object, name: str) -> bool:
    if name not in ("__add__", "__mul__", "__rmul__"):
        return False
    method = lookup(type(owner), name)
    return isinstance(method, types.WrapperDescriptorType) and method in SEQUENCE_OPERATORS


def sequence_operator(trace: Trace, sign: str, owner: object, other: object, name: str) -> object:
    """``+`` and ``*`` of a sequence: they run no code of the other operand (but bytes ask for its ``__buffer__``)."""
    if name != "__add__":
        index = special_method(trace, other, "__index__") if not isinstance(other, int) else None
        other = concrete(trace, other) if index is None else call_index(trace, index, other)
        if not isinstance(other, int):
            raise Raised(TypeError(f"can't multiply sequence by non-int of type '{native_name(trace, other)}'"))
    method = lookup(type(owner), INPLACE[sign][1]) if sign.endswith("=") else None
    if method is list.__iadd__:
        native_calls.call_native(trace, list.extend, (owner, operand_iterable(trace, other)), {})
        return owner
    if method is not None or isinstance(other, CONTAINERS) or isinstance(owner, (bytes, bytearray, collections.deque)):
        return native_calls.call_native(trace, method or lookup(type(owner), name), (owner, other), {})
    return native_calls.run_natively(trace, lookup(type(owner), name), (owner, other), {})


def call_native_method(trace: Trace, owner: object, other: object, name: str) -> object:
    """The builtin operator method of an operand, or ``NotImplemented``."""
    if isinstance(owner, torch.Tensor):
        method = getattr(torch.Tensor, name, None)
        refused = method is None or (has_python_method(other) and not isinstance(other, NUMBERS))
        return NotImplemented if refused else record(trace, method, (owner, other), {})
    if is_symbolic(owner) or is_symbolic(other):
        owner, other = plain_number(owner), plain_number(other)
        if isinstance(owner, SYMBOLIC_OPERANDS) and isinstance(other, SYMBOLIC_OPERANDS):
            return symbolic_operator(trace, owner, other, name)
        owner, other = concrete(trace, owner), concrete(trace, other)
    method = lookup(type(owner), name)
    if method is None or not isinstance(method, types.WrapperDescriptorType) or method.__objclass__ is object:
        return NotImplemented
    if not is_allowed(method):
        raise trace.fail(f"an operator on a {type(owner).__qualname__} object")
    if isinstance(owner, CONTAINERS) and isinstance(other, CONTAINERS):
        if name in COMPARING and isinstance(owner, (list, tuple)):
            owner, other = plain_sequence(owner), plain_sequence(other)
            return native_calls.call_without_rule(trace, COMPARING[name], (owner, other), {})
        return native_calls.call_native(trace, method, (owner, other), {})
    return native_calls.run_natively(trace, method, (owner, other), {})


SYMBOLIC_OPERANDS = (int, float, torch.SymInt, torch.SymFloat)
OPERATORS = {name: function for function, name, _ in BINARY.values()}
REFLECTED = {name: function for function, _, name in BINARY.values()}


def plain_number(value: object) -> object:
    """The number that an instance of a class derived from int or float is to the builtin methods."""
    if isinstance(value, int):
        return value if type(value) is int else int.__pos__(value)
    return float.__pos__(value) if isinstance(value, float) else value


def symbolic_operator(trace: Trace, owner: object, other: object, name: str) -> object:
    """The builtin method of a number where one of the two varies. Those of integers do not take floats."""
    is_int = isinstance(owner, (int, torch.SymInt))
    if lookup(int if is_int else float, name) is None or (is_int and isinstance(other, (float, torch.SymFloat))):
        return NotImplemented
    if name in REFLECTED:
        return run_native_operator(trace, REFLECTED[name], other, owner)
    return run_native_operator(trace, OPERATORS.get(name) or COMPARING[name], owner, other)


def plain_sequence(value: object) -> object:
    """A plain list or tuple with the elements of an instance of a subclass, as native code reads it."""
    if isinstance(value, list):
        return list.copy(value)
    return tuple(tuple.__iter__(value)) if isinstance(value, tuple) else value


COMPARING = {name: function for function, name, _ in COMPARE.values()}


@operation
def compare(trace: Trace, sign: str, left: object, right: object) -> object:
    """``left <sign> right`` for comparison signs."""
    function = COMPARE[sign][0]
    if type(left) in SIMPLE and type(right) in SIMPLE:
        return call_for_program(trace, function, left, right)
    if isinstance(left, torch.Tensor) or isinstance(right, torch.Tensor):
        return compare_tensor(trace, sign, function, left, right)
    if has_python_method(left) or has_python_method(right):
        return interpret_comparison(trace, sign, left, right)
    return native_calls.call_without_rule(trace, function, (left, right), {})


def interpret_comparison(trace: Trace, sign: str, left: object, right: object) -> object:
    """A comparison with an operand whose method is Python, in CPython's order."""
    _, name, reflected = COMPARE[sign]
    first, second = (left, right, name), (right, left, reflected)
    left_kind, right_kind = type_of(trace, left), type_of(trace, right)
    derived = left_kind is not right_kind and left_kind in right_kind.__mro__  # not by registration with an ABC
    for owner, other, method_name in (second, first) if derived else (first, second):
        result = call_comparison_method(trace, owner, other, method_name)
        if result is not NotImplemented:
            return result
    if sign in ("==", "!="):
        return is_same(trace, left, right) is (sign == "==")
    operands = f"'{native_name(trace, left)}' and '{native_name(trace, right)}'"
    raise Raised(TypeError(f"{sign!r} not supported between instances of {operands}"))


def call_comparison_method(trace: Trace, owner: object, other: object, name: str) -> object:
    """The result of one operand's method; the default ``!=`` negates ``==``."""
    if name == "__ne__" and has_python_method(owner) and class_attribute(trace, type(owner), name) is object.__ne__:
        result = call_operand_method(trace, owner, other, "__eq__")
        return result if result is NotImplemented else not truth(trace, result)
    return call_operand_method(trace, owner, other, name)


def compare_tensor(trace: Trace, sign: str, function: object, left: object, right: object) -> object:
    other = right if isinstance(left, torch.Tensor) else left
    if other is None or isinstance(other, (str, type, dict)):
        if sign in ("==", "!="):
            return (sign == "!=") if other is None or isinstance(other, (str, type, dict)) else None
    if type(other).__flags__ & HEAP_TYPE:
        check_dynamic_override(trace, other)
    taken = other is right and isinstance(other, NUMBERS)
    if not taken and not isinstance(other, torch.Tensor) and has_python_method(other):
        return interpret_comparison(trace, sign, left, right)
    return record_operator(trace, function, left, right)


NUMBERS = (int, float, complex)


def check_dynamic_override(trace: Trace, operand: object) -> None:
    """torch asks the other operand for ``__torch_function__``, which a ``__getattr__`` may answer."""
    kind = type(operand)
    if not isinstance(operand, torch.Tensor):
        if isinstance(class_attribute(trace, kind, "__getattr__"), types.FunctionType):
            if load_or_default(trace, operand, "__torch_function__", None) is not None:
                raise trace.fail(f"an operator on a tensor and a {kind.__qualname__}, whose __getattr__ overrides it")


def unary(trace: Trace, name: str, value: object) -> object:
    function, method_name = UNARY[name]
    if isinstance(value, torch.Tensor):
        return record_operator(trace, function, value)
    method = special_method(trace, value, method_name) if has_python_method(value) else None
    if method is not None:
        return calls.call(trace, method, (value,), {})
    return native_calls.call_without_rule(trace, function, (value,), {})
