"""Rules for builtins that ask about types, identities, attributes or the interpreter itself.

Natively these would see shadows (a ``FakeTensor``, a ``SymInt``, a copy), so each gets the answer the program would
get. Imported for its effect: it fills the table in ``native_calls.py``.
"""

from __future__ import annotations

import builtins
import contextlib
import enum
import functools
import sys
import types

import torch

from ..._native import MISSING
from ..._native import is_instance as isinstance
from ...bytecode.normalize import call_super
from ...bytecode.plan import OWN_PREFIX
from ...platform.python_objects import HEAP_TYPE
from ..guards.source import lookup
from ..interpreter import native_calls
from ..interpreter.attributes import (
    class_function,
    delete_attribute,
    generic_delete,
    generic_load,
    generic_store,
    load_attribute,
    load_namespace,
    load_or,
    name_class_value,
    store_attribute,
)
from ..interpreter.calls import call, construct, new_object
from ..interpreter.native_calls import rule
from ..interpreter.protocols import (
    arguments,
    checked_length,
    get_iterator,
    is_instance,
    looked_at,
    next_item,
    special_method,
    truth,
    type_of,
)
from ..shadows.hashing import as_hash
from ..shadows.native_arguments import check_conversion
from ..shadows.symbolic_numbers import concrete, is_symbolic
from ..shadows.wrap import class_attribute, force
from ..state.exceptions import from_native, guard_caller, traceback_of
from ..state.operations import operations
from ..state.trace import Trace
from ..state.values import GraphBreak, InterpretedIterator, Raised, TensorSuper
from .copying import compares_ids

# -- types ----------------------------------------------------------------------------------------------------------


@rule(type)
def rule_type(trace, args, kwargs):
    if len(args) != 1 or kwargs:
        raise trace.fail("making a class inside the compiled function", "define the class at module level")
    return type_of(trace, args[0])


@rule(builtins.isinstance)
def rule_isinstance(trace, args, kwargs):
    value, classes = arguments(trace, args)
    return is_instance(trace, value, classes)


@rule(issubclass)
def rule_issubclass(trace, args, kwargs):
    cls, classes = arguments(trace, args)
    classes = looked_at(trace, classes)
    try:
        result = issubclass(cls, classes)
    except TypeError as error:
        raise Raised(from_native(trace, error)) from None
    for other in classes if isinstance(classes, tuple) else (classes,):
        if isinstance(other, type):
            trace.guards.classes.relate(cls, other, issubclass(cls, other))
    return result


@rule(type.__instancecheck__)
def rule_instance_check(trace, args, kwargs):
    """The check itself, past a metaclass that has its own."""
    cls, value = arguments(trace, args)
    return type.__subclasscheck__(cls, type_of(trace, value))


@rule(type.__subclasscheck__)
def rule_subclass_check(trace, args, kwargs):
    return type.__subclasscheck__(*arguments(trace, args))


@rule(callable)
def rule_callable(trace, args, kwargs):
    value = force(trace, args[0])
    class_attribute(trace, type(value), "__call__")
    return callable(value)


# -- attributes -----------------------------------------------------------------------------------------------------


@rule(getattr)
def rule_getattr(trace, args, kwargs):
    owner, name = args[0], attribute_name(trace, args[1])
    if len(args) == 3:
        return load_or(trace, owner, name, args[2])
    return load_attribute(trace, owner, name)


@rule(hasattr)
def rule_hasattr(trace, args, kwargs):
    missing = object()
    return load_or(trace, args[0], attribute_name(trace, args[1]), missing) is not missing


def attribute_name(trace: Trace, name: object) -> str:
    name = concrete(trace, name)
    if not isinstance(name, str):
        raise Raised(TypeError(f"attribute name must be string, not '{type_of(trace, name).__name__}'"))
    return name


@rule(setattr)
def rule_setattr(trace, args, kwargs):
    store_attribute(trace, args[0], attribute_name(trace, args[1]), args[2])


@rule(delattr)
def rule_delattr(trace, args, kwargs):
    delete_attribute(trace, args[0], attribute_name(trace, args[1]))


