"""Calling things: which callee is interpreted, recorded in the graph, run natively, or breaks the graph.

One function, :func:`call`, tried in order: what has a rule of its own (``builtin_rules.py``), torch operations, Python
functions (interpreted), methods, classes, builtins (``native_calls.py``), callable objects.
"""

from __future__ import annotations

import collections
import enum
import functools
import reprlib
import types
import weakref

import torch

try:
    import numpy
except ImportError:  # torch works without it
    numpy = None  # type: ignore[assignment]

from ... import _native
from ..._native import MISSING
from ..._native import is_instance as isinstance
from ...config import config
from ...platform.cpython import get_ident, recursive_repr_codes, thread_module
from ...platform.python_objects import HEAP_TYPE, cell_is_empty
from ...platform.torch_functions import disable_in_compiler
from ...program import call_markers
from ..guards.descriptions import module_of, short_name
from ..guards.source import Attribute, Item, Referent, lookup
from ..shadows import marked_calls
from ..shadows.appended_lists import ListMethod, call_list_method
from ..shadows.bound_builtins import appending_method
from ..shadows.wrap import class_attribute, force, has_finalizer, wrap
from ..state import annotations
from ..state.exceptions import from_native
from ..state.operations import operation, operations
from ..state.trace import Trace
from ..state.values import Lazy, Raised, SpecialMethod, Trampoline
from . import native_calls
from .attributes import bind_class_attribute, class_attribute_source, name_class_value
from .frame import run_function

NATIVE_CALLABLES = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.MethodWrapperType,
    types.ClassMethodDescriptorType,
)


@operation
def call(trace: Trace, function: object, args: tuple, kwargs: dict) -> object:
    """The result of ``function(*args, **kwargs)`` in the program."""
    if type(function) is Lazy:
        function = called(trace, function)
    rule = native_calls.rule_for(function)
    if rule is not None:
        return native_calls.call_rule(trace, rule, function, args, kwargs)
    if id(function) in trace.outside.annotated.all and (
        found := annotations.call_listed(trace, function, args, kwargs)
    ):
        return found[0]
    if operations.is_operation(trace, function, args, kwargs):
        return operations.call_torch(trace, function, args, kwargs)
    kind = type(function)
    if kind is types.FunctionType:
        return call_function(trace, function, args, kwargs)
    if kind is types.MethodType:
        return call_method(trace, function, args, kwargs)
    if isinstance(function, type):
        return call_class(trace, function, args, kwargs)
    if isinstance(function, NATIVE_CALLABLES):
        return native_calls.call_native(trace, function, args, kwargs)
    handler = CALLABLES.get(kind)
    if handler is not None:
        return handler(trace, function, args, kwargs)
    return call_object(trace, function, args, kwargs)


def called(trace: Trace, value: Lazy) -> object:
    """What is called, looked at only as far as a call does."""
    if value.done:
        return value.value
    appending = appending_method(trace, value)
    return force(trace, value) if appending is None else appending


# -- Python functions -----------------------------------------------------------------------------------------------

SKIPPED_MODULES = ("torch._dynamo", "torch._inductor", "torch.fx", "torch.jit", "torch._subclasses", "torch._guards")
SKIPPED_MODULES += ("torch.distributed", "torch.onnx", "torch.export", "logging", "threading", "asyncio", "numpy")
SKIPPED_MODULES += ("multiprocessing", "subprocess", "socket", "unittest.mock", "_pytest", "pytest", "tqdm")
SKIPPED_MODULES += ("random", "tempfile", "traceback", "linecache", "inspect", "pdb", "importlib", "gc", "weakref")
SKIPPED_MODULES += ("kiln.capture", "warnings")  # warnings: its filters are others while tracing (quiet.py)


