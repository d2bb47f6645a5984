"""Operations of the interpreter for the layers below the one that defines them.

Calling a function may read an attribute, which may call a function: the operations of an interpreter are mutually
recursive, and its files would import each other in a circle. Each file imports downwards only; an operation that is
defined further up is reached through `operations`. The file that defines it registers it with ``@operation``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


class Operations:
    """The registered operations, by name."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        raise AttributeError(f"no operation {name!r}: the file that defines it has not been imported")


operations = Operations()


def operation(function: AnyFunction) -> AnyFunction:
    """Register a function as the operation of its name."""
    if function.__name__ in vars(operations):
        raise ValueError(f"the operation {function.__name__!r} is registered twice")
    setattr(operations, function.__name__, function)
    return function
