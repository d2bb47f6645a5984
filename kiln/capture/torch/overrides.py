"""``__torch_function__`` in captured code: tensor subclasses, tensor-like objects, torch-function modes.

Overrides are Python code of the program and are interpreted; the graph holds only what they come down to, and runs with
overrides switched off, so that none is called twice. While Kiln traces, modes that are active outside are taken off
torch's stack and kept in ``trace.overrides.modes``, where modes pushed by the program go as well.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.fx
from torch import is_anomaly_enabled  # the program may put another function in its place
from torch.overrides import TorchFunctionMode

from ..._native import is_instance as isinstance
from ...platform.python_objects import HEAP_TYPE
from ...platform.torch_autograd import (
    forward_mode_level,
    pop_saved_tensors_hooks,
    push_saved_tensors_hooks,
    top_saved_tensors_hooks,
)
from ...platform.torch_devices import device_constructors
from ...platform.torch_dispatch import (
    DisableTorchFunction,
    DisableTorchFunctionSubclass,
    count_dispatch_modes,
    count_function_modes,
    disabled_torch_function,
    function_mode_at,
    is_torch_function_all_disabled,
    is_torch_function_enabled,
    is_torch_function_mode_enabled,
    pop_function_mode,
    push_function_mode,
)
from ...platform.torch_functions import tracing_state
from ...platform.torch_functorch import innermost_transform
from ...platform.torch_operators import NATIVE_MODULES, VARIABLE_FUNCTIONS
from ..guards.source import Identity, Pinned, Source, source
from ..interpreter.native_calls import rule
from ..shadows.tensor_effects import is_named_in_place
from ..shadows.wrap import force
from ..state.operations import operation
from ..state.trace import Trace
from ..state.values import Lazy, TensorInfo

LEAF_MODULES = frozenset({"torch.functional", "torch.nn.functional", "torch._tensor", "torch._C._nn", "torch.special"})

NATIVE_FUNCTIONS: frozenset[object] = frozenset(
    value
    for owner in (*NATIVE_MODULES, VARIABLE_FUNCTIONS)
    for name in dir(owner)
    if isinstance(value := getattr(owner, name), types.BuiltinFunctionType) and not name.startswith("__")
)


DEFAULT_OVERRIDE = torch.Tensor.__torch_function__.__func__  # type: ignore[attr-defined]
DISABLED = disabled_torch_function

ENABLED, SUBCLASSES_OFF, ALL_OFF = 0, 1, 2  # how much of __torch_function__ is switched off


def current_level() -> int:
    """How much of ``__torch_function__`` is switched off in this thread."""
    if is_torch_function_all_disabled():
        return ALL_OFF
    return ENABLED if is_torch_function_enabled() else SUBCLASSES_OFF


@operation
def is_overriding(kind: type) -> bool:
    """Whether tensors (or objects) of a class have a say in the operations on them."""
    method = getattr(kind, "__torch_function__", None)
    return method is not None and method is not DISABLED and kind is not torch.Tensor


# -- deciding -------------------------------------------------------------------------------------------------------


def override(trace: Trace, function: object, args: tuple, kwargs: dict) -> tuple[object] | None:
    """What an override makes of a call, in a tuple; None where there is none and the operation itself is meant."""
    level = trace.overrides.level
    if level == ALL_OFF or not (
        trace.overrides.modes or trace.overrides.has_overriding or has_like(args) or has_like(kwargs.values())
    ):
        return None
    owners = overloaded(trace, (args, kwargs)) if level == ENABLED else []
    if not owners and not trace.overrides.modes:
        return None
    from ..interpreter.calls import call

    guard_level(trace)
    kinds = tuple(kind_of(trace, owner) for owner in owners)
    if trace.overrides.modes:
        mode = force(trace, trace.overrides.modes.pop())
        try:
            result = call(trace, load_override(trace, mode), (function, kinds, args, kwargs), {})
        finally:
            trace.overrides.modes.append(mode)
        if force(trace, result) is not NotImplemented:
            return (result,)
    for owner in owners:
        result = call(trace, load_override(trace, owner), (function, kinds, args, kwargs), {})
        if force(trace, result) is not NotImplemented:
            return (result,)
    raise trace.fail(f"no override takes {getattr(function, '__name__', function)}")


def has_like(values: object) -> bool:
    """Whether something with an override that was not met yet is among the arguments, or in a list among them."""
    for value in values:  # type: ignore[attr-defined]
        if type(value) is Lazy:
            value = value.value if value.done else value.real
        kind = type(value)
        if kind is list or kind is tuple:
            if has_like(value):
                return True
        elif kind.__flags__ & HEAP_TYPE and is_overriding(kind):
            return True
    return False


def load_override(trace: Trace, owner: object) -> object:
    from ..interpreter.attributes import load_attribute

    place = trace.tensor_info(owner).kind if isinstance(owner, torch.Tensor) else owner
    return force(trace, load_attribute(trace, place, "__torch_function__"))


def kind_of(trace: Trace, value: object) -> type:
    return trace.tensor_info(value).kind if isinstance(value, torch.Tensor) else type(value)


def overloaded(trace: Trace, arguments: object) -> list[object]:
    """Arguments with an override, one of each class, subclasses before their bases, as torch asks them."""
    found: list[object] = []
    for value in overriding_values(trace, arguments):
        kind = kind_of(trace, value)
        kinds = [kind_of(trace, other) for other in found]
        if kind in kinds:
            continue
        place = next((index for index, other in enumerate(kinds) if issubclass(kind, other)), len(found))
        found.insert(place, value)
    return found


def overriding_values(trace: Trace, value: object) -> Iterator[object]:
    value = force(trace, value)
    if isinstance(value, torch.Tensor):
        if is_overriding(trace.tensor_info(value).kind):
            yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from overriding_values(trace, item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from overriding_values(trace, item)
    elif not isinstance(value, type) and is_overriding(type(value)):
        yield value


def guard_level(trace: Trace) -> None:
    if not any(words == LEVEL_WORDS for words, _ in trace.guards.extras):
        expected = trace.overrides.outer_level
        trace.guards.extras.append((LEVEL_WORDS, lambda: current_level() == expected))


LEVEL_WORDS = "__torch_function__ switched on or off as before"


# -- the default ----------------------------------------------------------------------------------------------------


@rule(DEFAULT_OVERRIDE)
def rule_default_override(trace, args, kwargs):
    names = ("cls", "func", "types", "args", "kwargs")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    values = {name: force(trace, value) for name, value in given.items()}
    cls, kinds = values["cls"], [force(trace, kind) for kind in values["types"]]
    if not all(issubclass(cls, kind) for kind in kinds):
        return NotImplemented
    arguments = tuple(values.get("args") or ())
    return default_override(trace, cls, values["func"], arguments, dict(values.get("kwargs") or {}))


def default_override(trace: Trace, cls: type, function: object, args: tuple, kwargs: dict) -> object:
    """``Tensor.__torch_function__``: run the function, and give its results the subclass."""
    from ..interpreter.calls import call

    with level(trace, SUBCLASSES_OFF):
        result = force(trace, call(trace, function, args, kwargs))
    if function in torch.overrides.get_default_nowrap_functions():
        return result
    return convert(trace, result, cls)


@contextlib.contextmanager
def level(trace: Trace, value: int) -> Iterator[None]:
    before = trace.overrides.level
    trace.overrides.level = max(before, value)
    try:
        yield
    finally:
        trace.overrides.level = before


def convert(trace: Trace, result: object, cls: type) -> object:
    if isinstance(result, torch.Tensor):
        return result if issubclass(trace.tensor_info(result).kind, cls) else as_subclass(trace, result, cls)
    if isinstance(result, (tuple, list)):
        return type(result)(convert(trace, force(trace, item), cls) for item in result)
    return result


def as_subclass(trace: Trace, tensor: torch.Tensor, cls: type) -> object:
    """The same tensor as an instance of a subclass."""
    from ..shadows.tensors import constant_node

    trace.overrides.has_overriding = True
    info = trace.tensor_info(tensor)
    node = trace.graph.call_function(torch.Tensor.as_subclass, (info.node, constant_node(trace, cls)))
    node.meta["stack_trace"] = trace.stack_trace()
    with trace.fakes.mode:
        alias = torch.ops.aten.alias.default(tensor)
    node.meta["example_value"] = alias
    return trace.add_tensor(TensorInfo(alias, node, cls))


def as_subclass_handler(trace: Trace, args: tuple, kwargs: dict) -> object:
    """``tensor.as_subclass(cls)``."""
    tensor, cls = (force(trace, arg) for arg in args)
    kind = force(trace, cls)
    if kwargs or not isinstance(kind, type) or not issubclass(kind, torch.Tensor):
        raise trace.fail("as_subclass with these arguments")
    from ..shadows.tensors import plain_subclass

    if not plain_subclass(kind):
        raise trace.fail(f"as_subclass to {kind.__qualname__}, which defines __torch_dispatch__")
    return as_subclass(trace, tensor, kind)


# -- what operators tell --------------------------------------------------------------------------------------------


class Told(BaseException):
    """Thrown by the probe: the function and arguments that an override is called with."""


class Probe(TorchFunctionMode):
    """Finds out what an operator on tensors is called when it comes to overrides."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        raise Told(func, args)