@rule(vars)
def rule_vars(trace, args, kwargs):
    if not args:
        return rule_locals(trace, args, kwargs)
    found = load_or(trace, args[0], "__dict__", MISSING)
    if found is MISSING:
        raise Raised(TypeError("vars() argument must have __dict__ attribute"))
    return found


@rule(object.__getattribute__)
def rule_object_getattribute(trace, args, kwargs):
    owner = force(trace, args[0])
    if isinstance(owner, (torch.Tensor, types.ModuleType, type, types.FunctionType)):
        return load_attribute(trace, owner, force(trace, args[1]))
    return generic_load(trace, owner, force(trace, args[1]))


@rule(object.__setattr__)
def rule_object_setattr(trace, args, kwargs):
    owner = force(trace, args[0])
    if isinstance(owner, (torch.Tensor, types.ModuleType, type)):
        store_attribute(trace, owner, force(trace, args[1]), args[2])
    else:
        generic_store(trace, owner, force(trace, args[1]), args[2])


@rule(object.__delattr__)
def rule_object_delattr(trace, args, kwargs):
    generic_delete(trace, force(trace, args[0]), force(trace, args[1]))


@rule(type.__call__)
def rule_type_call(trace, args, kwargs):
    return construct(trace, force(trace, args[0]), args[1:], kwargs)


@rule(object)
def rule_object(trace, args, kwargs):
    if args or kwargs:
        raise Raised(TypeError("object() takes no arguments"))
    return object()


@rule(object.__new__)
def rule_object_new(trace, args, kwargs):
    cls = force(trace, args[0])
    if not isinstance(cls, type):
        raise Raised(TypeError(f"object.__new__(X): X is not a type object ({type_of(trace, cls).__name__})"))
    if len(args) > 1 or kwargs:
        if lookup(cls, "__new__") is not object.__new__:
            raise Raised(TypeError("object.__new__() takes exactly one argument (the type to instantiate)"))
        if lookup(cls, "__init__") is object.__init__:
            raise Raised(TypeError(f"{cls.__name__}() takes no arguments"))
    return new_object(trace, cls)


@rule(object.__init__)
def rule_object_init(trace, args, kwargs):
    if len(args) > 1 or kwargs:
        cls = type_of(trace, args[0])
        if lookup(cls, "__init__") is not object.__init__:
            raise Raised(TypeError("object.__init__() takes exactly one argument (the instance to initialize)"))
        if lookup(cls, "__new__") is object.__new__:
            message = f"{cls.__name__}.__init__() takes exactly one argument (the instance to initialize)"
            raise Raised(TypeError(message))


@rule(object.__init_subclass__)
def rule_init_subclass(trace, args, kwargs):
    return None


@rule(types.FunctionType.__get__)
def rule_function_get(trace, args, kwargs):
    function, owner = force(trace, args[0]), force(trace, args[1])
    return function if owner is None else types.MethodType(function, owner)


@rule(functools.partial)
def rule_partial(trace, args, kwargs):
    if not args:
        raise Raised(TypeError("type 'partial' takes at least one argument"))
    try:
        return functools.partial(force(trace, args[0]), *args[1:], **kwargs)
    except TypeError as error:
        raise Raised(from_native(trace, error)) from None


@rule(dir)
def rule_dir(trace, args, kwargs):
    """Names of an instance or class: the instance's are guarded, the class's looked up again."""
    if not args:
        return sorted(rule_locals(trace, args, kwargs))
    value = force(trace, args[0])
    cls = value if isinstance(value, type) else type(value)
    if isinstance(value, (torch.Tensor, types.ModuleType)) or lookup(type(value), "__dir__") not in (
        object.__dir__,
        type.__dir__,
    ):
        raise trace.fail(f"dir() of a {type_of(trace, value).__qualname__}")
    if cls is not value and native_calls.getattr_static_dict(value) is not None:
        load_namespace(trace, value)
    names = dir(cls)
    trace.guards.extras.append((f"dir({cls.__qualname__}) unchanged", lambda: dir(cls) == names))
    return dir(value)


