"""Hooks that captured code puts on tensors and on nodes of autograd's graph, and the handles that take them off again.

A hook is not traced or guarded: it is rebuilt after the graph has run, so another hook in its place needs no recompile.
The order of registration matters, however: an operation that later changes the tensor moves it to another node of
autograd's graph, and leaves the hook where it was. So a registration is a node of the graph, with a :class:`HookSlot`
as a graph input that stands for the hook:

    slot = HookSlot()
    y, = graph(x, slot)            # in it: register_hook(y, slot)
    hook = …                       # it may close over tensors that the graph computed
    slot.settle(hook)              # now the tensor has the program's own hook, and slot.handle is its handle

Registrations on inputs that the graph does not change are removed from the graph and done after it. So backends do not
see them, and a function that only registers hooks on its arguments has no graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx
from torch.utils.hooks import RemovableHandle

from ..._native import is_instance as isinstance
from ...platform.light_dataclass import dataclass
from ...platform.torch_autograd import FunctionBase, MultiHandle
from ...program.graph_meta import set_hook_slot
from ...program.hook_slots import (
    HookSlot,
    register_hook,
    register_node_hook,
    register_node_prehook,
    register_post_accumulate_grad_hook,
    register_shared_hook,
    retain_grad,
    settle_slots_of_one_hook,
)
from ..guards.source import Made
from ..interpreter.call_rules import rule
from ..interpreter.calls import CALLABLES
from ..shadows.symbolic_numbers import concrete
from ..shadows.tensors import add_placeholder, function_name, prepare
from ..shadows.wrap import force
from ..state.operations import Args, Kwargs, operation
from ..state.trace import Trace
from ..state.values import Raised, TensorInfo
from ..torch.tensor_attributes import guard_flag
from ..torch.torch_calls import handler
from ..writeback.rebuild import Rebuilder
from .hook_handles import removal_lines


@dataclass(eq=False)
class SlotInput:
    """A slot as a graph input."""

    source: Made
    node: torch.fx.Node
    value: HookSlot


@dataclass(eq=False)
class Registration:
    """One hook on one tensor, or a call of ``retain_grad``."""

    function: Callable[..., Any]
    info: TensorInfo
    node: torch.fx.Node
    grad_fn: object  # the tensor's place in autograd's graph
    slot: SlotInput | None = None
    hook: object = None
    handle: RemovableHandle | None = None
    removed: bool = False
    group: Group | None = None

    @property
    def slot_name(self) -> str:
        """The variable of the run function that holds the slot."""
        assert self.slot is not None
        return self.slot.source.name


@dataclass(eq=False)
class Group:
    """A hook that several tensors share."""

    hook: object
    mode: str
    members: list[Registration]


def add_registration(
    trace: Trace, function: Callable[..., Any], info: TensorInfo, hook: object = None
) -> RemovableHandle | None:
    """Note a registration at this place of the graph; gives the handle's shadow."""
    if trace.progress.key_method_depth:
        raise trace.fail("a hook registered inside a __hash__ or __eq__ that a dictionary or set is going to call")
    slot = add_slot(trace, function) if function is not retain_grad else None
    node = trace.graph.call_function(function, (info.node,) if slot is None else (info.node, slot.node))
    made = Registration(function, info, node, info.fake.grad_fn, slot, hook)
    if slot is not None:
        made.handle = object.__new__(RemovableHandle)
        trace.outside.foreign[id(made.handle)] = made.handle  # it may not be read
    made.node.meta["stack_trace"] = trace.stack_trace()
    trace.hooks.registrations[id(made.handle or made)] = made
    return made.handle


def add_slot(trace: Trace, function: Callable[..., Any]) -> SlotInput:
    source = Made(f"_k_hook{len(trace.hooks.registrations)}")  # generated names end in _ and a number
    slot = SlotInput(source, add_placeholder(trace, source), HookSlot())
    slot.node.meta["example_value"] = slot.value
    set_hook_slot(slot.node, function.__name__)
    trace.inputs.items.append(slot)
    return slot


def _register(method: Callable[..., Any], function: Callable[..., Any]) -> None:
    @handler(method)
    def register(trace: Trace, args: Args, kwargs: Kwargs) -> object:
        given = {**dict(zip(("self", "hook"), args, strict=False)), **kwargs}
        tensor = force(trace, given.get("self"))
        if not isinstance(tensor, torch.Tensor) or given.keys() != {"self", "hook"} or len(args) > 2:
            raise trace.fail(f"{function_name(method)} with these arguments")
        info = trace.tensor_info(tensor)
        check_like_eager(trace, info, method, given["hook"])
        return add_registration(trace, function, info, given["hook"])


def check_like_eager(trace: Trace, info: TensorInfo, method: Callable[..., Any], *args: object) -> None:
    """Raise eager's own error, by calling the method on a real tensor of the same kind (leaf or not)."""
    for_leaves = method is torch.Tensor.register_post_accumulate_grad_hook
    if for_leaves and info.source is not None:
        guard_flag(trace, info, "is_leaf")
    if info.fake.requires_grad and (info.fake.is_leaf or not for_leaves):
        return
    with torch.enable_grad(), torch.inference_mode(False):
        probe = torch.empty(0, requires_grad=info.fake.requires_grad)
        if not info.fake.is_leaf:
            probe = probe.view_as(probe)
        try:
            method(probe, *args)
        except Exception as error:
            raise Raised(error.with_traceback(None)) from None


_register(torch.Tensor.register_hook, register_hook)
_register(torch.Tensor.register_post_accumulate_grad_hook, register_post_accumulate_grad_hook)