@functools.cache
def announced(function: Callable, tensors: tuple[bool, ...]) -> tuple[object, tuple[int, ...]] | None:
    """The function an override is told for an operator with tensors at these places, and the order of its operands."""
    operands = [torch.empty(1) if flag else number for number, flag in enumerate(tensors)]
    try:
        with Probe():
            function(*operands)
    except TypeError:
        return None
    except Told as told:
        func, args = told.args
        return func, tuple(next(index for index, operand in enumerate(operands) if operand is arg) for arg in args)
    return None


@operation
def operator_override(trace: Trace, function: object, operands: tuple) -> tuple[object] | None:
    """What an override makes of an operator."""
    if not (trace.overrides.modes or trace.overrides.has_overriding) or trace.overrides.level == ALL_OFF:
        return None
    told = announced(function, tuple(isinstance(operand, torch.Tensor) for operand in operands))  # type: ignore[arg-type]
    if told is None:
        raise trace.fail(f"the operator {function} under __torch_function__")
    return override(trace, told[0], tuple(operands[index] for index in told[1]), {})


@operation
def attribute_override(trace: Trace, tensor: torch.Tensor, raw: object) -> tuple[object] | None:
    """What an override makes of reading an attribute that torch defines."""
    if not (trace.overrides.modes or trace.overrides.has_overriding) or type(raw) is not types.GetSetDescriptorType:
        return None
    return override(trace, raw.__get__, (tensor,), {})  # type: ignore[attr-defined]