# -- identity, truth, length, text ----------------------------------------------------------------------------------


@rule(id)
def rule_id(trace, args, kwargs):
    """The number itself where the object exists already; what is made inside has none yet."""
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
def rule_bool(trace, args, kwargs):
    if len(args) > 1 or kwargs:
        return native_calls.run_natively(trace, bool, arguments(trace, args), kwargs)  # which raises
    return truth(trace, args[0]) if args else False


@rule(len)
def rule_len(trace, args, kwargs):
    value = force(trace, args[0])
    if isinstance(value, torch.Tensor):
        operations.check_method(trace, value, "__len__")
        if value.dim() == 0:
            raise trace.fail("len() of a 0-d tensor")
        return value.shape[0]
    method = special_method(trace, value, "__len__")
    if method is not None:
        return checked_length(trace, concrete(trace, call(trace, method, (value,), {})))
    return native_calls.call_native_default(trace, len, (value,), kwargs)


@rule(hash)
def rule_hash(trace, args, kwargs):
    value = concrete(trace, args[0])
    method = special_method(trace, value, "__hash__")
    if method is not None:
        number = concrete(trace, call(trace, method, (value,), {}))
        if not isinstance(number, int):
            raise Raised(TypeError("__hash__ method should return an integer"))
        return as_hash(number)
    value = native_calls.Survey(trace, keep_symbols=False, shallow=False).visit(value)
    if isinstance(value, float) and value != value:
        raise trace.fail("hash() of a NaN, which hashes by identity")
    if not native_calls.is_value(value) and getattr(type(value), "__hash__", None) is not None:
        raise trace.fail("hash() of an object that hashes by identity")
    return native_calls.run_natively(trace, hash, (value,), {})


def number_rule(kind: type, name: str, symbolic: tuple):
    @rule(kind)
    def rule_number(trace, args, kwargs):
        values = arguments(trace, args)
        if len(values) == 1 and not kwargs:
            value = values[0]
            if isinstance(value, torch.Tensor):
                raise trace.fail(f"{kind.__name__}() of a tensor: it needs the tensor's value")
            if isinstance(value, symbolic):
                return value
            if is_symbolic(value):
                return native_calls.call_native_default(trace, kind, values, kwargs)
            converted = converted_in_python(trace, value, kind, name)
            if converted is not None:
                return converted
            if isinstance(value, (int, float, str, bytes)):  # subclasses too: native code looks at their value
                return native_calls.run_natively(trace, kind, values, kwargs)
        return native_calls.call_native_default(trace, kind, values, kwargs)

    return rule_number


def converted_in_python(trace: Trace, value: object, kind: type, name: str) -> object | None:
    """What a conversion method written in Python gives; None where native code converts."""
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


number_rule(int, "__int__", (torch.SymInt,))
number_rule(float, "__float__", (torch.SymFloat,))


@rule(complex)
def rule_complex(trace, args, kwargs):
    """It asks even a float for its ``__float__``, as no other native function does."""
    for value in arguments(trace, args):
        if isinstance(value, float) and class_function(trace, type(value), "__float__") is not None:
            raise trace.fail("complex() of a float that has a __float__ of its own")
    return native_calls.call_native_default(trace, complex, args, kwargs)


# -- iteration ------------------------------------------------------------------------------------------------------


@rule(iter)
def rule_iter(trace, args, kwargs):
    if len(args) == 1:
        return get_iterator(trace, args[0])
    return native_calls.call_native_default(trace, iter, args, kwargs)


@rule(next)
def rule_next(trace, args, kwargs):
    try:
        return next_item(trace, args[0])
    except Raised as raised:
        if len(args) == 2 and isinstance(raised.error, StopIteration):
            return args[1]
        raise


# -- the interpreter itself -----------------------------------------------------------------------------------------