def call_function(trace: Trace, function: types.FunctionType, args: tuple, kwargs: dict) -> object:
    """Interpret a Python function in place."""
    if call_markers.is_deferred(function):
        return marked_calls.defer(trace, function, args, kwargs)
    if call_markers.is_foreseen(function):
        raise marked_calls.foresee(trace, function, args, f"a call to {function.__qualname__}")
    fake = call_markers.leaf_fake(function)
    if fake is not None and not kwargs:
        return marked_calls.call_leaf(trace, function, fake, args)
    if function.__dict__:
        if annotations.is_kept_out(function):
            reason = annotations.reason_for_keeping_out(function)
            raise trace.fail(reason, "call it outside the compiled function, or take the decorator away")
        original = annotations.captured_instead(function)
        if original is not None:
            return call(trace, original, args, kwargs)
    if function.__code__ in TRANSPARENT:
        return call(trace, wrapped_function(trace, function), args, kwargs)
    handler = operations.handler_for(function)
    if handler is not None and (made := handler(trace, function, args, kwargs)) is not None:
        return made[0]
    module = module_of(function)
    if module.startswith(SKIPPED_MODULES) and any(module == m or module.startswith(m + ".") for m in SKIPPED_MODULES):
        if module.startswith(annotations.COMPILER) and (found := annotations.answer(trace, function, args, kwargs)):
            return found[0]
        raise trace.fail(f"a call to {module}.{function.__qualname__}, which Kiln does not look into")
    if len(trace.frames) > config.max_inline_depth:
        raise too_deep(trace)
    trace.guards.add_code(function, trace.outside.source_of(function))
    try:
        return run_function(trace, function, bind_arguments(trace, function, args, kwargs))
    except RecursionError:  # Kiln's own: that of the program is Raised
        raise too_deep(trace) from None


def too_deep(trace: Trace) -> BaseException:
    """Recursion, with or without an end, is Python's: a frame that calls itself is left alone as a whole."""
    root = trace.frames[0].code
    recursive = any(frame.code is root for frame in trace.frames[1:])
    depth = len(trace.frames)
    return trace.fail(f"calls nested more than {depth} deep", "is this recursion without end?", whole=recursive)


# Wrappers that only keep a ``__repr__`` from running in circles (one that does breaks the graph anyway), and those that
# keep functions of torch away from torch's own compiler.
def wrapped_function(trace: Trace, wrapper: types.FunctionType) -> object:
    """What a wrapper that changes nothing calls; ``reprlib.recursive_repr`` keeps it in its closure alone."""
    from .attributes import load_attribute

    names = wrapper.__code__.co_freevars
    if "user_function" not in names:
        return load_attribute(trace, wrapper, "__wrapped__")
    if any(map(cell_is_empty, wrapper.__closure__)):  # type: ignore[arg-type]
        raise trace.fail(f"{wrapper.__qualname__}, whose closure has been emptied")
    key_parts(trace, wrapper)
    closure = Attribute(trace.outside.pinned(wrapper), "__closure__")
    for index, (name, cell) in enumerate(zip(names, wrapper.__closure__, strict=True)):  # type: ignore[arg-type]
        trace.guards.add(Item(closure, index), "full_cell")
        if name == "repr_running":
            trace.guards.add(Attribute(Item(closure, index), "cell_contents"), "type", type(cell.cell_contents))
            if type(cell.cell_contents) is not set:
                raise trace.fail(f"{wrapper.__qualname__}, whose closure has been changed")
        if name == "user_function":
            found = wrap(trace, cell.cell_contents, Attribute(Item(closure, index), "cell_contents"))
    return found


def key_parts(trace: Trace, wrapper: types.FunctionType) -> None:
    """Look up what ``reprlib.recursive_repr`` and its copy in dataclasses call: they may have been replaced."""
    from .attributes import load_attribute

    names, namespace = wrapper.__code__.co_names, wrapper.__globals__
    found = {
        name: trace.outside.load_global(namespace, name) for name in ("id", "_thread", "get_ident") if name in names[:2]
    }
    if "_thread" in found and is_still(trace, found["_thread"], thread_module):
        found["get_ident"] = load_attribute(trace, thread_module, "get_ident")
    known = {"id": id, "_thread": thread_module, "get_ident": get_ident}
    for name, value in found.items():
        if not is_still(trace, value, known[name]):
            raise trace.fail(f"{wrapper.__qualname__}, which calls another {name}")


def is_still(trace: Trace, value: object, known: object) -> bool:
    """Whether something from outside is this object, which nobody looks into."""
    if type(value) is not Lazy:
        return value is known
    if value.real is known:
        trace.guards.add(value.source, "identity", known)
    return value.real is known


TRANSPARENT = {reprlib.recursive_repr()(lambda self: "").__code__, disable_in_compiler(lambda: None).__code__}
TRANSPARENT.update(recursive_repr_codes())


class DoesNotFit(Exception):
    """The arguments of a call are not those that the function takes."""