# -- modes ----------------------------------------------------------------------------------------------------------


@source
class ModeAt(Source):
    """A torch-function mode that is active when the compiled function is called."""

    base: Source
    index: int

    def render(self, base, bind):
        return f"{base}({self.index})"

    def describe(self):
        return f"torch-function mode {self.index}"


@contextlib.contextmanager
def overrides_aside() -> Iterator[Outside]:
    """While Kiln looks at real tensors no override of the program is called; gives what there was outside."""
    level = current_level()
    modes = [pop_function_mode() for _ in range(count_function_modes())][::-1]
    try:
        with DisableTorchFunctionSubclass(), saved_tensors_hooks_aside():
            yield Outside(modes, level)
    finally:
        for mode in modes:
            push_function_mode(mode)


@contextlib.contextmanager
def saved_tensors_hooks_aside() -> Iterator[None]:
    """Hooks on what autograd saves are called when the graph runs, not for fake tensors."""
    hooks = []
    while (pair := top_saved_tensors_hooks(True)) is not None:
        hooks.append(pair)
        pop_saved_tensors_hooks()
    try:
        yield
    finally:
        for pack, unpack in reversed(hooks):
            push_saved_tensors_hooks(pack, unpack)


def is_intercepted() -> bool:
    """Whether operations now mean something that fakes cannot tell: dispatch modes, functorch's transforms,
    forward-mode derivatives (fakes have no tangents), or that they are written down: by ``torch.jit.trace``, or, with
    the program's own lines, by anomaly mode."""
    transformed = innermost_transform() is not None or forward_mode_level() >= 0
    noted = tracing_state() is not None or is_anomaly_enabled()
    return transformed or noted or bool(count_dispatch_modes())


@dataclass(eq=False)
class Outside:
    """Torch-function modes that are active, and how much of ``__torch_function__`` is switched off."""

    modes: list[object]
    level: int


def enter_outer_modes(trace: Trace, outside: Outside) -> None:
    """Start a trace with the modes that are active outside."""
    modes = outside.modes
    base = Pinned(Identity(function_mode_at))
    trace.overrides.modes = [Lazy(mode, ModeAt(base, index)) for index, mode in enumerate(modes)]
    trace.overrides.outer_modes = list(trace.overrides.modes)
    trace.overrides.level = trace.overrides.outer_level = outside.level
    if modes:
        guard_level(trace)


def modes_changed(trace: Trace) -> object | None:
    """The first mode that the program pushed and left on the stack, or something, if it popped more than it pushed."""
    now, before = trace.overrides.modes, trace.overrides.outer_modes
    for index in range(max(len(now), len(before))):
        if index >= len(now):
            return before[index]
        if index >= len(before) or force(trace, now[index]) is not force(trace, before[index]):
            return now[index]
    return None


def without_overrides(graph: Callable, conversions: dict[int, type]) -> Callable:
    """A graph of what overrides came down to runs without them, on plain tensors: results get their classes here."""

    def run(*inputs):
        with DisableTorchFunction():
            results = graph(*inputs)
            if not conversions:
                return results
            return [
                value.as_subclass(conversions[place]) if place in conversions else value
                for place, value in enumerate(results)
            ]

    return run


