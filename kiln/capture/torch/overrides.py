"""``__torch_function__`` in captured code: which override a call goes to, and the default.

Overrides are Python code of the program and are interpreted; the graph holds only what they come down to, and runs with
overrides switched off, so that none is called twice. Modes and switches are in ``override_modes.py``.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.fx
from torch.overrides import TorchFunctionMode

from ..._native import is_instance as isinstance
from ...platform.python_objects import HEAP_TYPE
from ...platform.torch_devices import device_constructors
from ...platform.torch_dispatch import disabled_torch_function
from ..interpreter.attributes import load_attribute
from ..interpreter.call_rules import rule
from ..interpreter.calls import call
from ..shadows.wrap import force
from ..state.operations import Args, Kwargs, operation
from ..state.trace import Trace
from ..state.values import Lazy
from .override_modes import ALL_OFF, ENABLED, SUBCLASSES_OFF, at_level, guard_level
from .subclass_conversions import convert

_TENSOR: Any = torch.Tensor
DEFAULT_OVERRIDE = _TENSOR.__torch_function__.__func__
DISABLED = disabled_torch_function


@operation
def is_overriding(kind: type) -> bool:
    """Whether a class has a ``__torch_function__`` of its own."""
    method = getattr(kind, "__torch_function__", None)
    return method is not None and method is not DISABLED and kind is not torch.Tensor


def override(trace: Trace, function: object, args: Args, kwargs: Kwargs) -> tuple[object] | None:
    """The result of an override for a call, in a tuple; None where none applies."""
    level = trace.overrides.level
    if level == ALL_OFF or not (
        trace.overrides.modes
        or trace.overrides.has_overriding
        or has_override_argument(args)
        or has_override_argument(kwargs.values())
    ):
        return None
    owners = overriding_arguments(trace, (args, kwargs)) if level == ENABLED else []
    if not owners and not trace.overrides.modes:
        return None

    guard_level(trace)
    kinds = tuple(class_of(trace, owner) for owner in owners)
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


def has_override_argument(values: Any) -> bool:
    """Whether an argument, or an element of a list among them, has an override."""
    for value in values:
        if type(value) is Lazy:
            value = value.value if value.done else value.real
        kind = type(value)
        if kind is list or kind is tuple:
            if has_override_argument(value):
                return True
        elif kind.__flags__ & HEAP_TYPE and is_overriding(kind):
            return True
    return False


def load_override(trace: Trace, owner: object) -> object:
    place = trace.tensor_info(owner).kind if isinstance(owner, torch.Tensor) else owner
    return force(trace, load_attribute(trace, place, "__torch_function__"))


def class_of(trace: Trace, value: object) -> type:
    return trace.tensor_info(value).kind if isinstance(value, torch.Tensor) else type(value)


def overriding_arguments(trace: Trace, arguments: object) -> list[object]:
    """Arguments with an override, one of each class, subclasses before their bases, in torch's order."""
    found: list[object] = []
    for value in overriding_values(trace, arguments):
        kind = class_of(trace, value)
        kinds = [class_of(trace, other) for other in found]
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


@rule(DEFAULT_OVERRIDE)
def rule_default_override(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    names = ("cls", "func", "types", "args", "kwargs")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    values = {name: force(trace, value) for name, value in given.items()}
    cls, kinds = values["cls"], [force(trace, kind) for kind in values["types"]]
    if not all(issubclass(cls, kind) for kind in kinds):
        return NotImplemented
    arguments = tuple(values.get("args") or ())
    return default_override(trace, cls, values["func"], arguments, dict(values.get("kwargs") or {}))


def default_override(trace: Trace, cls: type, function: object, args: Args, kwargs: Kwargs) -> object:
    """``Tensor.__torch_function__``: run the function, and give its results the subclass."""
    with at_level(trace, SUBCLASSES_OFF):
        result = force(trace, call(trace, function, args, kwargs))
    if function in torch.overrides.get_default_nowrap_functions():
        return result
    return convert(trace, result, cls)


class ProbeResult(BaseException):
    """Thrown by the probe: the function and arguments that an override is called with."""


class Probe(TorchFunctionMode):
    """Finds out which function an operator on tensors passes to overrides."""

    def __torch_function__(self, func: Any, types: Any, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        raise ProbeResult(func, args)


@functools.cache
def override_target(function: Callable[..., Any], tensors: tuple[bool, ...]) -> tuple[object, tuple[int, ...]] | None:
    """The function that an operator with tensors at these places passes to overrides, and the order of its operands."""
    operands = [torch.empty(1) if flag else number for number, flag in enumerate(tensors)]
    try:
        with Probe():
            function(*operands)
    except TypeError:
        return None
    except ProbeResult as found:
        func, args = found.args
        return func, tuple(next(index for index, operand in enumerate(operands) if operand is arg) for arg in args)
    return None


@operation
def operator_override(trace: Trace, function: object, operands: tuple[Any, ...]) -> tuple[object] | None:
    """The result of an override for an operator, in a tuple; None where none applies."""
    if not (trace.overrides.modes or trace.overrides.has_overriding) or trace.overrides.level == ALL_OFF:
        return None
    target = override_target(function, tuple(isinstance(operand, torch.Tensor) for operand in operands))
    if target is None:
        raise trace.fail(f"the operator {function} under __torch_function__")
    return override(trace, target[0], tuple(operands[index] for index in target[1]), {})


@operation
def attribute_override(trace: Trace, tensor: torch.Tensor, raw: object) -> tuple[object] | None:
    """The result of an override for reading an attribute of torch, in a tuple; None where none applies."""
    if not (trace.overrides.modes or trace.overrides.has_overriding) or type(raw) is not types.GetSetDescriptorType:
        return None
    return override(trace, raw.__get__, (tensor,), {})


@rule(device_constructors)
def rule_device_constructors(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    return device_constructors()


@rule(
    torch.overrides.has_torch_function,
    torch.overrides.has_torch_function_unary,
    torch.overrides.has_torch_function_variadic,
)
def rule_has_torch_function(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    if trace.overrides.level == ALL_OFF:
        return False
    return bool(trace.overrides.modes) or (trace.overrides.level == ENABLED and bool(overriding_arguments(trace, args)))


@rule(torch.overrides.handle_torch_function)
def rule_handle(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    function, relevant, *rest = args
    result = override(trace, force(trace, function), tuple(rest), kwargs)
    if result is None:
        raise trace.fail("handle_torch_function without anything to handle it")
    return result[0]


@rule(torch.overrides.is_tensor_like)
def rule_tensor_like(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    value = force(trace, args[0])
    return isinstance(value, torch.Tensor) or hasattr(type(value), "__torch_function__")
