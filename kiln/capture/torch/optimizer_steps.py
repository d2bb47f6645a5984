"""Adam's step as one graph, although torch reads the step count from its tensor in the middle of it.

For the backend ``kiln``, torch's function is replaced by one that leaves the count in its tensor and computes with it
in float64, as Python does with the number; all else is the same arithmetic in the same order. Where parameters are on a
GPU, counts are on the CPU: what is computed of all of them is copied to the GPU at once, without waiting. Steps with
anything unusual about them (rates that are tensors, complex or low-precision parameters, `capturable` …) are
interpreted as torch has them.
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.optim

from ..._native import is_instance as isinstance
from ...platform.torch_functions import (
    foreach_add,
    foreach_add_,
    foreach_addcdiv_,
    foreach_addcmul_,
    foreach_div_,
    foreach_lerp_,
    foreach_maximum_,
    foreach_mul,
    foreach_mul_,
    foreach_neg,
    foreach_sqrt,
)
from ..interpreter.argument_binding import match_arguments
from ..interpreter.frame import run_function
from ..python.standard_library import FINDERS
from ..shadows.wrap import force
from ..state.operations import Args, Kwargs
from ..state.trace import Trace

# torch's implementations by loop and by operators on lists. They give the same results.
REPLACED = {
    function.__code__
    for name in ("_single_tensor_adam", "_multi_tensor_adam")
    if isinstance(function := getattr(sys.modules.get("torch.optim.adam"), name, None), types.FunctionType)
}
EXACT = (torch.float32, torch.float64)
NUMBERS = (int, float, torch.SymFloat)


def call_adam(trace: Trace, function: types.FunctionType, args: Args, kwargs: Kwargs) -> tuple[object] | None:
    if trace.options.backend_name != "kiln":
        return None
    bound = {name: force(trace, value) for name, value in match_arguments(trace, function, args, kwargs).items()}
    if bound.keys() != ADAM_ARGUMENTS or not is_supported(trace, bound):
        return None
    trace.outside.pinned(adam)
    run_function(trace, adam, bound)
    return (None,)


def is_supported(trace: Trace, bound: dict[Any, Any]) -> bool:
    if any(bound[name] for name in ("has_complex", "capturable", "differentiable")):
        return False
    if any(bound[name] is not None for name in ("grad_scale", "found_inf")):
        return False
    if not all(isinstance(bound[name], NUMBERS) for name in ("beta1", "beta2", "lr", "weight_decay", "eps")):
        return False
    lists = [bound[name] for name in ("params", "grads", "exp_avgs", "exp_avg_sqs", "state_steps")]
    lists += [bound["max_exp_avg_sqs"]] if bound["amsgrad"] else []
    if not all(isinstance(one, list) and len(one) == len(lists[0]) for one in lists) or not lists[0]:
        return False
    tensors = [[force(trace, tensor) for tensor in one] for one in lists]
    if not all(
        isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided and tensor.dtype in EXACT
        for one in tensors
        for tensor in one
    ):
        return False
    steps = tensors.pop(4)
    device = tensors[0][0].device
    return all(step.device.type == "cpu" and step.dim() == 0 for step in steps) and all(
        tensor.device == device and device.type in ("cpu", "cuda") for one in tensors for tensor in one
    )


def adam(
    params: Any,
    grads: Any,
    exp_avgs: Any,
    exp_avg_sqs: Any,
    max_exp_avg_sqs: Any,
    state_steps: Any,
    grad_scale: Any,
    found_inf: Any,
    *,
    amsgrad: Any,
    has_complex: Any,
    beta1: Any,
    beta2: Any,
    lr: Any,
    weight_decay: Any,
    eps: Any,
    maximize: Any,
    capturable: Any,
    differentiable: Any,
    decoupled_weight_decay: Any,
) -> None:
    if maximize:
        grads = foreach_neg(grads)
    foreach_add_(state_steps, 1.0)
    if weight_decay != 0:
        if decoupled_weight_decay:
            foreach_mul_(params, 1 - lr * weight_decay)
        else:
            grads = foreach_add(grads, params, alpha=weight_decay)
    foreach_lerp_(exp_avgs, grads, 1 - beta1)
    foreach_mul_(exp_avg_sqs, beta2)
    foreach_addcmul_(exp_avg_sqs, grads, grads, 1 - beta2)
    step_sizes: Any
    roots: Any
    if params[0].is_cuda:
        counts = torch.stack(state_steps).double()
        factors = torch.stack((lr / (1 - beta1**counts) * -1, (1 - beta2**counts) ** 0.5))
        all_sizes, all_roots = factors.to(params[0].device, non_blocking=True).unbind()
        step_sizes, roots = all_sizes.unbind(), all_roots.unbind()
    else:
        step_sizes, roots = [], []
        for step in state_steps:  # (a comprehension would be a function of Kiln's own, which is not interpreted)
            count = step.double()
            step_sizes.append(lr / (1 - beta1**count) * -1)
            roots.append((1 - beta2**count) ** 0.5)
    if amsgrad:
        foreach_maximum_(max_exp_avg_sqs, exp_avg_sqs)
        exp_avg_sqs = max_exp_avg_sqs
    scales = foreach_sqrt(exp_avg_sqs)
    foreach_div_(scales, roots)
    foreach_add_(scales, eps)
    foreach_addcdiv_(params, foreach_mul(exp_avgs, step_sizes), scales)


ADAM_ARGUMENTS = set(inspect.signature(adam).parameters)


def handler_for_adam(function: types.FunctionType) -> Callable[..., Any] | None:
    return call_adam if function.__module__ == "torch.optim.adam" and function.__code__ in REPLACED else None


FINDERS.append(handler_for_adam)
