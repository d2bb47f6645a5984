"""``backward`` of a ``torch.autograd.Function`` that captured code applies.

It is interpreted, like ``forward``, into nodes that are thrown away, for two reasons. ``torch.autograd.grad`` inside
captured code runs a backward pass over fakes, so the node that stands for the function there must have one. And a
backend that compiles the backward pass ahead of time runs the user's ``backward`` once, while compiling: that is the
same as running it every time only if it reads nothing but its arguments and its context. ``meta["traceable_backward"]``
of the graph node says whether that holds, and ``meta["traceable_reason"]`` why not.
"""

from __future__ import annotations

import contextlib
import enum
import sys
import types
import weakref
from collections.abc import Iterator
from typing import Any

import torch
import torch.fx

from ..._native import is_instance as isinstance
from ...platform.light_dataclass import dataclass
from ...platform.python_objects import cell_is_empty
from ...platform.torch_autograd import forward_class_of
from ...program.graph_meta import set_traceable_backward
from ..guards.descriptions import module_of_globals
from ..guards.source import Attribute, GlobalsOf, Source
from ..interpreter.calls import call
from ..shadows.tensors import TORCH_CONSTANTS, tensor_leaves
from ..shadows.wrap import IDENTITY_TYPES, force
from ..state.trace import Trace
from ..state.values import CONSTANT_TYPES, GraphBreak, Raised, Restart, TensorInfo
from ..writeback.outside_state import OutsideState


class BackwardContext:
    """What ``backward`` sees as ``ctx``: the attributes that ``forward`` set, saved tensors and flags."""

    def __init__(
        self, attributes: dict[str, object], saved: tuple[Any, ...], needs_input_grad: tuple[bool, ...]
    ) -> None:
        self.__dict__.update(attributes)
        self.saved_tensors = self.saved_variables = saved
        self.needs_input_grad = needs_input_grad


@dataclass(eq=False)
class FunctionCall:
    """One call of ``apply``: what its backward pass needs to know."""

    cls: type
    attributes: dict[str, object]  # that forward put on its context
    materialize: bool = True  # missing gradients are given as zeros


def run_backward(trace: Trace, call_made: FunctionCall, context: BackwardContext, gradients: tuple[Any, ...]) -> object:
    """The fake gradients that ``backward`` gives; its nodes are dropped, its guards stay."""
    from .autograd_function import drop_nodes, force_outputs

    before, state = set(trace.graph.nodes), OutsideState(trace, ())
    name, attributes = call_made.cls.__qualname__, dict(vars(context))
    register_unknown_tensors(trace, (gradients, attributes))
    try:
        result = force_outputs(trace, call(trace, backward_of(trace, call_made.cls), (context, *gradients), {}))
    finally:
        drop_nodes(trace, before)
    if state.is_changed(trace):
        raise trace.fail(f"{name}.backward changes Python objects outside")
    if any(vars(context).get(key) is not value for key, value in attributes.items()):
        raise trace.fail(f"{name}.backward changes its context")
    parts = result if type(result) is tuple else (result,)
    if not all(part is None or isinstance(part, torch.Tensor) for part in parts):
        raise trace.fail(f"{name}.backward returns something that is no tensor")
    return result


def backward_of(trace: Trace, cls: type) -> Any:
    from .autograd_function import static_method

    own = static_method(trace, cls, "backward")
    return own if own is not torch.autograd.Function.backward else static_method(trace, cls, "vjp")


def register_unknown_tensors(trace: Trace, values: object) -> None:
    """Register tensors that the trace does not know: results of forward, gradients."""
    for tensor in tensor_leaves(values):
        if id(tensor) not in trace.fakes.infos:
            node = trace.graph.call_function(torch.empty_like, ())  # dropped with the rest
            trace.add_tensor(TensorInfo(tensor, node, torch.Tensor))


def fake_backward(trace: Trace, call_made: FunctionCall, ctx: Any, gradients: tuple[Any, ...]) -> object:
    """For the stand-in of a function in a backward pass over fakes."""
    context = BackwardContext(call_made.attributes, ctx.saved_tensors, ctx.needs_input_grad)
    try:
        return run_backward(trace, call_made, context, gradients)
    except Raised as raised:
        name = type(raised.error).__name__
        raise trace.fail(f"{call_made.cls.__qualname__}.backward raises {name}", error=raised.error) from None


def is_stand_in(node: object) -> bool:
    """Whether a node of fakes' history is that of a function the user wrote."""
    return getattr(forward_class_of(type(node)), "is_stand_in", False)


_UNTRACEABLE: weakref.WeakKeyDictionary[types.FunctionType, str] = weakref.WeakKeyDictionary()
"""Backward methods that cannot be traced once for all calls, and why."""


