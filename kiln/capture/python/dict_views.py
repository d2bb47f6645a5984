"""Views of dictionaries (``keys()``, ``values()``, ``items()``) and read-only proxies of mappings.

The shadow of a view from outside is a view of the shadow of its dictionary, which is guarded like any other. A proxy
(``types.MappingProxyType``) passes everything on to its mapping, so its methods are operations on that.
"""

from __future__ import annotations

import collections
import types
from collections.abc import Callable
from typing import Any

from ..._native import is_instance as isinstance
from ..guards.source import MappingOf, Source, mapping_of
from ..interpreter import operators
from ..interpreter.attributes import load_attribute
from ..interpreter.call_rules import rule
from ..interpreter.calls import call
from ..interpreter.items import get_item
from ..interpreter.iteration import get_iterator
from ..interpreter.membership import contains
from ..shadows.builtin_tables import VIEW_TYPES
from ..shadows.native_arguments import load_keys
from ..shadows.wrap import WRAPPERS, force, guard_type, name_copy, wrap
from ..state.operations import Args, Kwargs
from ..state.trace import Trace


def wrap_view(trace: Trace, real: object, source: Source) -> object:
    """The same view of the shadow of its dictionary."""
    guard_type(trace, real, source)
    owner = wrap(trace, mapping_of(real), MappingOf(source))
    load_keys(trace, owner)
    base = collections.OrderedDict if isinstance(owner, collections.OrderedDict) else dict
    return name_copy(trace, getattr(base, type(real).__name__.rsplit("_", 1)[-1])(owner), source, real)


def wrap_mapping_proxy(trace: Trace, real: types.MappingProxyType[Any, Any], source: Source) -> object:
    """A proxy of the shadow of its mapping."""
    owner = mapping_of(real)
    if type(owner) is dict and "__doc__" in owner:  # every class has one in its namespace
        raise trace.fail("the namespace of a class as a dictionary", "read its attributes by name")
    guard_type(trace, real, source)
    return name_copy(trace, types.MappingProxyType(wrap(trace, owner, MappingOf(source))), source, real)


WRAPPERS.update({kind: wrap_view for kind in VIEW_TYPES})
WRAPPERS[types.MappingProxyType] = wrap_mapping_proxy


def unwrap_proxy(trace: Trace, value: object) -> object:
    """The mapping behind a proxy; anything else as it is."""
    value = force(trace, value)
    return mapping_of(value) if type(value) is types.MappingProxyType else value


def proxy_rule(name: str, run: Callable[..., Any]) -> None:
    """A special method of a proxy is an operation on its mapping."""

    @rule(types.MappingProxyType.__dict__[name])
    def rule_proxy(trace: Trace, args: Args, kwargs: Kwargs) -> object:
        return run(trace, *(unwrap_proxy(trace, arg) for arg in args), **kwargs)


proxy_rule("__getitem__", get_item)
proxy_rule("__contains__", contains)
proxy_rule("__iter__", get_iterator)
proxy_rule("__len__", lambda trace, mapping: call(trace, len, (mapping,), {}))
proxy_rule("__reversed__", lambda trace, mapping: call(trace, reversed, (mapping,), {}))
proxy_rule("__or__", lambda trace, left, right: operators.binary(trace, "|", left, right))
proxy_rule("__ror__", lambda trace, left, right: operators.binary(trace, "|", right, left))


def proxy_method_rule(name: str) -> None:
    @rule(types.MappingProxyType.__dict__[name])
    def rule_proxy_method(trace: Trace, args: Args, kwargs: Kwargs) -> object:
        return call(trace, load_attribute(trace, unwrap_proxy(trace, args[0]), name), args[1:], kwargs)


for _name in ("get", "keys", "values", "items", "copy"):
    proxy_method_rule(_name)
