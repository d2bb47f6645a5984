"""``torch.autograd.Function`` in captured code: one graph node that calls the real ``apply``.

What comes out of it must be known without running the user's code for real: ``forward`` is interpreted with a stand-in
for its context, into nodes that are then thrown away, and the fake results go through a function of our own, so that
torch itself says what is differentiable, what is a view and what was changed in place. At run time ``apply`` runs the
user's ``forward``. A ``forward`` that changes Python objects outside breaks the graph.
"""

from __future__ import annotations

import inspect
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.fx
from torch.utils.checkpoint import CheckpointFunction

from ..._native import is_instance as isinstance
from ...platform.fx_graphs import is_erased
from ...platform.torch_autograd import apply_of as torch_apply_of
from ...platform.torch_dispatch import are_transforms_active
from ..guards.descriptions import module_of
from ..interpreter.attributes import load_attribute
from ..interpreter.call_rules import rule
from ..interpreter.calls import call
from ..shadows.tensors import add_results, prepare, run_fake, to_nodes
from ..shadows.wrap import class_attribute, force, is_constant
from ..state.operations import Args, Kwargs, operation
from ..state.trace import Trace
from ..state.values import Raised
from ..torch.overrides import overriding_arguments
from ..writeback.outside_state import OutsideState, is_closed, pending_writes
from .function_backward import FunctionCall, fake_backward, mark_traceable

HINT = "the graph breaks here; keep Python side effects out of forward()"


@operation
def call_apply(trace: Trace, cls: type[torch.autograd.Function], args: Args, kwargs: Kwargs) -> object:
    """``cls.apply(*args)``."""
    name = cls.__qualname__
    if kwargs:
        raise trace.fail(f"{name}.apply with keyword arguments")
    if are_transforms_active():
        raise trace.fail(f"{name}.apply under a functorch transform")
    if issubclass(cls, CheckpointFunction):
        raise trace.fail(
            "checkpoint(use_reentrant=True): its backward runs the function again, and a backward pass of its own",
            "use checkpoint(..., use_reentrant=False), which is captured",
        )
    args = tuple([force(trace, arg) for arg in args])
    if trace.overrides.modes or overriding_arguments(trace, args):
        raise trace.fail(f"{name}.apply under a torch-function mode or on tensors with __torch_function__")
    prepared = prepare(trace, args, exact=True)
    check_no_pending_writes(trace, cls)
    context = Context(tuple(isinstance(arg, torch.Tensor) and arg.requires_grad for arg in args))
    outputs = interpret_forward(trace, cls, context, args)
    marks = {name: context.__dict__.pop(attribute, ()) for name, attribute in MARKS.items()}
    attributes = {name: value for name, value in vars(context).items() if name != "needs_input_grad"}
    made = FunctionCall(cls, attributes, False not in marks["set_materialize_grads"])
    trace.autograd.function_calls[id(made)] = made
    result = run_fake(trace, stand_in_function(trace, made, marks, outputs), prepared, {})
    node = trace.graph.call_function(apply_of(cls), to_nodes(trace, prepared, exact=True))
    node.meta["stack_trace"] = trace.stack_trace()
    node.meta["example_value"] = result
    trace.outside.pinned(cls)
    adopted = add_results(trace, result, node)
    mark_traceable(trace, node, made, marks["save_for_backward"], context.needs_input_grad, result)
    return adopted


def apply_of(cls: Any) -> Callable[..., Any]:
    """``cls.apply`` as a function that fx can print: fx looks up functions of torch by name.

    A class may have an ``apply`` of its own, which is interpreted; the node is torch's ``apply`` that it calls.
    """
    bound = torch_apply_of(cls)

    def apply(*args: Any) -> Any:
        return bound(*args)

    module = module_of(cls)
    home = module if module.partition(".")[0] != "torch" else __name__
    apply.__module__, apply.__qualname__ = home, f"{cls.__qualname__}.apply"
    apply.__name__ = f"{cls.__name__}_apply"
    vars(apply)["autograd_function"] = cls  # for backends that look at it
    return apply