def take_out_conversions(trace: Trace, outputs: list[torch.fx.Node]) -> None:
    """Leave the classes of tensors to `without_overrides` where no operation can tell.

    With overrides off, operations do not care what class a tensor has, so a backend need not see it.
    """
    graph = trace.graph
    for node in reversed(graph.find_nodes(op="call_function", target=torch.Tensor.as_subclass)):
        tensor, cls = node.args
        inside = tensor.op != "placeholder" and all(is_indifferent(user) for user in node.users)
        places = [place for place, output in enumerate(outputs) if output is node]
        if not inside:
            continue
        for place in places:
            outputs[place] = tensor
            trace.overrides.conversions.setdefault(place, trace.inputs.constants[cls.target])
        node.replace_all_uses_with(tensor)
        graph.erase_node(node)
        if not cls.users:
            graph.erase_node(cls)


def is_indifferent(node: torch.fx.Node) -> bool:
    """Whether an operation only computes: what changes a tensor, or hangs something on it, needs the very object."""

    if node.op == "call_method":
        return not is_named_in_place(node.target) and node.target not in ("register_hook", "retain_grad")
    function = node.target
    own = function in NATIVE_FUNCTIONS or getattr(function, "__module__", None) in (*LEAF_MODULES, "_operator")
    known = own or function in (getattr, torch.Tensor.as_subclass)
    return known and not is_named_in_place(function.__name__)


@rule(push_function_mode)
def rule_push(trace, args, kwargs):
    mode = force(trace, args[0])
    trace.mark_unbuildable(mode)
    trace.overrides.modes.append(mode)


@rule(pop_function_mode)
def rule_pop(trace, args, kwargs):
    if len(trace.overrides.modes) <= len(trace.overrides.outer_modes):
        raise trace.fail("leaving a torch-function mode that was entered outside")
    return trace.overrides.modes.pop()


@rule(count_function_modes)
def rule_length(trace, args, kwargs):
    return len(trace.overrides.modes)


@rule(function_mode_at)
def rule_mode_at(trace, args, kwargs):
    return trace.overrides.modes[force(trace, args[0])]


@rule(device_constructors)
def rule_device_constructors(trace, args, kwargs):
    return device_constructors()


# -- switches -------------------------------------------------------------------------------------------------------


class Switch:
    """Stands for ``torch._C.DisableTorchFunction…`` while tracing."""

    unbuildable = True

    def __init__(self, level: int):
        self.level = level
        self.before = ENABLED

    def __enter__(self): ...

    def __exit__(self, *error): ...


@rule(DisableTorchFunctionSubclass)
def rule_subclasses_off(trace, args, kwargs):
    return new_switch(trace, SUBCLASSES_OFF)


@rule(DisableTorchFunction)
def rule_all_off(trace, args, kwargs):
    return new_switch(trace, ALL_OFF)


def new_switch(trace: Trace, value: int) -> Switch:
    switch = Switch(value)
    trace.mark_unbuildable(switch)
    return switch


@rule(Switch.__enter__)
def rule_enter(trace, args, kwargs):
    switch = force(trace, args[0])
    switch.before = trace.overrides.level
    trace.overrides.level = max(switch.level, switch.before)


@rule(Switch.__exit__)
def rule_exit(trace, args, kwargs):
    trace.overrides.level = force(trace, args[0]).before


@rule(is_torch_function_enabled)
def rule_enabled(trace, args, kwargs):
    guard_level(trace)
    return trace.overrides.level == ENABLED


@rule(is_torch_function_mode_enabled)
def rule_mode_enabled(trace, args, kwargs):
    guard_level(trace)
    return bool(trace.overrides.modes) and trace.overrides.level != ALL_OFF


# -- torch.overrides ------------------------------------------------------------------------------------------------


@rule(
    torch.overrides.has_torch_function,
    torch.overrides.has_torch_function_unary,
    torch.overrides.has_torch_function_variadic,
)
def rule_has_torch_function(trace, args, kwargs):
    if trace.overrides.level == ALL_OFF:
        return False
    return bool(trace.overrides.modes) or (trace.overrides.level == ENABLED and bool(overloaded(trace, args)))


@rule(torch.overrides.handle_torch_function)
def rule_handle(trace, args, kwargs):
    function, relevant, *rest = args
    result = override(trace, force(trace, function), tuple(rest), kwargs)
    if result is None:
        raise trace.fail("handle_torch_function without anything to handle it")
    return result[0]


@rule(torch.overrides.is_tensor_like)
def rule_tensor_like(trace, args, kwargs):
    value = force(trace, args[0])
    return isinstance(value, torch.Tensor) or hasattr(type(value), "__torch_function__")
