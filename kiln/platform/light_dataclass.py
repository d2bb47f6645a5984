"""``dataclass`` for classes that are cheap to define: the first compile of a process defines a hundred of them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls=None, /, **options):
        """The standard library's ``dataclass``, with a ``repr`` that is shared."""

        def make(cls: type) -> type:
            made = dataclasses.dataclass(repr=False, **options)(cls)
            if "__repr__" not in cls.__dict__:
                type.__setattr__(made, "__repr__", describe_fields)
            return made

        return make if cls is None else make(cls)


__all__ = ["dataclass"]


def describe_fields(self: Any) -> str:
    """The ``repr`` of all these classes. The standard library generates one per class: a third of the time it takes."""
    shown = [item.name for item in dataclasses.fields(self) if item.repr]
    return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name, ...)!r}' for name in shown)})"
