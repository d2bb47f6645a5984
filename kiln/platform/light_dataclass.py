"""``dataclass`` for classes that are cheap to define: the first compile of a process defines a hundred of them.

The standard library generates each method with a compilation of its own. Here classes share their ``repr``, and those
that compare by identity get nothing but their ``__init__``, in less than half the time. They are dataclasses for
`dataclasses.fields` and `dataclasses.replace` all the same. Known for CPython 3.11 to 3.13.
"""

from __future__ import annotations

import dataclasses
import reprlib
from dataclasses import MISSING, Field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls=None, /, **options):
        """The standard library's ``dataclass``, with the same options."""

        def make(cls: type) -> type:
            if options == {"eq": False}:
                made = with_init(cls)
            else:
                made = dataclasses.dataclass(repr=False, **options)(cls)
            if cls.__repr__ is object.__repr__:
                type.__setattr__(made, "__repr__", describe_fields)
            return made

        return make if cls is None else make(cls)


__all__ = ["dataclass"]

KIND_OF_FIELD = dataclasses._FIELD  # type: ignore[attr-defined]  # neither ClassVar nor InitVar


@reprlib.recursive_repr()
def describe_fields(self: Any) -> str:
    shown = [item.name for item in dataclasses.fields(self) if item.repr]
    return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name, ...)!r}' for name in shown)})"


def with_init(cls: type) -> type:
    """Give a class the ``__init__`` that its annotations describe. All of them are fields of instances."""
    fields: dict[str, Field[Any]] = dict(getattr(cls, "__dataclass_fields__", {}))
    for name, annotation in cls.__dict__.get("__annotations__", {}).items():
        fields[name] = own_field(cls, name, annotation)
    parameters, body, namespace = ["self"], [], dict[str, Any](_unset=MISSING)
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
    exec(f"def __init__({', '.join(parameters)}):\n" + "\n".join(body or ["    pass"]), namespace)
    init: Any = namespace["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    type.__setattr__(cls, "__init__", init)
    type.__setattr__(cls, "__dataclass_fields__", fields)
    return cls


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