class Context:
    """What ``forward`` and ``setup_context`` see as ``ctx``."""

    def __init__(self, needs_input_grad: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad

    def save_for_backward(self, *tensors: object) -> None: ...
    def save_for_forward(self, *tensors: object) -> None: ...
    def mark_dirty(self, *tensors: object) -> None: ...
    def mark_non_differentiable(self, *tensors: object) -> None: ...
    def set_materialize_grads(self, value: bool) -> None: ...


MARKS = {name: f"_{name}" for name in vars(Context) if not name.startswith("_")}
"""Methods of contexts -> the attribute that keeps their arguments."""


def add_mark_rule(name: str, attribute: str) -> None:
    @rule(vars(Context)[name])
    def keep_arguments(trace: Trace, args: Args, kwargs: Kwargs) -> None:
        owner, *values = [force(trace, arg) for arg in args]
        owner.__dict__[attribute] = tuple(values)


for _name, _attribute in MARKS.items():
    add_mark_rule(_name, _attribute)


def stand_in_function(trace: Trace, made: FunctionCall, marks: dict[str, tuple[Any, ...]], outputs: object) -> Any:
    """An autograd function with the same marks and results: it gives the fakes their place in autograd's graph.

    It must hold no fakes: they hold it, in a way that the garbage collector does not see.
    """
    pending = [(marks, outputs)]
    key, owner = id(made), weakref.ref(trace)

    def forward(ctx: Any, *args: Any) -> Any:
        marks, outputs = pending.pop()
        for name in ("mark_dirty", "mark_non_differentiable", "save_for_backward"):
            getattr(ctx, name)(*marks[name])
        for value in marks["set_materialize_grads"]:
            ctx.set_materialize_grads(value)
        return outputs

    def backward(ctx: Any, *gradients: Any) -> Any:
        trace = owner()
        assert trace is not None, "a backward pass over fake tensors after capture"
        return fake_backward(trace, trace.autograd.function_calls[key], ctx, gradients)

    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward), "is_stand_in": True}
    function: Any = type(made.cls.__name__, (torch.autograd.Function,), methods)
    return function.apply


def interpret_forward(trace: Trace, cls: type, context: Context, args: Args) -> object:
    """The fake results of ``forward``; its nodes are dropped, its guards stay."""
    before, state = set(trace.graph.nodes), OutsideState(trace, args)
    try:
        with torch.no_grad():
            outputs = run_forward(trace, cls, context, args)
    except Raised as raised:
        raise trace.fail(
            f"{cls.__qualname__}.forward raises {type(raised.error).__name__}", error=raised.error
        ) from None
    finally:
        drop_nodes(trace, before)
    if state.is_changed(trace):
        raise trace.fail(f"{cls.__qualname__}.forward changes Python objects outside", HINT)
    check_outputs(trace, cls, outputs)
    return outputs


def run_forward(trace: Trace, cls: type, context: Context, args: Args) -> object:
    forward = static_method(trace, cls, "forward")
    setup = static_method(trace, cls, "setup_context")
    if setup is torch.autograd.Function.setup_context:
        return force_outputs(trace, call(trace, forward, (context, *args), {}))
    bound = inspect.signature(forward).bind(*args)  # as apply does
    bound.apply_defaults()
    context.needs_input_grad += (False,) * (len(bound.args) - len(args))
    outputs = force_outputs(trace, call(trace, forward, bound.args, {}))
    call(trace, setup, (context, bound.args, outputs), {})
    return outputs


def static_method(trace: Trace, cls: type, name: str) -> Any:
    raw = class_attribute(trace, cls, name)
    function = raw.__func__ if isinstance(raw, staticmethod) else raw
    if not isinstance(function, types.FunctionType):
        raise trace.fail(f"{cls.__qualname__}.{name} is not a static method written in Python")
    return force(trace, load_attribute(trace, cls, name))


def force_outputs(trace: Trace, outputs: object) -> object:
    outputs = force(trace, outputs)
    return tuple([force(trace, item) for item in outputs]) if type(outputs) is tuple else outputs


def drop_nodes(trace: Trace, before: set[torch.fx.Node]) -> None:
    """Erase the nodes recorded since. New inputs stay; the end of capture drops those without users."""
    for node in reversed(list(trace.graph.nodes)):
        if node not in before and node.op != "placeholder":
            trace.graph.erase_node(node)
    for key, info in list(trace.fakes.infos.items()):
        if is_erased(info.node):
            del trace.fakes.infos[key]


def check_outputs(trace: Trace, cls: type, outputs: object) -> None:
    for item in outputs if type(outputs) is tuple else (outputs,):
        if not isinstance(item, torch.Tensor) and not is_constant(item):
            raise trace.fail(f"{cls.__qualname__}.forward returns a {type(item).__qualname__}")


def check_no_pending_writes(trace: Trace, cls: type) -> None:
    """Break the graph if ``forward``, which runs before pending writes to outside objects, could read these."""
    if pending_writes(trace) and not all(is_closed(vars(klass).get(name)) for klass in cls.__mro__ for name in METHODS):
        raise trace.fail(f"{cls.__qualname__}.apply after changes to objects that its forward might look at", HINT)


METHODS = ("forward", "setup_context")
