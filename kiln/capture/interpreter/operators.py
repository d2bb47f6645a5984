"""Operators, indexing, membership and identity over shadows.

An operator whose operand has the method in Python is interpreted with CPython's rules for reflected operators; one
on tensors is recorded; everything else runs natively.
"""

from __future__ import annotations

import collections
import functools
import operator
import types
from collections.abc import Callable, Iterator

import torch

from ..._native import MISSING
from ..._native import is_instance as isinstance
from ...bytecode.split import UNBOUND
from ...platform.python_objects import HEAP_TYPE
from ..guards.source import mapping_of, native_iterator
from ..shadows.symbolic_numbers import concrete, is_symbolic
from ..shadows.tensors import record
from ..shadows.wrap import class_attribute, force
from ..state.enum_tables import watch_members
from ..state.exceptions import from_native
from ..state.operations import operation, operations
from ..state.trace import Trace
from ..state.values import CONSTANT_TYPES, InterpretedIterator, Lazy, Opaque, Raised, Trampoline
from . import calls, native_calls
from .attributes import load_or, name_class_value
from .protocols import get_iterator, index_by, next_item, special_method, truth, type_of

BINARY: dict[str, tuple[object, str, str]] = {
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
    sign + "=": (getattr(operator, "i" + function.__name__.rstrip("_")), "__i" + name[2:])  # type: ignore[attr-defined]
    for sign, (function, name, _) in BINARY.items()
}
COMPARE: dict[str, tuple[object, str, str]] = {
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
    if not kind.__flags__ & HEAP_TYPE or kind in native_calls.SAFE_OWNERS:
        return False
    return not isinstance(value, (torch.Tensor, Trampoline)) and not is_symbolic(value)


def binary(trace: Trace, sign: str, left: object, right: object) -> object:
    """``left <sign> right``, augmented assignment included."""
    if type(left) in SIMPLE and type(right) in SIMPLE:
        function = INPLACE[sign][0] if sign.endswith("=") else BINARY[sign][0]
        return plain(trace, function, left, right)
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
        return interpreted(trace, sign, function, name, reflected, left, right)
    return run(trace, function, left, right)


def plain(trace: Trace, function: object, *operands: object) -> object:
    try:
        return function(*operands)  # type: ignore[operator]
    except Exception as error:
        raise Raised(from_native(trace, error)) from None


def run(trace: Trace, function: object, left: object, right: object) -> object:
    if isinstance(left, str):
        right = deep_concrete(trace, right)
    return native_calls.call_native_default(trace, function, (left, right), {})


def deep_concrete(trace: Trace, value: object) -> object:
    value = concrete(trace, value)
    if type(value) is tuple:
        return tuple([deep_concrete(trace, item) for item in value])
    return value


def tensor_binary(trace: Trace, sign: str, left: object, right: object) -> object:
    other = right if isinstance(left, torch.Tensor) else left
    if type(other).__flags__ & HEAP_TYPE:
        check_attributes(trace, other)
    taken = other is right and isinstance(other, NUMBERS)  # by the tensor's own method, which comes first
    if not taken and not isinstance(other, torch.Tensor) and has_python_method(other) and not isinstance(other, type):
        function, name, reflected = BINARY[sign.rstrip("=")]
        if special_method(trace, other, reflected if other is right else name) is not None:
            return interpreted(trace, sign, function, name, reflected, left, right)
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
    if has_python_method(left) or has_python_method(right):
        return interpreted(trace, sign, *BINARY[sign[:-1]], left, right)
    if isinstance(left, list) and sign == "+=":
        native_calls.call_native(trace, list.extend, (left, operand_iterable(trace, right)), {})
        return left
    return run(trace, function, left, right)


def operand_iterable(trace: Trace, value: object) -> object:
    """Something native code may iterate: tensors included. Objects go through proxies: their length is asked, too."""
    if isinstance(value, (list, tuple, str, dict, set, frozenset, range)):
        return value
    iterates = native_calls.is_object(value) and {"__iter__", "__getitem__"}.intersection(
        native_calls.python_methods(type(value))
    )
    return value if iterates and not issubclass(type(value), InterpretedIterator) else get_iterator(trace, value)


def interpreted(
    trace: Trace, sign: str, function: object, name: str, reflected: str, left: object, right: object
) -> object:
    """An operator with an operand that has it in Python: CPython's order of attempts, then what sequences do."""
    for owner, other, method_name in attempts(trace, name, reflected, left, right):
        if is_sequence_operator(owner, method_name):
            continue
        result = asked(trace, owner, other, method_name)
        if result is not NotImplemented:
            return result
    for owner, other, method_name in ((left, right, name), (right, left, reflected)):
        if is_sequence_operator(owner, method_name) and (owner is left or name == "__mul__"):
            return sequence_operator(trace, sign, owner, other, method_name)
    operands = f"'{type_of(trace, left).__name__}' and '{type_of(trace, right).__name__}'"
    raise Raised(TypeError(f"unsupported operand type(s) for {'** or pow()' if sign == '**' else sign}: {operands}"))


def attempts(trace: Trace, name: str, reflected: str, left: object, right: object) -> list[tuple[object, object, str]]:
    """Who is asked with what: the right operand first if its class is derived and has a method of its own."""
    first, second = (left, right, name), (right, left, reflected)
    left_kind, right_kind = type(left), type(right)
    if left_kind is right_kind:
        return [first]
    if left_kind in right_kind.__mro__ and is_overloaded(trace, reflected, left_kind, right_kind):
        return [second, first]
    return [first, second]


def is_overloaded(trace: Trace, name: str, base: type, derived: type) -> bool:
    own = class_attribute(trace, derived, name, MISSING)
    return own is not MISSING and own is not class_attribute(trace, base, name, MISSING)


def asked(trace: Trace, owner: object, other: object, name: str) -> object:
    """What one operand's method answers, ``NotImplemented`` where it has none."""
    method = special_method(trace, owner, name)
    if method is not None:
        return force(trace, calls.call(trace, method, (owner, other), {}))
    return native_attempt(trace, owner, other, name)


SEQUENCE_OPERATORS = frozenset(
    getattr(kind, name)
    for kind in (list, tuple, str, bytes, bytearray, collections.deque)
    for name in ("__add__", "__mul__", "__rmul__")
    if hasattr(kind, name)
)
"""Joining and repeating, which Python does only if no operand has a number's method."""


def is_sequence_operator(owner: object, name: str) -> bool:
    if name not in ("__add__", "__mul__", "__rmul__"):
        return False
    method = native_calls.lookup(type(owner), name)
    return isinstance(method, types.WrapperDescriptorType) and method in SEQUENCE_OPERATORS


def sequence_operator(trace: Trace, sign: str, owner: object, other: object, name: str) -> object:
    """``+`` and ``*`` of a sequence, which look at the class of the other operand and run no code of it."""
    if name != "__add__":
        index = special_method(trace, other, "__index__") if not isinstance(other, int) else None
        other = concrete(trace, other) if index is None else index_by(trace, index, other)
        if not isinstance(other, int):
            raise Raised(TypeError(f"can't multiply sequence by non-int of type '{type_of(trace, other).__name__}'"))
    method = native_calls.lookup(type(owner), INPLACE[sign][1]) if sign.endswith("=") else None
    if method is list.__iadd__:
        native_calls.call_native(trace, list.extend, (owner, operand_iterable(trace, other)), {})
        return owner
    if method is not None or isinstance(other, native_calls.CONTAINERS):
        return native_calls.call_native(trace, method or native_calls.lookup(type(owner), name), (owner, other), {})
    return native_calls.run_natively(trace, native_calls.lookup(type(owner), name), (owner, other), {})


def native_attempt(trace: Trace, owner: object, other: object, name: str) -> object:
    """The builtin operator method of an operand, or ``NotImplemented``."""
    if isinstance(owner, torch.Tensor):
        method = getattr(torch.Tensor, name, None)
        refused = method is None or (has_python_method(other) and not isinstance(other, NUMBERS))
        return NotImplemented if refused else record(trace, method, (owner, other), {})
    method = native_calls.lookup(type(owner), name)
    if method is None or not isinstance(method, types.WrapperDescriptorType) or method.__objclass__ is object:
        return NotImplemented
    if not native_calls.is_allowed(method):
        raise trace.fail(f"an operator on a {type(owner).__qualname__} object")
    if isinstance(owner, native_calls.CONTAINERS) and isinstance(other, native_calls.CONTAINERS):
        if name in COMPARING and isinstance(owner, (list, tuple)):
            owner, other = plain_sequence(owner), plain_sequence(other)
            return native_calls.call_native_default(trace, COMPARING[name], (owner, other), {})
        return native_calls.call_native(trace, method, (owner, other), {})
    return native_calls.run_natively(trace, method, (owner, other), {})


def plain_sequence(value: object) -> object:
    """The list or tuple that an instance of a subclass is, for native code that would not call its methods either."""
    if isinstance(value, list):
        return list.copy(value)
    return tuple(tuple.__iter__(value)) if isinstance(value, tuple) else value


COMPARING = {name: function for function, name, _ in COMPARE.values()}


@operation
def compare(trace: Trace, sign: str, left: object, right: object) -> object:
    """``left <sign> right`` for comparison signs."""
    function = COMPARE[sign][0]
    if type(left) in SIMPLE and type(right) in SIMPLE:
        return plain(trace, function, left, right)
    if isinstance(left, torch.Tensor) or isinstance(right, torch.Tensor):
        return compare_tensor(trace, sign, function, left, right)
    if has_python_method(left) or has_python_method(right):
        return compared(trace, sign, left, right)
    return native_calls.call_native_default(trace, function, (left, right), {})


def compared(trace: Trace, sign: str, left: object, right: object) -> object:
    """A comparison with an operand that has it in Python, in CPython's order."""
    _, name, reflected = COMPARE[sign]
    first, second = (left, right, name), (right, left, reflected)
    derived = type(left) is not type(right) and type(left) in type(right).__mro__  # registered ones are not derived
    for owner, other, method_name in (second, first) if derived else (first, second):
        result = asked_to_compare(trace, owner, other, method_name)
        if result is not NotImplemented:
            return result
    if sign in ("==", "!="):
        return is_same(trace, left, right) is (sign == "==")
    operands = f"'{type_of(trace, left).__name__}' and '{type_of(trace, right).__name__}'"
    raise Raised(TypeError(f"{sign!r} not supported between instances of {operands}"))


def asked_to_compare(trace: Trace, owner: object, other: object, name: str) -> object:
    """What one operand answers; the default ``!=`` is its own ``==``, negated."""
    if name == "__ne__" and has_python_method(owner) and class_attribute(trace, type(owner), name) is object.__ne__:
        result = asked(trace, owner, other, "__eq__")
        return result if result is NotImplemented else not truth(trace, result)
    return asked(trace, owner, other, name)


def compare_tensor(trace: Trace, sign: str, function: object, left: object, right: object) -> object:
    other = right if isinstance(left, torch.Tensor) else left
    if other is None or isinstance(other, (str, type, dict)):
        if sign in ("==", "!="):
            return (sign == "!=") if other is None or isinstance(other, (str, type, dict)) else None
    if type(other).__flags__ & HEAP_TYPE:
        check_attributes(trace, other)
    taken = other is right and isinstance(other, NUMBERS)
    if not taken and not isinstance(other, torch.Tensor) and has_python_method(other):
        return compared(trace, sign, left, right)
    return record_operator(trace, function, left, right)


NUMBERS = (int, float, complex)


def check_attributes(trace: Trace, operand: object) -> None:
    """torch asks the other operand for ``__torch_function__``, which a ``__getattr__`` may answer."""
    kind = type(operand)
    if not isinstance(operand, torch.Tensor):
        if isinstance(class_attribute(trace, kind, "__getattr__"), types.FunctionType):
            if load_or(trace, operand, "__torch_function__", None) is not None:
                raise trace.fail(f"an operator on a tensor and a {kind.__qualname__}, whose __getattr__ overrides it")


def unary(trace: Trace, name: str, value: object) -> object:

    function, method_name = UNARY[name]
    if isinstance(value, torch.Tensor):
        return record_operator(trace, function, value)
    method = special_method(trace, value, method_name) if has_python_method(value) else None
    if method is not None:
        return calls.call(trace, method, (value,), {})
    return native_calls.call_native_default(trace, function, (value,), {})


# -- identity and membership ----------------------------------------------------------------------------------------


def is_same(trace: Trace, left: object, right: object) -> bool:
    """``left is right``. Outside objects that were not looked at are compared as they are, with the guard it takes."""
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
    if type(left) is Lazy and type(right) is Lazy and is_value(left.real) and is_value(right.real):
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
    guard_apart(trace, left, right)
    if isinstance(left, types.MethodType) and isinstance(right, types.MethodType):
        return False
    if is_symbolic(left) or is_symbolic(right):
        return False if left is None or right is None else concrete(trace, left) is concrete(trace, right)
    return left is right


def is_value(real: object) -> bool:
    """Whether an object is guarded by what it is, and not by which one it is: equal ones need not be the same."""
    return isinstance(real, (int, float, str, bytes, complex, tuple, frozenset, slice))


def guard_identity(trace: Trace, value: object) -> None:
    if isinstance(value, types.FunctionType):
        source = trace.outside.source_of(value)
        if source is not None:
            trace.guards.add(source, "identity", value)


def guard_apart(trace: Trace, left: object, right: object) -> None:
    """Two copies of immutable objects from outside are not the same: neither may the originals be."""
    if type(left) is super and type(right) is super and left is not right:
        raise trace.fail("whether two super objects are the same")
    if type(left) is type(right) and isinstance(left, COPIED):
        sources = trace.outside.source_of(left), trace.outside.source_of(right)
        if sources[0] is not None and sources[1] is not None:
            trace.guards.add(sources[0], "not_same", sources[1])


COPIED = (types.MethodType, types.BuiltinFunctionType, types.MethodWrapperType, types.MappingProxyType)
COPIED += (functools.partial, slice, *native_calls.VIEW_TYPES)


def contains(trace: Trace, container: object, value: object) -> bool:
    """``value in container``."""

    method = special_method(trace, container, "__contains__")
    if method is not None:
        return truth(trace, calls.call(trace, method, (container, value), {}))
    if isinstance(container, torch.Tensor):
        raise trace.fail("`in` on a tensor: it needs the tensor's values")
    if type(container) in native_calls.VIEW_TYPES:
        return contains_in_view(trace, container, value)
    if type(container) is types.MappingProxyType:
        return contains(trace, mapping_of(container), value)
    if isinstance(container, (dict, set, frozenset)):
        return contains_hashed(trace, container, value)
    if isinstance(container, (str, bytes, range)):
        return native_calls.call_native_default(trace, operator.contains, (container, concrete(trace, value)), {})  # type: ignore[return-value]
    if isinstance(container, native_calls.CONTAINERS):  # it looks past an __iter__ in Python
        return search(trace, native_iterator(container), value)
    if isinstance(
        native_calls.lookup(type(container), "__contains__"), (types.WrapperDescriptorType, types.MethodDescriptorType)
    ):
        return native_calls.call_native(trace, operator.contains, (container, concrete(trace, value)), {})  # type: ignore[return-value]
    try:
        iterator = get_iterator(trace, container)
    except Raised as raised:
        if not isinstance(raised.error, TypeError):
            raise
        raise Raised(TypeError(f"argument of type '{type_of(trace, container).__name__}' is not iterable")) from None
    return search(trace, remaining(trace, iterator), value)


def contains_in_view(trace: Trace, view: object, value: object) -> bool:
    """``in`` on the keys, values or items of a dictionary, whose values may not have been looked at."""
    owner, kind = mapping_of(view), type(view).__name__
    if kind.endswith("keys"):
        return contains_hashed(trace, owner, value)
    if kind.endswith("values"):
        record_ = trace.outside.record_of(owner)
        if record_ is not None and not record_.loaded:
            native_calls.guard_all_keys(trace, record_)
        return search(trace, iter(dict.values(owner)), value)  # type: ignore[arg-type]
    if not isinstance(value, tuple) or len(value) != 2 or not contains_hashed(trace, owner, value[0]):
        return False
    return search(trace, iter([dict.__getitem__(owner, concrete(trace, value[0]))]), value[1])  # type: ignore[arg-type]


def contains_hashed(trace: Trace, container: object, value: object) -> bool:
    value = concrete(trace, value)
    base = next(base for base in (dict, set, frozenset) if isinstance(container, base))
    return native_calls.call_native(trace, base.__contains__, (container, value), {})  # type: ignore[return-value]


def search(trace: Trace, items: Iterator, value: object) -> bool:
    while True:
        try:
            item = next(items)
        except StopIteration:
            return False
        except RuntimeError as error:  # an __eq__ has changed the container
            raise Raised(from_native(trace, error)) from None
        # Which of two equal ints a size is must not matter: asking would pin it down.
        item = force(trace, item) if type(item) is Lazy and type(item.real) is int else item
        symbolic = torch.SymInt in (type(item), type(value))
        if (not symbolic and is_same(trace, item, value)) or truth(
            trace, compare(trace, "==", force(trace, item), value)
        ):
            return True


# -- items ----------------------------------------------------------------------------------------------------------


@operation
def get_item(trace: Trace, container: object, key: object) -> object:
    """``container[key]``; may be lazy."""

    key = index_of(trace, container, key)
    if isinstance(container, torch.Tensor):
        return record_operator(trace, operator.getitem, container, key)
    if isinstance(container, type):
        return class_item(trace, container, key)
    if type(container).__module__ == "typing":  # Optional[int]: a cache of typing's own is no state of the program
        return class_item(trace, container, key)  # type: ignore[arg-type]
    method = special_method(trace, container, "__getitem__")
    if method is not None:
        return calls.call(trace, method, (container, key), {})
    if isinstance(container, Opaque):
        raise trace.fail("indexing a graph value that is not a tensor")
    return subscript(trace, "__getitem__", container, key)


SEQUENCES = (list, tuple, str, bytes, bytearray, range, torch.Tensor)


def index_of(trace: Trace, container: object, key: object) -> object:
    """A key for a sequence, with the ``__index__`` of user classes asked."""

    if not isinstance(container, SEQUENCES) or type(key) in SIMPLE or isinstance(key, torch.Tensor):
        return key
    if type(key) is slice:
        return slice(*(index_of(trace, container, part) for part in (key.start, key.stop, key.step)))
    if type(key) is tuple and isinstance(container, torch.Tensor):
        return tuple([index_of(trace, container, part) for part in key])
    method = special_method(trace, key, "__index__") if not isinstance(key, int) else None  # which is not asked
    return key if method is None else index_by(trace, method, key)


def subscript(trace: Trace, name: str, container: object, *operands: object) -> object:
    """An item method of a builtin container, with the key made concrete."""
    key = slice_concrete(trace, operands[0])
    descriptor = native_calls.lookup(type(container), name)
    if name == "__getitem__" and isinstance(container, dict):
        if special_method(trace, container, "__missing__") is not None:
            return missing_item(trace, container, key)
    if isinstance(descriptor, (types.WrapperDescriptorType, types.MethodDescriptorType)):
        return native_calls.call_native(trace, descriptor, (container, key, *operands[1:]), {})
    function = {"__getitem__": operator.getitem, "__setitem__": operator.setitem, "__delitem__": operator.delitem}[name]
    if descriptor is not None and not native_calls.is_allowed(descriptor):
        raise trace.fail(f"an item of a {type(container).__qualname__} object")
    return native_calls.call_native_default(trace, function, (container, key, *operands[1:]), {})


def missing_item(trace: Trace, container: dict, key: object) -> object:
    """A dict subclass with a Python ``__missing__``."""

    if contains_hashed(trace, container, key):
        return dict.__getitem__(container, key)
    return calls.call(trace, special_method(trace, container, "__missing__"), (container, key), {})


@native_calls.rule(dict.__getitem__)
def rule_dict_item(trace, args, kwargs):
    """Also reached by ``super().__getitem__``: a ``__missing__`` in Python is interpreted."""
    container, key = [force(trace, arg) for arg in args]
    if special_method(trace, container, "__missing__") is not None:
        return missing_item(trace, container, slice_concrete(trace, key))
    return native_calls.call_native_default(trace, dict.__getitem__, (container, key), kwargs)


def slice_concrete(trace: Trace, key: object) -> object:
    if type(key) is slice:
        return slice(*(concrete(trace, part) for part in (key.start, key.stop, key.step)))
    return concrete(trace, key)


def class_item(trace: Trace, cls: type, key: object) -> object:
    """``list[int]``, ``Color["RED"]``."""

    method = native_calls.lookup(type(cls), "__getitem__")
    if isinstance(method, types.FunctionType) and type(cls).__module__ != "typing":
        if isinstance(cls, native_calls.enum.EnumMeta):
            watch_members(trace, cls)
            return plain(trace, operator.getitem, cls, concrete(trace, key))
        name_class_value(trace, type(cls), "__getitem__", method)
        return calls.call(trace, method, (cls, key), {})
    made = plain(trace, operator.getitem, cls, key)
    trace.outside.pinned(made)
    return made


def set_item(trace: Trace, container: object, key: object, value: object) -> None:
    """``container[key] = value``."""

    key = index_of(trace, container, key)
    if isinstance(container, torch.Tensor):
        record_operator(trace, operator.setitem, container, key, force(trace, value))
        return
    method = special_method(trace, container, "__setitem__")
    if method is not None:
        calls.call(trace, method, (container, key, value), {})
        return
    if type(key) is slice:
        value = force(trace, value)
        value = (
            calls.call(trace, list, (value,), {}) if native_calls.is_object(value) else operand_iterable(trace, value)
        )
    subscript(trace, "__setitem__", container, key, value)


def delete_item(trace: Trace, container: object, key: object) -> None:
    """``del container[key]``."""

    key = index_of(trace, container, key)
    method = special_method(trace, container, "__delitem__")
    if method is not None:
        calls.call(trace, method, (container, key), {})
        return
    subscript(trace, "__delitem__", container, key)


# -- iteration ------------------------------------------------------------------------------------------------------


@operation
def consume(trace: Trace, value: object) -> Iterator:
    """All elements of an iterable of the program."""
    return remaining(trace, get_iterator(trace, value))


def remaining(trace: Trace, iterator: object) -> Iterator:
    """All elements that an iterator of the program still gives."""
    while True:
        try:
            item = next_item(trace, iterator)
        except Raised as raised:
            if isinstance(raised.error, StopIteration):
                return
            raise
        trace.progress.count_step(trace)
        yield item


def unpackable(trace: Trace, value: object) -> Iterator:
    """The elements of what is being unpacked."""
    value = force(trace, value)
    kind = type_of(trace, value)
    if not hasattr(kind, "__iter__") and not hasattr(kind, "__getitem__"):
        raise Raised(TypeError(f"cannot unpack non-iterable {kind.__name__} object"))
    return consume(trace, value)


def unpack(trace: Trace, value: object, count: int) -> list[object]:
    """``a, b = value``."""
    items: list[object] = []
    for item in unpackable(trace, value):
        items.append(item)
        if len(items) > count:
            raise Raised(ValueError(f"too many values to unpack (expected {count})"))
    if len(items) < count:
        raise Raised(ValueError(f"not enough values to unpack (expected {count}, got {len(items)})"))
    return items


@operation
def plain_mapping(trace: Trace, value: object) -> dict[str, object]:
    """Keyword arguments from ``**value``."""
    if type(value) is dict:
        record_ = trace.outside.record_of(value)
        if record_ is not None and not record_.loaded:
            native_calls.guard_all_keys(trace, record_)
        return dict(value)
    raise trace.fail("** of something that is not a dictionary")


# -- the operator module: getters are functions of what they were made with -------------------------------------------


def call_getter(trace: Trace, getter: object, args: tuple, kwargs: dict) -> object:
    """``itemgetter``, ``attrgetter`` and ``methodcaller`` objects."""
    from .attributes import load_attribute

    if len(args) != 1 or kwargs:
        raise trace.fail(f"a call to an operator.{type(getter).__name__} with wrong arguments")
    owner = force(trace, args[0])
    made_of, keywords = getter.__reduce__()[1], {}  # type: ignore[operator]
    if isinstance(getter, operator.methodcaller):
        maker = getter.__reduce__()[0]
        name, made_of, keywords = (
            (made_of[0], made_of[1:], {})
            if maker is operator.methodcaller
            else (maker.args[0], made_of, maker.keywords)
        )
        return calls.call(trace, load_attribute(trace, owner, name), tuple(made_of), dict(keywords))
    if isinstance(getter, operator.itemgetter):
        found = [get_item(trace, owner, item) for item in made_of]
    else:
        found = [load_path(trace, owner, path) for path in made_of]
    return found[0] if len(found) == 1 else tuple([force(trace, value) for value in found])


def load_path(trace: Trace, owner: object, path: str) -> object:
    from .attributes import load_attribute

    for name in path.split("."):
        owner = load_attribute(trace, owner, name)
    return owner


# -- its functions --------------------------------------------------------------------------------------------


def operator_rule(function: object, run: Callable) -> None:
    """``operator.add(a, b)`` is ``a + b``, also where the operands' methods are Python code."""

    @native_calls.rule(function)
    def rule_operator(trace, args, kwargs):
        try:
            return run(trace, *[force(trace, arg) for arg in args], **kwargs)
        except TypeError as error:
            if error.__traceback__.tb_next is None:  # the wrong number of arguments: let CPython say so
                return native_calls.call_native_default(trace, function, args, kwargs)
            raise


for _sign, (_function, _, _) in BINARY.items():
    operator_rule(_function, lambda trace, left, right, sign=_sign: binary(trace, sign, left, right))
for _sign, (_function, _) in INPLACE.items():
    operator_rule(_function, lambda trace, left, right, sign=_sign: binary(trace, sign, left, right))
for _sign, (_function, _, _) in COMPARE.items():
    operator_rule(_function, lambda trace, left, right, sign=_sign: compare(trace, sign, left, right))
for _name, (_function, _) in UNARY.items():
    operator_rule(_function, lambda trace, value, name=_name: unary(trace, name, value))
for _function, _run in (
    (operator.getitem, get_item),
    (operator.setitem, set_item),
    (operator.delitem, delete_item),
    (operator.contains, contains),
    (operator.is_, is_same),
    (operator.is_not, lambda trace, left, right: not is_same(trace, left, right)),
    (operator.truth, truth),
    (operator.not_, lambda trace, value: not truth(trace, value)),
):
    operator_rule(_function, _run)


for _kind in (operator.itemgetter, operator.attrgetter, operator.methodcaller):
    calls.CALLABLES[_kind] = call_getter
