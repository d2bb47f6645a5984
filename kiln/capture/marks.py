"""Marks by which functions of Kiln's own, called in captured code, tell capture how to take them.

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

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from .source import Computed

if TYPE_CHECKING:
    import types

    from .rebuild import Rebuilder
    from .trace import Trace
    from .values import GraphBreak

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


def foresee(trace: Trace, function: Any, args: tuple, reason: str) -> BaseException:
    """The break at a foreseen function."""
    from .wrap import force

    raised = getattr(function, FORESEEN, None)
    known = [force(trace, arg) for arg in args]
    known = [tuple([force(trace, item) for item in arg]) if type(arg) is tuple else arg for arg in known]
    return trace.fail(reason, instead=None if raised is None else raised(*known))


def caller(raised: Callable[[str], BaseException]) -> Callable[[AnyCallable], AnyCallable]:
    """Mark a function by what capture raises, given a reason, where the code that it calls needs real tensors."""

    def mark(function: AnyCallable) -> AnyCallable:
        CALLERS[function.__code__] = raised  # type: ignore[attr-defined]
        return function

    return mark


def needs_real(trace: Trace, reason: GraphBreak) -> GraphBreak:
    """The break at what only real tensors can do, outside graphs or in the code that a marked function calls."""
    if reason.instead is None:
        found = [CALLERS[frame.code] for frame in trace.frames if frame.code in CALLERS]
        reason.instead = found[-1](reason.reason) if found else None
    return reason


def is_marked(function: object) -> bool:
    """Whether it runs as it is, where it runs: there is nothing inside for a graph."""
    return any(hasattr(function, mark) for mark in (DEFERRED, LEAF, FORESEEN))


def is_deferred(function: object) -> bool:
    return getattr(function, DEFERRED, False) is True


def is_fact(raw: property) -> bool:
    return getattr(raw.fget, FACT, False) is True


def defer(trace: Trace, function: object, args: tuple, kwargs: dict) -> None:
    """Note a call of a deferred function."""
    if trace.rehearsing:
        raise trace.fail(f"a call to {function.__qualname__} here")  # type: ignore[attr-defined]
    trace.deferred.append((function, args, kwargs))


def write_deferred(r: Rebuilder, trace: Trace) -> None:
    """The calls, after everything else that is written back."""
    for function, args, kwargs in trace.deferred:
        keywords = "".join(f"{name}={r.value(value)}, " for name, value in kwargs.items())
        r.effects.append(f"{r.bind(function, function.__name__)}({r.items(args)}{keywords})")  # type: ignore[attr-defined]


def load_fact(trace: Trace, owner: object, name: str, raw: property) -> object:
    """Ask the real object, and assume the answer."""
    record = trace.record_of(owner)
    if record is None:
        raise trace.fail(f"{name} of an object that was made here")
    if trace.registrations or trace.removals or trace.handles:
        raise foresee(trace, raw.fget, (owner,), "a hook is registered or removed while a backward pass runs")
    found = raw.fget(record.real)  # type: ignore[misc]
    trace.facts.append((raw.fget, owner, trace.place()))
    trace.guards.add(Computed(raw.fget, (record.source,)), "constant", found)  # type: ignore[arg-type]
    return found


def call_leaf(trace: Trace, function: Callable[..., Any], fake: Callable[..., Any], args: tuple) -> object:
    """Have the graph call a function as it is."""
    from .tensors import adopt, prepare, to_nodes
    from .wrap import force

    inside = getattr(function, INSIDE, None)
    apart = inside is not None and not trace.options.fullgraph
    if apart or trace.rehearsing or any(frame.protected() for frame in trace.frames):
        raise trace.fail(f"a call to {function.__qualname__} here")
    given, nodes = [], []
    for arg in args:
        outside = object_node(trace, arg, inside is not None)
        value = force(trace, arg) if outside is not None else prepare(trace, arg)
        given.append(value)
        nodes.append(to_nodes(trace, value) if outside is None else outside)
    with trace.environment.mode:
        result = fake(*given)
    node = trace.graph.call_function(inside or function, tuple(nodes))
    node.meta["stack_trace"] = trace.stack_trace()
    node.meta["example_value"] = result
    trace.effects.append(f"{function.__qualname__} runs code that is not captured")
    return adopt(trace, result, node)


def object_node(trace: Trace, value: object, opaque: bool) -> Any:
    """The graph input for an object from outside that capture does not look into, or need not (``opaque``); or None."""
    from .tensors import add_placeholder
    from .trace import ObjectInput
    from .wrap import force

    shadow = force(trace, value)
    source = trace.source_of(shadow)
    record = trace.record_of(shadow) if opaque else None
    taken = id(shadow) in trace.foreign or (record is not None and getattr(type(record.real), OPAQUE, False))
    if source is None or not taken:
        return None
    known = next((item for item in trace.inputs if item.source == source), None)
    if known is None:
        known = ObjectInput(source, add_placeholder(trace, source), shadow)
        trace.inputs.append(known)
    return known.node
