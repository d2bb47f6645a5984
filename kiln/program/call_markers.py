"""Markers on functions of Kiln's own that captured code calls: they say how capture treats the call.

- *Deferred* functions return None and are not interpreted: they are called after the graph has run, in order, with what
  the graph made of their arguments. They must not change what captured code looks at.
- *Facts* are properties that capture reads and assumes, without interpreting the getter: each call of the compiled code
  reads them again first. Captured code may change one by its effects on hooks, which happen after the graph, so that no
  fact is read after that.
- *Leaves* are called by the graph as they are; another function gives their result on fakes. Objects from outside
  among their arguments are inputs of the graph, and only their class is assumed. Some are leaves only under
  ``fullgraph``; the graph then calls another function ``inside``. Nothing that comes before in the program has happened
  yet when that runs, and it may leave the graph only by an error.
- Functions that *abandon capture* are called only if an assumption does not hold. Capture ends before such a call;
  under ``fullgraph`` it raises the exception that the marker makes, and nothing has run. Getters of facts may be some.
- Functions that *call the program's* code: if that code needs real tensors, capture under ``fullgraph`` raises the
  exception that the marker makes, so that another graph can call this code as it is.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable
from typing import Any, TypeVar

from ..platform.light_dataclass import dataclass

AnyCallable = TypeVar("AnyCallable", bound=Callable[..., Any])
AnyClass = TypeVar("AnyClass", bound=type)


@dataclass(eq=False)  # never changed
class CallMarker:
    """How capture treats calls of a function."""

    deferred: bool = False
    fact: bool = False
    fake: Callable[..., Any] | None = None  # of a leaf: gives its result on fakes
    inside: Callable[..., Any] | None = None  # of a leaf: what a graph that is the whole program calls
    abandon: Callable[..., BaseException] | None = None

    @property
    def is_interpreted(self) -> bool:
        """Whether capture looks inside where the function runs."""
        return not self.deferred and self.fake is None and self.abandon is None


NO_MARKER = CallMarker()
MARKER = "__kiln_marker__"
OPAQUE = "__kiln_opaque__"  # in classes whose objects leaves get as they are
PROGRAM_CALLERS: dict[types.CodeType, Callable[[str], BaseException]] = {}


def marker_of(function: object) -> CallMarker:
    marker: CallMarker = getattr(function, MARKER, NO_MARKER)
    return marker


def add_marker(function: AnyCallable, **changes: Any) -> AnyCallable:
    setattr(function, MARKER, dataclasses.replace(marker_of(function), **changes))
    return function


def deferred(function: AnyCallable) -> AnyCallable:
    """Mark a function that is to be called after the graph."""
    return add_marker(function, deferred=True)


def fact(getter: AnyCallable) -> AnyCallable:
    """Mark the getter of a property that is a fact."""
    return add_marker(getter, fact=True)


def leaf(fake: Callable[..., Any], inside: Callable[..., Any] | None = None) -> Callable[[AnyCallable], AnyCallable]:
    """Mark a function that the graph calls; ``fake`` takes the same arguments and gives its result on fakes."""
    return lambda function: add_marker(function, fake=fake, inside=inside)


def abandons_capture(make_error: Callable[..., BaseException]) -> Callable[[AnyCallable], AnyCallable]:
    """Mark a function by the exception that capture raises for it, made from the arguments as capture knows them."""
    return lambda function: add_marker(function, abandon=make_error)


def calls_program(make_error: Callable[[str], BaseException]) -> Callable[[AnyCallable], AnyCallable]:
    """Mark a function by the exception that capture raises if the code that it calls needs real tensors."""

    def mark(function: AnyCallable) -> AnyCallable:
        if isinstance(function, types.FunctionType):
            PROGRAM_CALLERS[function.__code__] = make_error
        return function

    return mark


def opaque_object(cls: AnyClass) -> AnyClass:
    """Mark a class whose objects leaves get as they are."""
    setattr(cls, OPAQUE, True)
    return cls


def is_opaque_object(value: object) -> bool:
    return getattr(type(value), OPAQUE, False) is True
