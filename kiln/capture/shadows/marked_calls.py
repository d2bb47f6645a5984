"""Calls of functions with a marker (`kiln.program.call_markers`) in captured code."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...program.call_markers import is_opaque_object, marker_of
from ..guards.source import Computed
from ..state.operations import Args, Kwargs

if TYPE_CHECKING:
    from ..state.trace import Trace
    from ..writeback.rebuild import Rebuilder


def abandon(trace: Trace, function: Any, args: Args, reason: str) -> BaseException:
    """The break at a function that abandons capture."""
    from .wrap import force

    make_error = marker_of(function).abandon
    known = [force(trace, arg) for arg in args]
    known = [tuple([force(trace, item) for item in arg]) if type(arg) is tuple else arg for arg in known]
    return trace.fail(reason, instead=None if make_error is None else make_error(*known))


def defer(trace: Trace, function: Callable[..., object], args: Args, kwargs: Kwargs) -> None:
    """Note a call of a deferred function."""
    if trace.progress.key_method_depth:
        raise trace.fail(f"a call to {function.__qualname__} here")
    trace.deferred.calls.append((function, args, kwargs))


def write_deferred(r: Rebuilder, trace: Trace) -> None:
    """The calls, after everything else that is written back."""
    for function, args, kwargs in trace.deferred.calls:
        keywords = "".join(f"{name}={r.value(value)}, " for name, value in kwargs.items())
        r.effects.append(f"{r.bind(function, function.__name__)}({r.items(args)}{keywords})")


def load_assumed_property(trace: Trace, owner: object, name: str, raw: property) -> object:
    """Ask the real object, and assume the answer."""
    record = trace.outside.record_of(owner)
    if record is None:
        raise trace.fail(f"{name} of an object that was made here")
    if trace.hooks.registrations or trace.hooks.removals or trace.hooks.handles:
        raise abandon(trace, raw.fget, (owner,), "a hook is registered or removed while a backward pass runs")
    getter = raw.fget
    assert getter is not None
    found = getter(record.real)
    trace.hooks.read_properties.append((getter, owner, trace.place()))
    trace.guards.add(Computed(getter, (record.source,)), "constant", found)
    return found


def call_leaf(trace: Trace, function: Callable[..., Any], fake: Callable[..., Any], args: Args) -> object:
    """Have the graph call a function as it is."""
    from .tensors import add_results, prepare, to_nodes
    from .wrap import force

    inside = marker_of(function).inside
    apart = inside is not None and not trace.options.fullgraph
    if apart or trace.progress.key_method_depth or any(frame.protected() for frame in trace.frames):
        raise trace.fail(f"a call to {function.__qualname__} here")
    given, nodes = [], []
    for arg in args:
        outside = object_node(trace, arg, inside is not None)
        value = force(trace, arg) if outside is not None else prepare(trace, arg)
        given.append(value)
        nodes.append(to_nodes(trace, value) if outside is None else outside)
    with trace.fakes.mode:
        result = fake(*given)
    node = trace.graph.call_function(inside or function, tuple(nodes))
    node.meta["stack_trace"] = trace.stack_trace()
    node.meta["example_value"] = result
    trace.effects.reasons.append(f"{function.__qualname__} runs code that is not captured")
    return add_results(trace, result, node)


def object_node(trace: Trace, value: object, opaque: bool) -> Any:
    """The graph input for an object from outside that capture does not look into, or need not (``opaque``); or None."""
    from ..state.graph_inputs import ObjectInput
    from .tensors import add_placeholder
    from .wrap import force

    shadow = force(trace, value)
    source = trace.outside.source_of(shadow)
    record = trace.outside.record_of(shadow) if opaque else None
    taken = id(shadow) in trace.outside.foreign or (record is not None and is_opaque_object(record.real))
    if source is None or not taken:
        return None
    known = next((item for item in trace.inputs.items if item.source == source), None)
    if known is None:
        known = ObjectInput(source, add_placeholder(trace, source), shadow)
        trace.inputs.items.append(known)
    return known.node