@operation
def bind_arguments(trace: Trace, function: types.FunctionType, args: tuple, kwargs: dict) -> dict[str, object]:
    """Local variables on entry, as CPython binds them; the program sees a ``TypeError`` where they do not fit."""
    try:
        return matched_arguments(trace, function, args, kwargs)
    except DoesNotFit:
        raise bad_call(trace, function, args, kwargs) from None


def matched_arguments(
    trace: Trace | None, function: types.FunctionType, args: tuple, kwargs: dict
) -> dict[str, object]:
    code = function.__code__
    names = code.co_varnames
    positional, keyword_only = code.co_argcount, code.co_kwonlyargcount
    bound: dict[str, object] = dict(zip(names[:positional], args))  # noqa: B905 (surplus goes to *args)
    extra = args[positional:]
    rest = dict(kwargs)
    for name in names[code.co_posonlyargcount : positional + keyword_only]:
        if name in rest:
            if name in bound:
                raise DoesNotFit
            bound[name] = rest.pop(name)
    fill_defaults(trace, function, bound)
    index = positional + keyword_only
    if code.co_flags & 0x04:
        bound[names[index]] = tuple([force(trace, value) for value in extra])
        index += 1
    elif extra:
        raise DoesNotFit
    if code.co_flags & 0x08:
        bound[names[index]] = rest
    elif rest:
        raise DoesNotFit
    return bound


def fill_defaults(trace: Trace | None, function: types.FunctionType, bound: dict[str, object]) -> None:
    code = function.__code__
    positional = code.co_varnames[: code.co_argcount]
    keyword_only = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    defaults = function.__defaults__ or ()
    source = trace.outside.source_of(function) if trace is not None else None
    for position, name in enumerate(positional):
        if name in bound:
            continue
        index = position - len(positional)  # from the end: there may be more defaults another time
        if index < -len(defaults):
            raise DoesNotFit
        value = defaults[index]
        if source is not None:
            value = wrap(trace, value, Item(Attribute(source, "__defaults__"), index))
        bound[name] = value
    keyword_defaults = function.__kwdefaults__ or {}
    for name in keyword_only:
        if name in bound:
            continue
        if name not in keyword_defaults:
            raise DoesNotFit
        value = keyword_defaults[name]
        if source is not None:
            value = wrap(trace, value, Item(Attribute(source, "__kwdefaults__"), name))
        bound[name] = value


def bad_call(trace: Trace, function: types.FunctionType, args: tuple, kwargs: dict) -> BaseException:
    """CPython's own error, from a function that has the same parameters and does nothing."""
    from ..guards.source import signature

    assume_parameters(trace, function)
    namespace: dict[str, types.FunctionType] = {}
    exec(f"def stand_in({signature(function.__code__)}): pass", namespace)  # type: ignore[arg-type]
    stand_in = namespace["stand_in"]
    stand_in.__qualname__ = function.__qualname__
    stand_in.__defaults__, stand_in.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    try:
        stand_in(*(None for _ in args), **dict.fromkeys(kwargs))
    except TypeError as error:
        return Raised(from_native(trace, error))
    return trace.fail(f"a call to {function.__qualname__} with arguments that do not fit its signature")


def assume_parameters(trace: Trace, function: types.FunctionType) -> None:
    """Assume what the error of a call that does not fit depends on: the name, and which parameters have defaults."""
    source = trace.outside.source_of(function)
    if source is None:
        return
    trace.guards.add(Attribute(source, "__qualname__"), "constant", function.__qualname__)
    for name in ("__defaults__", "__kwdefaults__"):
        defaults = getattr(function, name)
        place = Attribute(source, name)
        if defaults is None:
            trace.guards.add(place, "constant", None)
        else:
            trace.guards.add(place, "type", type(defaults))
            trace.guards.add(place, "native_length", len(defaults))
    for name in function.__kwdefaults__ or ():
        trace.guards.add(Attribute(source, "__kwdefaults__"), "has_key", name)


def call_method(trace: Trace, method: types.MethodType, args: tuple, kwargs: dict) -> object:
    owner = method.__self__
    function = method.__func__
    if function is APPLY and isinstance(owner, type):
        return operations.call_apply(trace, owner, args, kwargs)
    return call(trace, function, (owner, *args), kwargs)


APPLY = torch.autograd.Function.apply.__func__  # type: ignore[attr-defined]


