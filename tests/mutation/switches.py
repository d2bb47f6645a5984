"""Changes of the process that every program can see: switches of torch and of Python, global hooks, modes."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch
from torch.nn.modules import module as module_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


class Doubling(TorchFunctionMode):
    """Every addition of torch gives twice as much."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        return result * 2 if getattr(function, "__name__", "") in ("add", "__add__", "mul", "__mul__") else result


class Dispatched(TorchDispatchMode):
    """Every addition below autograd is off by one."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        return result - 1 if function is torch.ops.aten.add.Tensor else result


@contextlib.contextmanager
def _switch(read: Callable[[], Any], write: Callable[[Any], Any], value: Any) -> Iterator[None]:
    before = read()
    write(value)
    try:
        yield
    finally:
        write(before)


@contextlib.contextmanager
def attribute_place(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextlib.contextmanager
def _handle(register: Callable[..., Any], *args: Any, **kwargs: Any) -> Iterator[None]:
    handle = register(*args, **kwargs)
    try:
        yield
    finally:
        handle.remove()


@contextlib.contextmanager
def _default_device(device: str) -> Iterator[None]:
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextlib.contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]


def output_hook(module: Any, args: Any, output: Any) -> Any:
    return output + 1 if isinstance(output, torch.Tensor) else output


def input_hook(module: Any, args: Any) -> Any:
    return tuple(item * 2 if isinstance(item, torch.Tensor) and item.is_floating_point() else item for item in args)


def gradient_hook(module: Any, grad_input: Any, grad_output: Any) -> Any:
    return tuple(item * 2 if item is not None else None for item in grad_input)


def _parameter_hook(module: Any, name: Any, parameter: Any) -> None:
    return None


def _packed(tensor: torch.Tensor) -> torch.Tensor:
    return tensor * 2 if tensor.is_floating_point() else tensor


SWITCHES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "grad mode": lambda: torch.no_grad(),
    "grad mode on": lambda: torch.enable_grad(),
    "inference mode": lambda: torch.inference_mode(),
    "default dtype": lambda: _switch(torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    "default device": lambda: _default_device("meta"),
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "autocast float16": lambda: torch.autocast("cpu", dtype=torch.float16),
    "deterministic": lambda: _switch(
        torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True
    ),
    "deterministic fill": lambda: attribute_place(torch.utils.deterministic, "fill_uninitialized_memory", False),
    "anomaly": lambda: torch.autograd.set_detect_anomaly(True),
    "num threads": lambda: _switch(torch.get_num_threads, torch.set_num_threads, 1),
    "flush denormal": lambda: _switch(lambda: False, torch.set_flush_denormal, True),
    "matmul precision": lambda: _switch(
        torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "medium"
    ),
    "cudnn enabled": lambda: attribute_place(torch.backends.cudnn, "enabled", False),
    "cudnn benchmark": lambda: attribute_place(torch.backends.cudnn, "benchmark", True),
    "tf32": lambda: attribute_place(torch.backends.cuda.matmul, "allow_tf32", True),
    "mkldnn": lambda: torch.backends.mkldnn.flags(enabled=False),
    "sdp kernels": lambda: torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
    "function mode": lambda: Doubling(),
    "dispatch mode": lambda: Dispatched(),
    "torch function off": lambda: torch._C.DisableTorchFunctionSubclass(),
    "saved tensor hooks": lambda: torch.autograd.graph.saved_tensors_hooks(_packed, lambda tensor: tensor),
    "global forward hook": lambda: _handle(module_hooks.register_module_forward_hook, output_hook),
    "global pre hook": lambda: _handle(module_hooks.register_module_forward_pre_hook, input_hook),
    "global backward hook": lambda: _handle(module_hooks.register_module_full_backward_hook, gradient_hook),
    "global registration hook": lambda: _handle(
        module_hooks.register_module_parameter_registration_hook, _parameter_hook
    ),
    "swap on conversion": lambda: _switch(
        torch.__future__.get_swap_module_params_on_conversion,
        torch.__future__.set_swap_module_params_on_conversion,
        True,
    ),
    "print options": lambda: _switch(
        lambda: torch._tensor_str.PRINT_OPTS.precision, lambda digits: torch.set_printoptions(precision=digits), 1
    ),
    "recursion limit": lambda: _switch(sys.getrecursionlimit, sys.setrecursionlimit, sys.getrecursionlimit() + 500),
    "environment": lambda: _environment("KILN_MUTATION", "1"),
}


def throw(name: str) -> Callable[[], None]:
    """Put a switch into its other position; gives what puts it back."""
    stack = ExitStack()
    stack.enter_context(SWITCHES[name]())
    return stack.close
