"""Calls: which callee is interpreted, recorded in the graph, run natively, or breaks the graph.

:func:`call` tries in order: rules (``call_rules.py``), torch operations, Python functions (interpreted), methods,
classes, builtins (``native_calls.py``), callable objects.
"""

from __future__ import annotations

import functools
import reprlib
import types
import warnings
import weakref
from collections.abc import Callable
from typing import Any

from ..shadows.native_arguments import is_special
from ..state.operations import Args, Kwargs
from .attributes import load_attribute
from .call_rules import call_rule, rule_for

try:
    import numpy
except ImportError:  # torch works without it
    numpy: Any = None  # type: ignore[no-redef]
from ... import _native
from ..._native import MISSING
from ..._native import is_instance as isinstance
from ...config import config
from ...platform.cpython import get_ident, recursive_repr_codes, thread_module
from ...platform.python_objects import cell_is_empty, message_of
from ...platform.torch_autograd import function_of_apply
from ...platform.torch_compiler import COMPILER, substitute_for
from ...platform.torch_functions import disable_in_compiler
from ...program import call_markers
from ..guards.descriptions import module_of
from ..guards.source import Attribute, Item, Referent
from ..shadows import marked_calls
from ..shadows.appended_lists import ListMethod, call_list_method
from ..shadows.bound_builtins import appending_method
from ..shadows.wrap import class_attribute, force, wrap
from ..state import annotations as torch_annotations
from ..state.operations import operation, operations
from ..state.trace import Trace
from ..state.values import Lazy, Raised, SpecialMethod, Trampoline
from . import native_calls
from .argument_binding import bind_arguments
from .construction import call_class
from .descriptors import bind_class_attribute, name_class_value
from .frame import run_function
from .program_types import native_name

NATIVE_CALLABLES = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.MethodWrapperType,
    types.ClassMethodDescriptorType,
)