@handler(torch.Tensor.retain_grad)
def rule_retain_grad(trace: Trace, args: Args, kwargs: Kwargs) -> None:
    info = trace.tensor_info(force(trace, args[0]))
    check_like_eager(trace, info, torch.Tensor.retain_grad)
    add_registration(trace, retain_grad, info)
    info.fake.retain_grad()


@rule(torch.autograd.graph.register_multi_grad_hook)
def rule_multi_grad_hook(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    """``register_multi_grad_hook(tensors, hook, mode=…)``. Arguments that torch refuses break the graph."""
    given = {**dict(zip(("tensors", "fn"), args, strict=False)), **kwargs}
    mode = concrete(trace, given.pop("mode", "all"))
    tensors = prepare(trace, given.get("tensors"))
    plain = isinstance(tensors, (list, tuple)) and all(isinstance(each, torch.Tensor) for each in tensors)
    if not plain or len(args) > 2 or given.keys() != {"tensors", "fn"} or mode not in ("all", "any"):
        raise trace.fail("register_multi_grad_hook with these arguments")
    if mode == "any":
        tensors = [tensor for tensor in tensors if tensor.requires_grad]
    if not all(tensor.requires_grad for tensor in tensors):
        raise trace.fail("register_multi_grad_hook on a tensor that requires no gradient")
    handles = [add_registration(trace, register_shared_hook, trace.tensor_info(tensor)) for tensor in tensors]
    group = Group(given["fn"], mode, [trace.hooks.registrations[id(handle)] for handle in handles])
    for member in group.members:
        member.group = group
    shadow = object.__new__(MultiHandle)
    shadow.handles = tuple([handle for handle in handles if handle is not None])
    return shadow


NODE_REGISTRATIONS = {"register_hook": register_node_hook, "register_prehook": register_node_prehook}


class NodeMethod:
    """A method of a node of autograd's graph, about to be called."""

    unbuildable = True

    def __init__(self, node: object, name: str) -> None:
        self.node: Any = node
        self.name = name


@operation
def load_grad_fn(trace: Trace, info: TensorInfo) -> object:
    """``tensor.grad_fn`` of a tensor made by the graph: the fake's own node stands for it."""
    node = info.fake.grad_fn
    trace.outside.foreign[id(node)] = node
    trace.autograd.nodes.setdefault(id(node), info)
    trace.mark_unbuildable(node)
    return node


@operation
def load_from_node(trace: Trace, node: object, name: str) -> object:
    """Attributes of a node that the program may read. The name is known only for classes of the program."""
    written = isinstance(node, FunctionBase)
    if name in NODE_REGISTRATIONS or (name == "name" and written):
        return NodeMethod(node, name)
    raise trace.fail(f"attribute {name!r} of a node of autograd's graph", "read it outside the compiled function")


def call_node_method(trace: Trace, method: NodeMethod, args: Args, kwargs: Kwargs) -> object:
    info = trace.autograd.nodes[id(method.node)]
    if kwargs or len(args) != (method.name != "name"):
        raise trace.fail(f"{method.name} of a node of autograd's graph with these arguments")
    if method.name == "name":
        return method.node.name()
    if info.fake.grad_fn is not method.node:
        raise trace.fail("a hook on a node of autograd's graph whose tensor was changed in place since")
    return add_registration(trace, NODE_REGISTRATIONS[method.name], info, args[0])


CALLABLES[NodeMethod] = call_node_method


def write_registrations(r: Rebuilder) -> None:
    """Add the lines of the run function that register and remove hooks, after all others."""
    trace = r.trace
    after: list[str] = []  # right after the graph
    settled: list[str] = []
    for registration in list(trace.hooks.registrations.values()):
        slot = registration.slot
        if slot is not None:
            r.reads.append(f"{slot.source.name} = {r.bind(HookSlot, 'HookSlot')}()")
            settled += slot_lines(r, registration)
        if runs_after_graph(trace, registration):
            trace.graph.erase_node(registration.node)
            arguments = [r.value(registration.info.fake)] + ([slot.source.name] if slot is not None else [])
            after.append(f"{r.bind(registration.function, registration.function.__name__)}({', '.join(arguments)})")
    settled += removal_lines(r)
    r.run_later()
    r.lines[:0] = after
    r.effects[:0] = settled


def slot_lines(r: Rebuilder, registration: Registration) -> list[str]:
    """The lines that replace a slot by its hook, or remove it."""
    group, name = registration.group, registration.slot_name
    if group is None:
        return [f"{name}.remove()" if registration.removed else f"{name}.settle({r.value(registration.hook)})"]
    if registration is not group.members[-1]:
        return []
    names = [member.slot_name for member in group.members]
    function = r.bind(settle_slots_of_one_hook, "settle_slots_of_one_hook")
    settle = f"{function}({r.value(group.hook)}, {group.mode!r}, {', '.join(names)})"
    removed = [member.removed for member in group.members]
    return [settle, *(f"{name}.remove()" for name, gone in zip(names, removed, strict=True) if gone)]


def runs_after_graph(trace: Trace, registration: Registration) -> bool:
    """Whether a registration may be done after the graph: on an input whose history has not changed."""
    info = registration.info
    if info.source is None or id(info.fake) in trace.effects.changed:
        return False
    return info.fake.grad_fn is registration.grad_fn and info.fake.requires_grad


def undo_lines(trace: Trace) -> list[str]:
    """The lines that remove slots after the graph has raised."""
    slots = [item for item in trace.inputs.items if isinstance(item, SlotInput)]
    return [f"{slot.source.name}.remove()" for slot in slots if slot.node.users]
