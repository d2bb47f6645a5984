"""Text that contains a tensor's values: unknown while tracing, and mostly meant for an error or a log that never comes.

An f-string with a tensor in it makes one of these. It can be passed on and dropped; whatever looks at it breaks the
graph, and where it must exist at a break or at the end, Python makes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import Parameter

from ...platform.python_objects import words
from ..state.trace import Trace

LOOKING = words(
    "__eq__ __ne__ __lt__ __le__ __gt__ __ge__ __hash__ __len__ __iter__ __getitem__ __contains__ __bool__ __str__ "
    "__repr__ __format__ __add__ __radd__ __mul__ __rmul__ __mod__ __rmod__ __int__ __float__ __index__ __getattr__"
)


class UnknownText:
    """Stands for a string."""

    def __init__(self, trace: Trace) -> None:
        self.__dict__["trace"] = trace
        trace.outside.foreign[id(self)] = self
        trace.outside.keep.append(self)
        trace.mark_unbuildable(self)


def looking(name: str) -> Callable[..., Any]:
    def look(self: UnknownText, *args: object) -> Any:
        raise self.__dict__["trace"].fail("text that contains a tensor's values")

    look.__name__ = name
    return look


for _name in LOOKING:
    setattr(UnknownText, _name, looking(_name))


def is_unknown(value: object) -> bool:
    return type(value) is UnknownText


def unknown_text(trace: Trace, value: object, before: list[object]) -> UnknownText | None:
    """The text of a value in an f-string of which ``before`` is made already, where it cannot be known."""
    plain = isinstance(value, torch.Tensor) and trace.tensor_info(value).kind in (torch.Tensor, Parameter)
    varying = isinstance(value, torch.SymInt) and any(
        is_unknown(part) for part in before
    )  # would be pinned for nothing
    return UnknownText(trace) if plain or varying or is_unknown(value) else None