@operation
def call(trace: Trace, function: Any, args: Args, kwargs: Kwargs) -> Any:
    """The result of ``function(*args, **kwargs)`` in the program."""
    if type(function) is Lazy:
        function = resolve_callee(trace, function)
    rule = rule_for(function)
    if rule is not None:
        return call_rule(trace, rule, function, args, kwargs)
    if id(function) in trace.outside.annotated.all and (
        found := torch_annotations.call_annotated(trace, function, args, kwargs)
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
        if kind is types.BuiltinFunctionType and isinstance(function.__self__, type):
            autograd_function = function_of_apply(function)
            if autograd_function is not None:
                return operations.call_apply(trace, autograd_function, args, kwargs)
        return native_calls.call_native(trace, function, args, kwargs)
    handler = CALLABLES.get(kind)
    if handler is not None:
        return handler(trace, function, args, kwargs)
    return call_object(trace, function, args, kwargs)


def resolve_callee(trace: Trace, value: Lazy) -> object:
    """The callee, forced only as far as a call needs."""
    if value.done:
        return value.value
    appending = appending_method(trace, value)
    return force(trace, value) if appending is None else appending


SKIPPED_MODULES = tuple(
    (
        "torch._dynamo torch._inductor torch.fx torch.jit torch._subclasses torch._guards torch.distributed torch.onnx "
        "torch.export logging threading asyncio numpy multiprocessing subprocess socket unittest.mock _pytest pytest "
        "tqdm random tempfile traceback linecache inspect pdb importlib gc weakref kiln.capture warnings"
    ).split()
) + (warnings.catch_warnings.__module__,)
"""Modules whose functions are not interpreted. The filters of ``warnings`` differ while tracing (quiet.py); from 3.14
on its functions are those of another module."""


def call_function(trace: Trace, function: Any, args: Args, kwargs: Kwargs) -> object:
    """Interpret a Python function in place."""
    if function.__dict__:
        marker = call_markers.marker_of(function)
        if marker.deferred:
            marked_calls.defer(trace, function, args, kwargs)
            return None
        if marker.abandon is not None:
            raise marked_calls.abandon(trace, function, args, f"a call to {function.__qualname__}")
        if marker.fake is not None and not kwargs:
            return marked_calls.call_leaf(trace, function, marker.fake, args)
        if torch_annotations.is_excluded(function):
            reason = torch_annotations.reason_for_exclusion(function)
            raise trace.fail(reason, "call it outside the compiled function, or take the decorator away")
        original = substitute_for(function)
        if original is not None:
            return call(trace, original, args, kwargs)
    if function.__code__ in TRANSPARENT_WRAPPERS:
        return call(trace, wrapped_function(trace, function), args, kwargs)
    handler = operations.handler_for(function)
    if handler is not None and (made := handler(trace, function, args, kwargs)) is not None:
        return made[0]
    module = module_of(function)
    if module.startswith(SKIPPED_MODULES) and any(module == m or module.startswith(m + ".") for m in SKIPPED_MODULES):
        if module.startswith(COMPILER) and (
            found := torch_annotations.call_of_torch_compiler(trace, function, args, kwargs)
        ):
            return found[0]
        raise trace.fail(f"a call to {module}.{function.__qualname__}, which Kiln does not look into")
    if len(trace.frames) > config.max_inline_depth:
        raise nesting_too_deep(trace)
    trace.guards.add_code(function, trace.outside.source_of(function))
    try:
        return run_function(trace, function, bind_arguments(trace, function, args, kwargs))
    except RecursionError:  # raised by Kiln's own frames; the program's is Raised
        raise nesting_too_deep(trace) from None


def nesting_too_deep(trace: Trace) -> BaseException:
    """The break for deep recursion. A root frame that calls itself runs in eager as a whole."""
    root = trace.frames[0].code
    recursive = any(frame.code is root for frame in trace.frames[1:])
    depth = len(trace.frames)
    return trace.fail(f"calls nested more than {depth} deep", "is this recursion without end?", whole=recursive)


# Wrappers that only keep a ``__repr__`` from running in circles (one that does breaks the graph anyway), and those that
# keep functions of torch away from torch's own compiler.
def wrapped_function(trace: Trace, wrapper: types.FunctionType) -> object:
    """The function behind a wrapper that changes nothing: what it calls is in its closure, whatever its attributes
    say. (Of Kiln's own wrappers they say it.)"""
    names = wrapper.__code__.co_freevars
    called = next((name for name in CALLED_BY_WRAPPERS if name in names), None)
    if called is None:
        return load_attribute(trace, wrapper, "__wrapped__")
    cells = wrapper.__closure__ or ()
    if any(map(cell_is_empty, cells)):
        raise trace.fail(f"{wrapper.__qualname__}, whose closure has been emptied")
    check_wrapper_globals(trace, wrapper)
    closure = Attribute(trace.outside.pinned(wrapper), "__closure__")
    for index, (name, cell) in enumerate(zip(names, cells, strict=True)):
        trace.guards.add(Item(closure, index), "full_cell")
        if name == "repr_running":
            trace.guards.add(Attribute(Item(closure, index), "cell_contents"), "type", type(cell.cell_contents))
            if type(cell.cell_contents) is not set:
                raise trace.fail(f"{wrapper.__qualname__}, whose closure has been changed")
        if name == called:
            found = wrap(trace, cell.cell_contents, Attribute(Item(closure, index), "cell_contents"))
    return found


def check_wrapper_globals(trace: Trace, wrapper: types.FunctionType) -> None:
    """Guard the globals that ``reprlib.recursive_repr`` and its copy in dataclasses call."""
    names, namespace = wrapper.__code__.co_names, wrapper.__globals__
    found = {
        name: trace.outside.load_global(namespace, name) for name in ("id", "_thread", "get_ident") if name in names[:2]
    }
    if "_thread" in found and is_same_object(trace, found["_thread"], thread_module):
        found["get_ident"] = load_attribute(trace, thread_module, "get_ident")
    known = {"id": id, "_thread": thread_module, "get_ident": get_ident}
    for name, value in found.items():
        if not is_same_object(trace, value, known[name]):
            raise trace.fail(f"{wrapper.__qualname__}, which calls another {name}")


def is_same_object(trace: Trace, value: object, known: object) -> bool:
    """Whether a value from outside is this object; guarded by identity."""
    if type(value) is not Lazy:
        return value is known
    if value.real is known:
        trace.guards.add(value.source, "identity", known)
    return value.real is known


CALLED_BY_WRAPPERS = ("user_function", "fn")  # in closures: of ``reprlib.recursive_repr``, of torch's wrapper
TRANSPARENT_WRAPPERS = {reprlib.recursive_repr()(lambda self: "").__code__, disable_in_compiler(lambda: None).__code__}


TRANSPARENT_WRAPPERS.update(recursive_repr_codes())


def call_method(trace: Trace, method: types.MethodType, args: Args, kwargs: Kwargs) -> object:
    owner = method.__self__
    function = method.__func__
    if isinstance(owner, type) and function_of_apply(method) is not None:
        return operations.call_apply(trace, owner, args, kwargs)
    return call(trace, function, (owner, *args), kwargs)


def call_partial(trace: Trace, partial: functools.partial[Any], args: Args, kwargs: Kwargs) -> object:
    return call(
        trace, partial.func, (*partial.args, *args), {**operations.plain_mapping(trace, partial.keywords), **kwargs}
    )


def call_dispatcher(trace: Trace, dispatcher: Any, args: Args, kwargs: Kwargs) -> object:
    """A compiled function is interpreted like the function it was made from."""
    function = dispatcher.function
    return call(trace, wrap(trace, function, trace.outside.pinned(function)), args, kwargs)


def call_object(trace: Trace, instance: object, args: Args, kwargs: Kwargs) -> object:
    """An instance with ``__call__``."""
    cls = type(instance)
    method = class_attribute(trace, cls, "__call__", MISSING)
    if isinstance(method, types.FunctionType):
        name_class_value(trace, cls, "__call__", method)
        return call(trace, method, (instance, *args), kwargs)
    if method is not MISSING and is_special(method):
        return call(trace, bind_class_attribute(trace, instance, cls, "__call__", method), args, kwargs)
    if method is MISSING:
        raise Raised(TypeError(f"'{native_name(trace, instance)}' object is not callable"))
    raise trace.fail(
        f"a call to a {cls.__module__}.{cls.__qualname__} object, which is code Kiln cannot look into",
        "call it outside the compiled function",
    )


def call_special_method(trace: Trace, method: SpecialMethod, args: Args, kwargs: Kwargs) -> object:
    """Call a special method that is bound like any attribute. ``None`` in its place means that there is none."""
    owner, cls = args[0], type(args[0])
    raw = class_attribute(trace, cls, method.name)
    if raw is None and method.name in BLOCKED:
        raise Raised(TypeError(BLOCKED[method.name].format(cls.__name__)))
    return call(trace, bind_class_attribute(trace, owner, cls, method.name, raw), args[1:], kwargs)


def blocked_messages() -> dict[str, str]:
    """CPython's messages where these methods are ``None``. Others it calls."""
    uses: dict[str, Callable[[Any], object]] = {
        "__iter__": iter,
        "__contains__": lambda value: 0 in value,
        "__hash__": hash,
        "__reversed__": reversed,
        "__bool__": bool,
    }
    found = {}
    for name, use in uses.items():
        blocked = type("Blocked", (), {name: None})()
        found[name] = message_of(functools.partial(use, blocked)).replace("Blocked", "{}")
    return {name: text for name, text in found.items() if "{}" in text}


BLOCKED = blocked_messages()


def call_weak_reference(trace: Trace, reference: Any, args: Args, kwargs: Kwargs) -> object:
    """``reference()``: what a weak reference from outside refers to."""
    source = trace.outside.source_of(reference)
    if source is None or args or kwargs:
        raise trace.fail("a call to a weak reference that was made here")
    trace.guards.add(source, "type", weakref.ReferenceType)
    return wrap(trace, reference(), Referent(source))


def call_staticmethod(trace: Trace, method: staticmethod[..., Any], args: Args, kwargs: Kwargs) -> object:
    """A ``staticmethod`` object may be called itself."""
    source = trace.outside.source_of(method)
    function = method.__func__ if source is None else wrap(trace, method.__func__, Attribute(source, "__func__"))
    return call(trace, function, args, kwargs)


def call_ufunc(trace: Trace, ufunc: Any, args: Args, kwargs: Kwargs) -> object:
    """A numpy function on plain numbers. On anything else it makes arrays, and the graph breaks."""
    values = [force(trace, arg) for arg in args]
    if kwargs or not all(type(value) in (int, float, bool) or isinstance(value, numpy.number) for value in values):
        raise trace.fail(f"numpy.{ufunc.__name__}, on something else than plain numbers")
    return native_calls.run_natively(trace, ufunc, tuple(values), {})


CALLABLES: dict[type, Callable[[Trace, Any, Args, Kwargs], Any]] = {
    weakref.ReferenceType: call_weak_reference,
    ListMethod: call_list_method,
    functools.partial: call_partial,
    staticmethod: call_staticmethod,
    SpecialMethod: call_special_method,
    Trampoline: lambda trace, trampoline, args, kwargs: call(trace, trampoline.function, args, kwargs),
    _native.Dispatcher: call_dispatcher,
}
if numpy is not None:
    CALLABLES[numpy.ufunc] = call_ufunc
