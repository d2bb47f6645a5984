"""``torch._dynamo.testing``, ``debug_utils`` and what else test-suites take from torch's compiler."""

from __future__ import annotations

import copy
import functools
import re
import unittest
from collections.abc import Callable
from typing import Any

import torch

from .. import testing as kiln_testing
from ..platform.torch_pytree import tree_leaves
from . import dynamo
from .settings import dynamo_config

# -- counting backends ----------------------------------------------------------------------------------------------


class CompileCounter(kiln_testing.CompileCounter):
    """``torch._dynamo.testing.CompileCounter``."""


class CompileCounterWithBackend(kiln_testing.CompileCounterWithBackend):
    """``torch._dynamo.testing.CompileCounterWithBackend``, with torch's names for backends."""

    def __init__(self, backend: Any) -> None:
        super().__init__(dynamo.find_backend(backend))


class EagerAndRecordGraphs:
    """``torch._dynamo.testing.EagerAndRecordGraphs``: a backend that keeps the graphs it is given."""

    def __init__(self) -> None:
        self.graphs: list[torch.fx.GraphModule] = []

    def __call__(self, graph_module: torch.fx.GraphModule, example_inputs: Any) -> Callable[..., Any]:
        self.graphs.append(graph_module)
        return graph_module.forward


# -- comparing ------------------------------------------------------------------------------------------------------


def same(
    ref: Any, res: Any, fp64_ref: Any = None, cos_similarity: bool = False, tol: float = 1e-4, **accepted: Any
) -> bool:
    """``torch._dynamo.utils.same``: equal within a tolerance, all the way down."""
    return kiln_testing.same(ref, res, rtol=tol, atol=tol, strides=False, requires_grad=False, gradients=False)


def collect_results(model: torch.nn.Module, prediction: Any, loss: Any, example_inputs: Any) -> list[Any]:
    """Outputs, loss, and the gradients of parameters and inputs, for a comparison."""
    inputs = example_inputs if isinstance(example_inputs, (list, tuple)) else list(example_inputs.values())
    model = dynamo.innermost_fn(model)
    gradients = {name: _clone(parameter.grad) for name, parameter in model.named_parameters()}
    buffers = {name: _clone(buffer) for name, buffer in model.named_buffers()}
    return [prediction, loss, gradients, buffers, [_clone(each.grad) for each in _tensors(inputs)]]


def _tensors(values: Any) -> list[torch.Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, torch.Tensor)]


def _clone(value: torch.Tensor | None) -> torch.Tensor | None:
    return None if value is None else value.detach().clone()


def requires_bwd_pass(out: Any) -> bool:
    """Whether any tensor in a result has a history."""
    return any(tensor.requires_grad for tensor in _tensors(out))


def reduce_to_scalar_loss(out: Any) -> Any:
    """One number of all tensors in a result, to start a backward from."""
    found = [tensor.sum() / tensor.numel() for tensor in _tensors(out)]
    if not found:
        raise NotImplementedError(f"no tensors to make a loss of in a {type(out).__name__}")
    return functools.reduce(torch.add, found) / len(found)


def same_two_models(gm: Any, opt_gm: Any, example_inputs: Any, only_fwd: bool = False, **accepted: Any) -> bool:
    """``torch._dynamo.debug_utils.same_two_models``: outputs and gradients of two models agree."""
    return same(_run_model(gm, example_inputs, only_fwd), _run_model(opt_gm, example_inputs, only_fwd))


def _run_model(model: Any, example_inputs: Any, only_fwd: bool) -> Any:
    inputs = copy.deepcopy(example_inputs)
    if hasattr(model, "zero_grad"):
        model.zero_grad(True)
    out = model(*inputs)
    if only_fwd or not requires_bwd_pass(out):
        return out
    loss = reduce_to_scalar_loss(out)
    loss.backward()
    return collect_results(model, out, loss, inputs) if isinstance(model, torch.nn.Module) else [out, loss]


