"""``dataclass`` for classes that are cheap to define: the first compile of a process defines a hundred of them.

The standard library generates each method with a compilation of its own. Here one compilation makes all methods of a
class, classes share their ``repr``, and those that compare by identity get nothing but their ``__init__``: half the
time or less. They are dataclasses for `dataclasses.fields` and `dataclasses.replace` all the same. Frozen classes are
made by the standard library. Known for CPython 3.11 to 3.14.
"""

from __future__ import annotations

import dataclasses
import reprlib
import sys
from dataclasses import MISSING, Field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls=None, /, **options):
        """The standard library's ``dataclass``, with the same options."""

        def make(cls: type) -> type:
            made = with_methods(cls, **options) if options.keys() <= CHEAP_OPTIONS else standard(cls, options)
            if cls.__repr__ is object.__repr__:
                type.__setattr__(made, "__repr__", describe_fields)
            return made

        return make if cls is None else make(cls)


__all__ = ["dataclass"]

CHEAP_OPTIONS = frozenset(("eq", "slots", "unsafe_hash"))
if sys.version_info >= (3, 14):
    import annotationlib

    def own_annotations(cls: type) -> dict[str, Any]:
        """The annotations of a class itself, also where they name what is not defined yet."""
        return annotationlib.get_annotations(cls, format=annotationlib.Format.FORWARDREF)
else:

    def own_annotations(cls: type) -> dict[str, Any]:
        """The annotations of a class itself."""
        return dict(cls.__dict__.get("__annotations__", {}))


KIND_OF_FIELD = dataclasses._FIELD  # type: ignore[attr-defined]  # neither ClassVar nor InitVar


@reprlib.recursive_repr()
def describe_fields(self: Any) -> str:
    shown = [item.name for item in dataclasses.fields(self) if item.repr]
    return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name, ...)!r}' for name in shown)})"


def standard(cls: type, options: dict[str, bool]) -> type:
    return dataclasses.dataclass(repr=False, **options)(cls)


def with_methods(cls: type, eq: bool = True, slots: bool = False, unsafe_hash: bool = False) -> type:
    """Give a class the methods that its annotations describe. All of these are fields of instances."""
    fields: dict[str, Field[Any]] = dict(getattr(cls, "__dataclass_fields__", {}))
    for name, annotation in own_annotations(cls).items():
        fields[name] = own_field(cls, name, annotation)
    namespace = dict[str, Any](_unset=MISSING)
    texts = [init_text(cls, fields, namespace)]
    own = cls.__dict__
    if eq and "__eq__" not in own:
        compared = [item.name for item in fields.values() if item.compare]
        texts.append(EQUALITY.format(values_text("self", compared), values_text("other", compared)))
    if unsafe_hash:
        hashed = [item.name for item in fields.values() if (item.compare if item.hash is None else item.hash)]
        texts.append(HASH.format(values_text("self", hashed)))
    exec("\n".join(texts), namespace)
    for name in ("__init__", "__eq__", "__hash__"):
        if name in namespace:
            namespace[name].__qualname__ = f"{cls.__qualname__}.{name}"
            type.__setattr__(cls, name, namespace[name])
    if eq and not unsafe_hash and "__hash__" not in own:
        type.__setattr__(cls, "__hash__", None)
    type.__setattr__(cls, "__dataclass_fields__", fields)
    return with_slots(cls, fields) if slots else cls


EQUALITY = """def __eq__(self, other):
    if other.__class__ is not self.__class__:
        return NotImplemented
    return {} == {}"""
HASH = """def __hash__(self):
    return hash({})"""


def values_text(owner: str, names: list[str]) -> str:
    return f"({''.join(f'{owner}.{name}, ' for name in names)})"


def init_text(cls: type, fields: dict[str, Field[Any]], namespace: dict[str, Any]) -> str:
    """The text of ``__init__``; what it refers to goes into the namespace."""
    parameters, body = ["self"], []
    for name, item in fields.items():
        value = name if item.init else "_unset"
        if item.default is not MISSING:
            namespace[f"_default_{name}"] = item.default
            parameters += [f"{name}=_default_{name}"] * item.init
            value = name if item.init else f"_default_{name}"
        elif item.default_factory is not MISSING:
            namespace[f"_make_{name}"] = item.default_factory
            parameters += [f"{name}=_unset"] * item.init
            made = f"_make_{name}()"
            value = f"{made} if {name} is _unset else {name}" if item.init else made
        else:
            parameters += [name] * item.init
        if value != "_unset":
            body.append(f"    self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append("    self.__post_init__()")
    return f"def __init__({', '.join(parameters)}):\n" + "\n".join(body or ["    pass"])


def with_slots(cls: type, fields: dict[str, Field[Any]]) -> type:
    """The class again, with slots for its fields. (A class cannot get slots afterwards.)"""
    inherited = {name for base in cls.__mro__[1:] for name in base.__dict__.get("__slots__", ())}
    contents = {name: value for name, value in cls.__dict__.items() if name not in fields}
    contents.pop("__dict__", None)
    contents.pop("__weakref__", None)
    contents["__slots__"] = tuple([name for name in fields if name not in inherited])
    made = type(cls)(cls.__name__, cls.__bases__, contents)
    made.__qualname__ = cls.__qualname__
    return made


def own_field(cls: type, name: str, annotation: Any) -> Field[Any]:
    assert "ClassVar" not in str(annotation), f"{cls.__qualname__}.{name} is no field of instances"
    default = cls.__dict__.get(name, MISSING)
    item: Any = default if isinstance(default, Field) else dataclasses.field(default=default)
    item.name, item.type, item._field_type, item.kw_only = name, annotation, KIND_OF_FIELD, False
    if item is default and item.default is MISSING:
        type.__delattr__(cls, name)
    elif item is default:
        type.__setattr__(cls, name, item.default)
    return item  # type: ignore[no-any-return]