# -- classes --------------------------------------------------------------------------------------------------------


def made_with_finalizer(trace: Trace, cls: type) -> BaseException:
    """When it is dropped can be seen, and frames of Kiln's would keep it: the whole function is Python's."""
    return trace.fail(f"making a {cls.__qualname__}, which has a __del__", "make it outside", whole=True)


def call_class(trace: Trace, cls: type, args: tuple, kwargs: dict) -> object:
    """``cls(...)``: a real instance of a real class, its Python ``__new__`` and ``__init__`` interpreted."""
    if has_finalizer(cls):
        raise made_with_finalizer(trace, cls)
    maker = class_attribute(trace, type(cls), "__call__")
    if isinstance(maker, types.FunctionType):
        if operations.runs_plainly(trace, cls, args, kwargs):
            return operations.run_plainly(trace, cls, args, kwargs)
        name_class_value(trace, type(cls), "__call__", maker)
        return call(trace, maker, (cls, *args), kwargs)
    if maker is not TYPE_CALL and native_calls.is_special(maker):  # a static method, or an object with a __call__
        return call(trace, bind_class_attribute(trace, cls, type(cls), "__call__", maker), args, kwargs)
    return construct(trace, cls, args, kwargs)


TYPE_CALL = type.__call__


def construct(trace: Trace, cls: type, args: tuple, kwargs: dict) -> object:
    """``type.__call__``: ``__new__``, then ``__init__``."""
    if not cls.__flags__ & HEAP_TYPE or not has_python_constructor(cls):
        return native_calls.call_native(trace, cls, args, kwargs)
    instance = make_instance(trace, cls, args, kwargs)
    if isinstance(instance, cls):
        initialize(trace, instance, args, kwargs)
    return instance


def has_python_constructor(cls: type) -> bool:
    """Whether making an instance runs Python code, or makes a bare object."""
    new, init = lookup(cls, "__new__"), lookup(cls, "__init__")
    return isinstance(new, staticmethod) or isinstance(init, types.FunctionType) or new is object.__new__


def make_instance(trace: Trace, cls: type, args: tuple, kwargs: dict) -> object:
    new = class_attribute(trace, cls, "__new__")
    if isinstance(new, staticmethod):
        function = wrap(trace, new.__func__, Attribute(class_attribute_source(trace, cls, "__new__"), "__func__"))
        return call(trace, function, (cls, *args), kwargs)
    if new is object.__new__:
        init = lookup(cls, "__init__")
        if init is object.__init__ and (args or kwargs):
            raise Raised(TypeError(f"{cls.__name__}() takes no arguments"))
        return new_object(trace, cls)
    if new in EMPTY_MAKERS:
        return native_calls.call_native(trace, new, (cls,), {})
    return native_calls.call_native(trace, new, (cls, *args), kwargs)


EMPTY_MAKERS = frozenset(lookup(kind, "__new__") for kind in (list, dict, set, collections.deque))
"""Those that ignore their arguments: ``__init__`` fills the container."""


def new_object(trace: Trace, cls: type) -> object:
    if has_finalizer(cls):
        raise made_with_finalizer(trace, cls)
    if isinstance(cls, enum.EnumMeta):  # members count as constants
        raise trace.fail(f"making a member of the enumeration {short_name(cls)}")
    try:
        instance = object.__new__(cls)
    except TypeError as error:
        raise Raised(error) from None
    trace.outside.pinned(cls)
    return instance


def initialize(trace: Trace, instance: object, args: tuple, kwargs: dict) -> None:
    cls = type(instance)
    init = class_attribute(trace, cls, "__init__")
    if isinstance(init, types.FunctionType):
        name_class_value(trace, cls, "__init__", init)
        result = force(trace, call(trace, init, (instance, *args), kwargs))
    elif init is object.__init__:
        return
    elif native_calls.is_special(init):
        result = force(trace, call(trace, bind_class_attribute(trace, instance, cls, "__init__", init), args, kwargs))
    else:
        result = native_calls.call_native(trace, init, (instance, *args), kwargs)
    if result is not None:
        raise Raised(TypeError(f"__init__() should return None, not '{native_name(trace, result)}'"))


# -- other callables ------------------------------------------------------------------------------------------------


def call_partial(trace: Trace, partial: functools.partial, args: tuple, kwargs: dict) -> object:
    return call(
        trace, partial.func, (*partial.args, *args), {**operations.plain_mapping(trace, partial.keywords), **kwargs}
    )


