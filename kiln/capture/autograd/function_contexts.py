"""``ctx``, the node that a ``torch.autograd.Function`` leaves in autograd's graph, where ``backward`` is captured.

The engine hands such nodes to its graph, and capture goes on into the user's ``backward``. The shadow of a context is a
bare instance of the same class: what ``forward`` put on it is an instance dictionary like any other, written back like
any other. What torch keeps natively is read from the real context: saved tensors become graph inputs, flags are
guarded. No native method may run on the shadow itself: it has no node.

Reading saved tensors runs the unpack hooks of those that were packed, each time. Guards read them too, so a context
with such tensors is left to Python.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..._native import function_facts, function_zeros
from ..._native import is_instance as isinstance
from ...platform.torch_autograd import FunctionBase, current_graph_task_id, engine_queue_callback
from ..guards.source import Attribute, Computed, Source, source
from ..interpreter.call_rules import rule
from ..interpreter.descriptors import NATIVE_OWNERS, NATIVE_STORES
from ..shadows.marked_calls import defer
from ..shadows.symbolic_numbers import concrete
from ..shadows.wrap import SUBCLASS_WRAPPERS, add_attributes, force, guard_type, wrap
from ..state.exceptions import needs_real
from ..state.operations import Args, Kwargs
from ..state.trace import Trace
from ..state.values import Kind, Raised, Record


@source
class SavedTensors(Source):
    """``ctx.saved_tensors``: each read unpacks them anew, so a check reads them once, before everything else."""

    base: Source
    read_first = True

    def render(self, base: str, bind: Callable[[object, str], str]) -> str:
        return f"{bind(saved_tensors, 'saved_tensors')}({base})"

    def describe(self) -> str:
        return f"{self.base.describe()}.saved_tensors"


def saved_tensors(context: object) -> tuple[Any, ...] | None:
    """In guards: the saved tensors, if this is a context at all."""
    return context.saved_tensors if isinstance(context, FunctionBase) else None


def wrap_context(trace: Trace, real: object, source: Source) -> object:
    guard_type(trace, real, source)
    record = Record(FunctionBase.__new__(type(real)), real, source, Kind.OBJECT, loaded=True)
    add_attributes(record)
    trace.autograd.contexts[source] = {}
    return trace.outside.add_record(record)


SUBCLASS_WRAPPERS.append((FunctionBase, wrap_context))


def load_native(trace: Trace, context: object, name: str) -> object:
    """A native attribute of a context, read from the real one."""
    record, loader = trace.outside.record_of(context), LOADERS.get(name)
    if record is None or loader is None:
        raise needs_real(trace, trace.fail(f"attribute {name!r} of the context of an autograd function"))
    found = trace.autograd.contexts[record.source]
    if name not in found:
        found[name] = loader(trace, record)
    return found[name]


def load_saved(trace: Trace, record: Record) -> object:
    """The tensors that ``forward`` saved; raises eager's error if they were freed."""
    *_, freed, packed = guarded_facts(trace, record)
    if packed:
        raise trace.fail("ctx.saved_tensors, where reading them calls hooks", "the graph breaks here")
    try:
        tensors = record.real.saved_tensors
    except RuntimeError as error:
        if freed:
            raise Raised(error.with_traceback(None)) from None
        raise trace.fail(f"ctx.saved_tensors raises {type(error).__name__}", error=error) from None
    trace.outside.keep.append(tensors)
    return wrap(trace, tensors, SavedTensors(record.source))


def load_needs(trace: Trace, record: Record) -> object:
    needs = record.real.needs_input_grad
    trace.guards.add(Attribute(record.source, "needs_input_grad"), "constant", needs)
    return needs


LOADERS = {"saved_tensors": load_saved, "needs_input_grad": load_needs}
NATIVE_OWNERS[FunctionBase] = load_native


def store_native(trace: Trace, context: object, name: str, value: object) -> None:
    """``ctx.needs_input_grad = …``, which operators of ``torch.library`` do around the user's backward."""
    record = trace.outside.record_of(context)
    plain = concrete(trace, value)
    if record is None or name != "needs_input_grad" or type(plain) is not tuple:
        raise trace.fail(f"assigning to {name!r} of a {type(context).__qualname__} object, which is native code's")
    load_native(trace, context, name)
    trace.autograd.contexts[record.source][name] = plain
    defer(trace, set_needs, (context, plain), {})


def set_needs(context: Any, needs: tuple[bool, ...]) -> None:
    """After a graph: what code that continues in Python reads."""
    context.needs_input_grad = needs


NATIVE_STORES[FunctionBase] = store_native


def record_of_context(trace: Trace, args: Args, kwargs: Kwargs) -> Record:
    record = trace.outside.record_of(force(trace, args[0])) if len(args) == 1 and not kwargs else None
    if record is None or record.source not in trace.autograd.contexts:
        raise trace.fail("something that is not the context of an autograd function")
    return record


def guarded_facts(trace: Trace, record: Record) -> Any:
    found = trace.autograd.contexts[record.source]
    if "facts" not in found:
        found["facts"] = function_facts(record.real)
        trace.guards.add(Computed(function_facts, (record.source,)), "constant", found["facts"])
    return found["facts"]


@rule(function_facts)
def rule_facts(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    return guarded_facts(trace, record_of_context(trace, args, kwargs))


@rule(function_zeros)
def rule_zeros(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    """Sizes of missing gradients, dynamic like those of tensors."""
    record = record_of_context(trace, args, kwargs)
    zeros = function_zeros(record.real)
    trace.outside.keep.append(zeros)  # sources are found by identity
    return wrap(trace, zeros, Computed(function_zeros, (record.source,)))


_BASE: Any = FunctionBase


@rule(_BASE.name)
def rule_name(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    record_of_context(trace, args, kwargs)
    return type(force(trace, args[0])).__name__


def queue_callback(engine: Any, callback: object) -> None:
    """After a graph: ``engine.queue_callback(callback)``, of torch's own engine."""
    engine.queue_callback(callback)


@rule(engine_queue_callback)
def rule_queue_callback(trace: Trace, args: Args, kwargs: Kwargs) -> None:
    """A callback for the end of the backward pass: queued after the graph, which is early enough."""
    if len(args) != 2 or kwargs:
        raise trace.fail("queue_callback with these arguments")
    defer(trace, queue_callback, args, kwargs)


@rule(current_graph_task_id)
def rule_task_id(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    """The number of the running backward pass, which is dynamic."""
    return wrap(trace, current_graph_task_id(), Computed(current_graph_task_id, ()))
