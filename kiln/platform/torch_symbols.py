"""Symbolic numbers: the expression and the hint behind a SymInt, SymFloat or SymBool. Known for torch 2.11 to 2.15.

Loads nothing; `torch_shapes` has what needs sympy. Another torch without these attributes raises AttributeError.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from ..operator_functions import attrgetter

expression_of: Callable[[Any], Any] = attrgetter("node.expr")
"""The sympy expression of a symbolic number, with what the shape environment knows put in."""
unsimplified_expression_of: Callable[[Any], Any] = attrgetter("node._expr")
"""The sympy expression as it was made: symbols that were found to be constants are still there."""
hint_of: Callable[[Any], Any] = attrgetter("node.hint")
"""The number that a symbolic number has in the call that is traced."""
environment_of: Callable[[Any], Any] = attrgetter("node.shape_env")


@contextlib.contextmanager
def keeping_guards(environment: Any) -> Iterator[None]:
    """In the block a shape environment adds guards. Once torch has compiled them it would only log that it does not."""
    frozen = getattr(environment, "frozen", False)
    if frozen:
        environment.frozen = False
    try:
        yield
    finally:
        if frozen:
            environment.frozen = True


def has_hint(number: Any) -> bool:
    """Whether the number is known in the call that is traced; it is not for what comes from data."""
    return bool(number.node.has_hint())
