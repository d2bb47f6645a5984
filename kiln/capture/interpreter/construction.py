"""Calling classes: ``type.__call__``, ``__new__`` and ``__init__``."""

from __future__ import annotations

import collections
import enum
import types

from ..._native import is_instance as isinstance
from ...platform.python_objects import HEAP_TYPE
from ..guards.descriptions import short_name
from ..guards.source import Attribute, lookup
from ..shadows.native_arguments import is_special
from ..shadows.wrap import class_attribute, class_attribute_source, force, has_finalizer, wrap
from ..state.operations import Args, Kwargs, operations
from ..state.trace import Trace
from ..state.values import Raised
from . import native_calls
from .descriptors import bind_class_attribute, name_class_value
from .program_types import native_name


def finalizer_break(trace: Trace, cls: type) -> BaseException:
    """The break for an object with ``__del__``. Kiln's frames would keep it alive, so the whole frame runs in eager."""
    return trace.fail(f"making a {cls.__qualname__}, which has a __del__", "make it outside", whole=True)


def call_class(trace: Trace, cls: type, args: Args, kwargs: Kwargs) -> object:
    """``cls(...)``: makes a real instance; ``__new__`` and ``__init__`` in Python are interpreted."""
    if has_finalizer(cls):
        raise finalizer_break(trace, cls)
    maker = class_attribute(trace, type(cls), "__call__")
    if isinstance(maker, types.FunctionType):
        if operations.is_enum_lookup(trace, cls, args, kwargs):
            return operations.run_uninterpreted(trace, cls, args, kwargs)
        name_class_value(trace, type(cls), "__call__", maker)
        return operations.call(trace, maker, (cls, *args), kwargs)
    if maker is not TYPE_CALL and is_special(maker):  # a static method, or an object with a __call__
        return operations.call(trace, bind_class_attribute(trace, cls, type(cls), "__call__", maker), args, kwargs)
    return construct(trace, cls, args, kwargs)


TYPE_CALL = type.__call__


def construct(trace: Trace, cls: type, args: Args, kwargs: Kwargs) -> object:
    """``type.__call__``: ``__new__``, then ``__init__``."""
    if not cls.__flags__ & HEAP_TYPE or not has_python_constructor(cls):
        return native_calls.call_native(trace, cls, args, kwargs)
    instance = make_instance(trace, cls, args, kwargs)
    if isinstance(instance, cls):
        initialize(trace, instance, args, kwargs)
    return instance


def has_python_constructor(cls: type) -> bool:
    """Whether making an instance runs Python code, or only ``object.__new__``."""
    new, init = lookup(cls, "__new__"), lookup(cls, "__init__")
    return isinstance(new, staticmethod) or isinstance(init, types.FunctionType) or new is object.__new__


def make_instance(trace: Trace, cls: type, args: Args, kwargs: Kwargs) -> object:
    new = class_attribute(trace, cls, "__new__")
    if isinstance(new, staticmethod):
        function = wrap(trace, new.__func__, Attribute(class_attribute_source(trace, cls, "__new__"), "__func__"))
        return operations.call(trace, function, (cls, *args), kwargs)
    if new is object.__new__:
        init = lookup(cls, "__init__")
        if init is object.__init__ and (args or kwargs):
            raise Raised(TypeError(f"{cls.__name__}() takes no arguments"))
        return new_object(trace, cls)
    if new in EMPTY_MAKERS:
        return native_calls.call_native(trace, new, (cls,), {})
    return native_calls.call_native(trace, new, (cls, *args), kwargs)


EMPTY_MAKERS = frozenset(lookup(kind, "__new__") for kind in (list, dict, set, collections.deque))
"""``__new__`` methods that ignore their arguments: ``__init__`` fills the container."""


def new_object(trace: Trace, cls: type) -> object:
    if has_finalizer(cls):
        raise finalizer_break(trace, cls)
    if isinstance(cls, enum.EnumMeta):  # members count as constants
        raise trace.fail(f"making a member of the enumeration {short_name(cls)}")
    try:
        instance: object = object.__new__(cls)
    except TypeError as error:
        raise Raised(error) from None
    trace.outside.pinned(cls)
    return instance


def initialize(trace: Trace, instance: object, args: Args, kwargs: Kwargs) -> None:
    cls = type(instance)
    init = class_attribute(trace, cls, "__init__")
    if isinstance(init, types.FunctionType):
        name_class_value(trace, cls, "__init__", init)
        result = force(trace, operations.call(trace, init, (instance, *args), kwargs))
    elif init is object.__init__:
        return
    elif is_special(init):
        result = force(
            trace, operations.call(trace, bind_class_attribute(trace, instance, cls, "__init__", init), args, kwargs)
        )
    else:
        result = native_calls.call_native(trace, init, (instance, *args), kwargs)
    if result is not None:
        raise Raised(TypeError(f"__init__() should return None, not '{native_name(trace, result)}'"))