@rule(super)
def rule_super(trace, args, kwargs):
    if args:
        return made_super(trace, *arguments(trace, args))
    frame = trace.frames[-1]
    code = frame.code
    if code.co_argcount == 0:
        raise no_super(trace, "super(): no arguments")
    first = code.co_varnames[0]
    if first in frame.cells:
        owner = cell_value(frame.cells[first])
    else:
        owner = frame.locals.get(first, MISSING)
    if owner is MISSING:
        raise no_super(trace, "super(): arg[0] deleted")
    cell = frame.cells.get("__class__")
    if cell is None:
        raise no_super(trace, "super(): __class__ cell not found")
    return class_of_super(trace, cell_value(cell), owner)


def class_of_super(trace: Trace, cls: object, owner: object) -> super | TensorSuper:
    """``super()``, given what is in the cell of the class, if anything."""
    if cls is MISSING:
        raise Raised(RuntimeError("super(): empty __class__ cell"))
    cls = force(trace, cls)
    if not isinstance(cls, type):
        raise Raised(RuntimeError(f"super(): __class__ is not a type ({type_of(trace, cls).__name__})"))
    return made_super(trace, cls, force(trace, owner))


@rule(call_super)
def rule_call_super(trace, args, kwargs):
    """``super()`` in a method, as the bytecode was rewritten."""
    function = force(trace, args[0])
    if function is not super:
        return call(trace, function, (), {})
    cls = cell_value(args[1]) if type(args[1]) is types.CellType else args[1]
    return class_of_super(trace, cls, args[2])


def no_super(trace: Trace, message: str) -> Raised | GraphBreak:
    """The error of ``super()`` where no class is known. Python looks at the frame: in the root only its own will do."""
    if len(trace.frames) == 1:
        return trace.fail("super() in a function that is no method", whole=True)
    return Raised(RuntimeError(message))


def cell_value(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def made_super(trace: Trace, *args: object) -> super | TensorSuper:
    if len(args) == 2 and isinstance(args[1], torch.Tensor):
        return operations.tensor_super(trace, *args)  # type: ignore[arg-type]
    try:
        return super(*args)
    except TypeError as error:
        raise Raised(from_native(trace, error)) from None


@rule(super.__get__)
def rule_super_get(trace, args, kwargs):
    proxy, owner = force(trace, args[0]), force(trace, args[1])
    if owner is None or object.__getattribute__(proxy, "__self__") is not None:
        return proxy
    return made_super(trace, object.__getattribute__(proxy, "__thisclass__"), owner)


@rule(sys.exception)
def rule_exception(trace, args, kwargs):
    if trace.exceptions.handled is None:
        guard_caller(trace)
    return trace.exceptions.handled


@rule(sys.exc_info)
def rule_exc_info(trace, args, kwargs):
    error = rule_exception(trace, (), {})
    return (None, None, None) if error is None else (type(error), error, traceback_of(trace, error))


@rule(sys.exit)
def rule_exit(trace, args, kwargs):
    raise Raised(SystemExit(*arguments(trace, args)))


@rule(globals)
def rule_globals(trace, args, kwargs):
    raise trace.fail("globals()", "read and write global variables by name")


@rule(locals)
def rule_locals(trace, args, kwargs):
    frame = trace.frames[-1]
    code, values = frame.code, {}
    for name in dict.fromkeys((*code.co_varnames, *code.co_cellvars, *code.co_freevars)):
        if name.startswith(OWN_PREFIX) or not name.isidentifier():
            continue
        if name in frame.cells:
            with contextlib.suppress(ValueError):
                values[name] = frame.cells[name].cell_contents
        elif name in frame.locals:
            values[name] = frame.locals[name]
    return values


@rule(builtins.__import__)
def rule_import(trace, args, kwargs):
    module = __import__(*arguments(trace, args), **kwargs)
    trace.outside.pinned(module)
    return module


def outside_rule(builtin: types.BuiltinFunctionType) -> None:
    """A builtin with effects outside the program is always left to Python."""

    @rule(builtin)
    def rule_outside(trace, args, kwargs):
        raise trace.fail(f"a call to {builtin.__name__}(), which acts outside the program's own objects")


for _builtin in (print, input, open, breakpoint, exec, eval, compile):
    outside_rule(_builtin)


__all__ = ["enum", "get_iterator", "load_namespace", "next_item", "truth", "type_of"]