def mark_traceable(
    trace: Trace,
    node: torch.fx.Node,
    call_made: FunctionCall,
    saved: tuple[Any, ...],
    needs: tuple[bool, ...],
    outputs: object,
) -> None:
    """Note on a node whether its backward may be traced. Where it may not, capture starts over."""
    if not any(leaf.requires_grad for leaf in tensor_leaves(outputs)):
        set_traceable_backward(node)  # there is none
        return
    method = backward_of(trace, call_made.cls)
    known = _UNTRACEABLE.get(method)
    if known is None:
        reason = why_untraceable(trace, call_made, saved, needs, outputs)
        if reason is not None:
            _UNTRACEABLE[method] = reason
            trace.progress.start_over = True
            raise Restart
    set_traceable_backward(node, known)


def why_untraceable(
    trace: Trace, call_made: FunctionCall, saved: tuple[Any, ...], needs: tuple[bool, ...], outputs: object
) -> str | None:
    for name, value in call_made.attributes.items():
        if not is_unchangeable(trace, value):
            return f"{call_made.cls.__qualname__}: ctx.{name} is an object that may change before the backward pass"
    parts = outputs if isinstance(outputs, tuple) else (outputs,)
    with effects_discarded(trace), torch.no_grad():
        with trace.fakes.mode:
            gradients = tuple([torch.empty_like(part) if isinstance(part, torch.Tensor) else None for part in parts])
        reasons = [why_not_repeatable(trace, call_made, saved, needs, gradients)]
        if not call_made.materialize and len(gradients) > 1:  # some may be missing
            for index in range(len(gradients)):
                some = tuple([gradient if index == place else None for place, gradient in enumerate(gradients)])
                reasons.append(why_not_repeatable(trace, call_made, saved, needs, some, may_raise=True))
    return next((reason for reason in reasons if reason is not None), None)


def why_not_repeatable(
    trace: Trace,
    call_made: FunctionCall,
    saved: tuple[Any, ...],
    needs: tuple[bool, ...],
    gradients: tuple[Any, ...],
    may_raise: bool = False,
) -> str | None:
    """Why a backward with these gradients may do something else in another call; None if it cannot."""
    context = BackwardContext(call_made.attributes, saved, needs)
    try:
        with recording_reads(trace) as reads:
            run_backward(trace, call_made, context, gradients)
    except GraphBreak as problem:
        return problem.reason
    except Raised as raised:
        if not may_raise:
            return f"{call_made.cls.__qualname__}.backward raises {type(raised.error).__name__}"
    unsettled = [source for source, value in reads if not is_program_constant(trace, source, value)]
    if unsettled:
        return f"{call_made.cls.__qualname__}.backward reads {unsettled[0].describe()}, which may change before it runs"
    return None


@contextlib.contextmanager
def effects_discarded(trace: Trace) -> Iterator[None]:
    """Discard the effects that the block records."""
    before = trace.effects.copy()
    try:
        yield
    finally:
        trace.effects = before


@contextlib.contextmanager
def recording_reads(trace: Trace) -> Iterator[list[tuple[Source, object]]]:
    """Record what the program reads outside during the block."""
    before, trace.outside.reads = trace.outside.reads, []
    try:
        yield trace.outside.reads
    finally:
        trace.outside.reads = before


def is_unchangeable(trace: Trace, value: object) -> bool:
    """Whether a value cannot change before the backward pass: no objects, no containers from outside."""
    value = force(trace, value)
    if trace.outside.record_of(value) is not None or id(value) in trace.outside.foreign:
        return False
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(is_unchangeable(trace, item) for item in value)
    if isinstance(value, dict):
        return all(is_unchangeable(trace, item) for pair in value.items() for item in pair)
    plain = (*CONSTANT_TYPES, *TORCH_CONSTANTS, *IDENTITY_TYPES)
    return isinstance(value, (*plain, torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool, types.FunctionType))


def is_program_constant(trace: Trace, source: Source, value: object) -> bool:
    """Whether a value from outside is code, which programs define once, and not data."""
    if isinstance(value, (*IDENTITY_TYPES, *TORCH_CONSTANTS, types.FunctionType, enum.Enum)):
        return True
    base = getattr(source, "base", None)
    if isinstance(value, types.CellType):
        if cell_is_empty(value) or is_of_library(trace, base):
            return True
        return is_program_constant(trace, source, value.cell_contents)
    if isinstance(base, GlobalsOf) and base.owner is not None:
        return module_of_globals(base.owner.value).split(".")[0] in FIXED_MODULES
    if isinstance(source, Attribute) and source.name == "cell_contents":
        return True  # the cell was looked at before
    return isinstance(base, Attribute) and base.name in ("__defaults__", "__kwdefaults__")


def is_of_library(trace: Trace, source: object) -> bool:
    """Whether this is ``function.__closure__`` of a function of torch, numpy or the standard library."""
    if not isinstance(source, Attribute) or source.name != "__closure__":
        return False
    functions = [each for each in trace.outside.keep if isinstance(each, types.FunctionType)]
    owner = next((each for each in functions if trace.outside.sources.get(id(each)) == source.base), None)
    return owner is not None and module_of_globals(owner.__globals__).split(".")[0] in FIXED_MODULES


FIXED_MODULES = frozenset({*sys.stdlib_module_names, "torch", "numpy"})
