"""Markers on functions of Kiln's own that captured code calls: they tell capture how to treat the call.

- *Deferred* functions give None and are not looked into: they are called after the graph has run, in order, with what
  the graph made of their arguments. They must not change what captured code looks at.
- *Facts* are properties that capture asks for and assumes, without looking how they are worked out: each call of the
  compiled code asks again first. What captured code does to hooks may change one, and is done after the graph, so that
  no fact is asked for after that.
- *Leaves* are called by the graph as they are; what they give is told by another function, run on fakes. Objects from
  outside among their arguments are inputs of the graph, and only their class is assumed. Some are leaves only where
  there is to be one graph, which then calls another function ``inside``: nothing that comes before in the program has
  happened yet when that runs, and it must not leave the graph but by an error.
- *Foreseen* functions are called only when something is not as it was taken to be. Capture ends before such a call;
  where there is to be one graph, it raises what they have it raise, and nothing has run. Getters of facts may be some.
- *Callers* call the program's code. Where that does what only real tensors can do, and there is to be one graph,
  capture raises what they have it raise: a graph that calls this code as it is may do.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, TypeVar

AnyCallable = TypeVar("AnyCallable", bound=Callable[..., Any])


DEFERRED = "__kiln_deferred__"
FACT = "__kiln_fact__"
LEAF = "__kiln_leaf__"
INSIDE = "__kiln_inside__"
FORESEEN = "__kiln_foreseen__"
OPAQUE = "__kiln_opaque__"  # set in classes whose objects leaves get as they are
CALLERS: dict[types.CodeType, Callable[[str], BaseException]] = {}


def deferred(function: AnyCallable) -> AnyCallable:
    """Mark a function that is to be called after the graph."""
    setattr(function, DEFERRED, True)
    return function


def fact(getter: AnyCallable) -> AnyCallable:
    """Mark the getter of a property that is a fact."""
    setattr(getter, FACT, True)
    return getter


def leaf(fake: Callable[..., Any], inside: Callable[..., Any] | None = None) -> Callable[[AnyCallable], AnyCallable]:
    """Mark a function that the graph calls; ``fake`` gives for its arguments, on fakes, what it gives."""

    def mark(function: AnyCallable) -> AnyCallable:
        setattr(function, LEAF, fake)
        setattr(function, INSIDE, inside)
        return function

    return mark


def leaf_fake(function: object) -> Callable[..., Any] | None:
    return getattr(function, LEAF, None)


def foreseen(raised: Callable[..., BaseException]) -> Callable[[AnyCallable], AnyCallable]:
    """Mark a function by what capture raises for it, given the arguments as it knows them."""

    def mark(function: AnyCallable) -> AnyCallable:
        setattr(function, FORESEEN, raised)
        return function

    return mark


def is_foreseen(function: object) -> bool:
    return hasattr(function, FORESEEN)


def caller(raised: Callable[[str], BaseException]) -> Callable[[AnyCallable], AnyCallable]:
    """Mark a function by what capture raises, given a reason, where the code that it calls needs real tensors."""

    def mark(function: AnyCallable) -> AnyCallable:
        CALLERS[function.__code__] = raised
        return function

    return mark


def is_marked(function: object) -> bool:
    """Whether it runs as it is, where it runs: there is nothing inside for a graph."""
    return any(hasattr(function, mark) for mark in (DEFERRED, LEAF, FORESEEN))


def is_deferred(function: object) -> bool:
    return getattr(function, DEFERRED, False) is True


def is_fact(raw: property) -> bool:
    return getattr(raw.fget, FACT, False) is True
