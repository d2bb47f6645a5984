"""The state of torch in captured code: grad mode, autocast, default dtype, inference mode, blocks of the profiler.

A setter runs at once, so that what follows is traced in that state, and again as a node of the graph.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import is_grad_enabled  # the program may put another function in its place

from ... import operator_functions as operator
from ..._native import is_instance as isinstance
from ...platform.torch_autograd import InferenceModeGuard, set_grad_enabled
from ...platform.torch_functions import native_functions
from ...program.inference_mode import enter_inference_mode, leave_inference_mode
from ..interpreter.call_rules import rule
from ..shadows.symbolic_numbers import concrete
from ..shadows.tensors import prepare, to_nodes
from ..shadows.wrap import force
from ..state.exceptions import call_for_program
from ..state.operations import Args, Kwargs
from ..state.trace import Trace
from ..state.values import Opaque
from .torch_calls import handler


def _present(names: str) -> list[object]:
    return [getattr(torch, name) for name in names.split() if hasattr(torch, name)]


AUTOCAST_SETTERS = (
    "set_autocast_enabled set_autocast_dtype set_autocast_cache_enabled autocast_increment_nesting "
    "autocast_decrement_nesting clear_autocast_cache "
)
STATE_SETTERS = [
    *native_functions(*AUTOCAST_SETTERS.split(), "_set_grad_enabled", "_set_deterministic_algorithms"),
    *native_functions("set_flush_denormal", "_set_default_dtype"),
    *_present(AUTOCAST_SETTERS + "set_autocast_cpu_enabled set_autocast_cpu_dtype set_autocast_gpu_dtype"),
]
AUTOCAST_GETTERS = "is_autocast_enabled get_autocast_dtype is_autocast_cache_enabled _is_autocast_available "
STATE_GETTERS = [
    *_present(
        AUTOCAST_GETTERS + "is_grad_enabled is_inference_mode_enabled get_default_dtype is_autocast_available "
        "are_deterministic_algorithms_enabled is_deterministic_algorithms_warn_only_enabled is_autocast_cpu_enabled "
        "get_autocast_cpu_dtype get_autocast_gpu_dtype is_anomaly_enabled get_num_threads"
    ),
    *native_functions(*AUTOCAST_GETTERS.split(), "_get_tracing_state", "_get_privateuse1_backend_name"),
    *native_functions("_get_default_device", "_is_any_autocast_enabled", "_accelerator_getAccelerator"),
    *native_functions("_cuda_getDeviceCount"),  # which torch asks its driver once in a process
]
STATE_QUERIES = {
    name: value
    for name, value in list(vars(torch).items())
    if name.startswith(("is_", "are_", "get_")) and callable(value)
}


def state_queries_are_replaced() -> bool:
    """Whether a program has put another function in the place of ``torch.is_grad_enabled`` or the like.

    Fake tensors and torch's context managers use these names too, so meanwhile calls run in eager.
    """
    return not all(map(operator.is_, map(torch.__dict__.get, STATE_QUERIES), STATE_QUERIES.values()))


def _state_setter(function: Any) -> None:
    @rule(function)
    def set_state(trace: Trace, args: Args, kwargs: Kwargs) -> object:
        """Set the state now, so that what follows is traced in it, and again in the graph."""
        args = tuple([concrete(trace, arg) for arg in args])
        kwargs = {key: concrete(trace, value) for key, value in kwargs.items()}
        if function is set_grad_enabled and args == (is_grad_enabled(),):
            return None  # no change; the current state is guarded
        result = call_for_program(trace, function, *args, **kwargs)
        trace.graph.call_function(function, args, kwargs)
        trace.switches.changed = True
        return result


def _state_getter(function: Any) -> None:
    @rule(function)
    def get_state(trace: Trace, args: Args, kwargs: Kwargs) -> object:
        args = tuple([concrete(trace, arg) for arg in args])
        kwargs = {key: concrete(trace, value) for key, value in kwargs.items()}
        return call_for_program(trace, function, *args, **kwargs)


for _function in STATE_SETTERS:
    _state_setter(_function)
for _function in STATE_GETTERS:
    _state_getter(_function)


@handler(torch.ops.profiler._record_function_enter_new, torch.ops.profiler._record_function_enter)
def enter_record_function(trace: Trace, args: Args, kwargs: Kwargs) -> object:
    """``with record_function(name)``: marks the block when the graph runs; its handle is a value of the graph."""
    node = trace.graph.call_function(
        torch.ops.profiler._record_function_enter_new, to_nodes(trace, prepare(trace, args))
    )
    return Opaque(node)


@handler(torch.ops.profiler._record_function_exit._RecordFunction)
def leave_record_function(trace: Trace, args: Args, kwargs: Kwargs) -> None:
    opaque = force(trace, args[0])
    if not isinstance(opaque, Opaque):
        raise trace.fail("leaving a record_function block that was entered outside")
    trace.graph.call_function(torch.ops.profiler._record_function_exit._RecordFunction, (opaque.node,))


@rule(torch.device.__enter__, torch.device.__exit__)
def rule_default_device(trace: Trace, args: Args, kwargs: Kwargs) -> None:
    """Entering a device activates a torch-function mode: left to eager, between two graphs."""
    raise trace.fail("`with torch.device(…)`", "pass device= to the functions that make tensors")


@rule(torch.inference_mode.__enter__)
def rule_enter_inference(trace: Trace, args: Args, kwargs: Kwargs) -> None:
    owner = force(trace, args[0])
    flag = concrete(trace, owner.__dict__["mode"])
    owner.__dict__["_inference_mode_context"] = Opaque(trace.graph.call_function(enter_inference_mode, (flag,)))
    real: Any = InferenceModeGuard(flag)
    real.__enter__()
    trace.switches.inference_modes.append(real)


@rule(torch.inference_mode.__exit__)
def rule_leave_inference(trace: Trace, args: Args, kwargs: Kwargs) -> None:
    opaque = force(trace, force(trace, args[0]).__dict__.get("_inference_mode_context"))
    if not isinstance(opaque, Opaque) or not trace.switches.inference_modes:
        raise trace.fail("leaving an inference mode that was entered outside")
    trace.graph.call_function(leave_inference_mode, (opaque.node,))
    trace.switches.inference_modes.pop().__exit__(None, None, None)
    trace.switches.inference_used = True


@contextlib.contextmanager
def leaving_inference_modes(trace: Trace) -> Iterator[None]:
    """Leave the inference modes that a capture has entered, also when it ends inside their blocks."""
    try:
        yield
    finally:
        trace.switches.inference_used |= bool(trace.switches.inference_modes)
        while trace.switches.inference_modes:
            trace.switches.inference_modes.pop().__exit__(None, None, None)