def clone_input(x: torch.Tensor, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """``torch._dynamo.utils.clone_input``: a copy with the same strides, gradient and requires_grad."""
    with torch.no_grad():
        made = torch.empty_strided(x.size(), x.stride(), dtype=dtype or x.dtype, device=x.device)
        made.copy_(x)
        made.requires_grad_(x.requires_grad)
        if x.is_leaf and x.grad is not None:
            made.grad = clone_input(x.grad)
    return made


def rand_strided(
    size: Any, stride: Any, dtype: torch.dtype = torch.float32, device: Any = "cpu", extra_size: int = 0
) -> torch.Tensor:
    """A random tensor with these strides."""
    needed = extra_size + (1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) if all(size) else 0)
    if dtype.is_floating_point or dtype.is_complex:
        buffer = torch.randn(needed, dtype=dtype, device=device)
    else:
        buffer = torch.randint(0, 2 if dtype is torch.bool else 10, (needed,), dtype=dtype, device=device)
    return torch.as_strided(buffer, size, stride)


# -- texts of graphs ------------------------------------------------------------------------------------------------


def strip_comment(code: str) -> str:
    """A program's text without its comments."""
    return re.sub(r"(?m)^ *#.*\n?", "", code)


def remove_trailing_space(code: str) -> str:
    return "\n".join(line.rstrip() for line in code.split("\n"))


def normalize_gm(gm_str: str) -> str:
    """A graph's text without comments and trailing blanks, for comparing it with an expected one."""
    return remove_trailing_space(strip_comment(gm_str))


# -- tests ----------------------------------------------------------------------------------------------------------


def standard_test(
    self: unittest.TestCase,
    fn: Callable[..., Any],
    nargs: int,
    expected_ops: int | None = None,
    expected_ops_dynamic: int | None = None,
    expected_frame_count: int = 1,
) -> None:
    """Two calls each on two inputs, in one graph, equal to eager's; counted."""
    counter = CompileCounter()
    inputs = [[torch.randn(10, 10) for _ in range(nargs)] for _ in range(2)]
    expected = [fn(*args) for args in inputs]
    dynamo.reset()
    compiled = dynamo.optimize_assert(counter)(fn)
    seen = [compiled(*args) for args in (*inputs, *inputs)]
    dynamo.reset()
    for one, other in zip([*expected, *expected], seen, strict=True):
        self.assertTrue(same(one, other))
    self.assertEqual(counter.frame_count, expected_frame_count)
    if not dynamo_config.assume_static_by_default and expected_ops_dynamic is not None:
        expected_ops = expected_ops_dynamic
    if expected_ops is not None:
        self.assertEqual(counter.op_count, expected_ops)


def unsupported(x: Any, y: Any) -> Any:
    """A function that ends a graph, and gives its second argument."""
    dynamo.graph_break()
    return y


def mark_expected_failure(fn: Any) -> Any:
    """``expectedFailureDynamic`` and its like: a mark, which suites that derive variants of a test look at."""
    fn._expected_failure_dynamic = True
    return fn


def make_test_cls_with_patches(cls: type, cls_prefix: str, fn_suffix: str, *patches: Any, **accepted: Any) -> type:
    """A variant of a test class that runs under patches of settings: ``(config, name, value)`` each."""
    names: dict[str, Any] = {}
    for name in dir(cls):
        value = getattr(cls, name)
        if name.startswith("test_") and callable(value):
            names[f"{name}{fn_suffix}"] = _with_patches(value, patches)
        elif name.startswith("test_"):
            names[name] = value
    for name in [name for name in dir(cls) if name.startswith("test_")]:
        names.setdefault(name, None)
    return type(f"{cls_prefix}{cls.__name__}", (cls,), {**names, "__qualname__": f"{cls_prefix}{cls.__name__}"})


def _with_patches(function: Callable[..., Any], patches: Any) -> Callable[..., Any]:
    @functools.wraps(function)
    def patched(*args: Any, **kwargs: Any) -> Any:
        import contextlib

        with contextlib.ExitStack() as stack:
            for module, name, value in patches:
                stack.enter_context(module.patch(**{name: value}))
            return function(*args, **kwargs)

    return unittest.expectedFailure(patched) if getattr(function, "_expected_failure_dynamic", False) else patched