def call_trampoline(trace: Trace, trampoline: Trampoline, args: tuple, kwargs: dict) -> object:
    return call(trace, trampoline.function, args, kwargs)


def call_dispatcher(trace: Trace, dispatcher: object, args: tuple, kwargs: dict) -> object:
    """A function that is compiled already is interpreted like any other."""
    function = dispatcher.function  # type: ignore[attr-defined]
    return call(trace, wrap(trace, function, trace.outside.pinned(function)), args, kwargs)


def call_object(trace: Trace, instance: object, args: tuple, kwargs: dict) -> object:
    """An instance with ``__call__``."""
    cls = type(instance)
    method = class_attribute(trace, cls, "__call__", MISSING)
    if isinstance(method, types.FunctionType):
        name_class_value(trace, cls, "__call__", method)
        return call(trace, method, (instance, *args), kwargs)
    if method is not MISSING and native_calls.is_special(method):
        return call(trace, bind_class_attribute(trace, instance, cls, "__call__", method), args, kwargs)
    if method is MISSING:
        raise Raised(TypeError(f"'{native_name(trace, instance)}' object is not callable"))
    raise trace.fail(
        f"a call to a {cls.__module__}.{cls.__qualname__} object, which is code Kiln cannot look into",
        "call it outside the compiled function",
    )


def call_special_method(trace: Trace, method: SpecialMethod, args: tuple, kwargs: dict) -> object:
    """A special method that is bound like any attribute; ``None`` in its place says that there is none."""
    owner, cls = args[0], type(args[0])
    raw = class_attribute(trace, cls, method.name)
    if raw is None and method.name in BLOCKED:
        raise Raised(TypeError(BLOCKED[method.name].format(cls.__name__)))
    return call(trace, bind_class_attribute(trace, owner, cls, method.name, raw), args[1:], kwargs)


BLOCKED = {
    "__iter__": "'{}' object is not iterable",
    "__contains__": "'{}' object is not a container",
    "__hash__": "unhashable type: '{}'",
    "__reversed__": "'{}' object is not reversible",
}
"""What Python says where these are ``None``; with others it calls ``None``, and says so."""


def native_name(trace: Trace, value: object) -> str:
    """The class of a value in CPython's messages: with its module, if it was written in C."""
    from .protocols import type_of

    cls = type_of(trace, value)
    bare = cls.__flags__ & HEAP_TYPE or cls.__module__ == "builtins"
    return cls.__name__ if bare else f"{cls.__module__}.{cls.__name__}"


def call_weak_reference(trace: Trace, reference: object, args: tuple, kwargs: dict) -> object:
    """``reference()``: what a weak reference from outside refers to."""
    source = trace.outside.source_of(reference)
    if source is None or args or kwargs:
        raise trace.fail("a call to a weak reference that was made here")
    trace.guards.add(source, "type", weakref.ReferenceType)
    return wrap(trace, reference(), Referent(source))  # type: ignore[operator]


def call_staticmethod(trace: Trace, method: staticmethod, args: tuple, kwargs: dict) -> object:
    """A ``staticmethod`` object may be called itself."""
    source = trace.outside.source_of(method)
    function = method.__func__ if source is None else wrap(trace, method.__func__, Attribute(source, "__func__"))
    return call(trace, function, args, kwargs)


def call_ufunc(trace: Trace, ufunc: object, args: tuple, kwargs: dict) -> object:
    """A function of numpy on plain numbers is arithmetic; on anything else it makes arrays, which are Python's."""
    values = [force(trace, arg) for arg in args]
    if kwargs or not all(type(value) in (int, float, bool) or isinstance(value, numpy.number) for value in values):
        raise trace.fail(f"numpy.{ufunc.__name__}, on something else than plain numbers")  # type: ignore[attr-defined]
    return native_calls.run_natively(trace, ufunc, tuple(values), {})


CALLABLES = {
    **({numpy.ufunc: call_ufunc} if numpy is not None else {}),
    weakref.ReferenceType: call_weak_reference,
    ListMethod: call_list_method,
    functools.partial: call_partial,
    staticmethod: call_staticmethod,
    SpecialMethod: call_special_method,
    Trampoline: call_trampoline,
    _native.Dispatcher: call_dispatcher,
}
