"""Programs that torch's compiler captures, in eager and with Kiln as its backend; prints what differs as JSON.

A program takes the function that compiles, and gives everything to compare.
"""

from __future__ import annotations

import functools
import json
import sys
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import torch.nn.functional as F
from torch import nn

import kiln
from tests.torch_backend.running import Compile, Program, compare

PROGRAMS: dict[str, Program] = {}


def program(function: Program) -> Program:
    PROGRAMS[function.__name__] = function
    return function


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=True)


# -- effects and aliases -----------------------------------------------------------------------------------------------


@program
def changed_input(compile: Compile) -> Any:
    f = compile(lambda x, y: (x.add_(1), x * y))
    x, y = torch.randn(3, 4), leaf(3, 4)
    first, second = f(x, y)
    second.sum().backward()
    return x, first, second, y.grad, first is x


@program
def results_that_are_views(compile: Compile) -> Any:
    f = compile(lambda x: (x[0], x.t(), x))
    x = torch.randn(3, 4)
    row, turned, same = f(x)
    row.add_(5)
    return x, row, turned, same is x, turned._base is x


@program
def inputs_that_share_memory(compile: Compile) -> Any:
    def body(x, y):
        x.mul_(2)
        return x + y

    f = compile(body)
    x, base = torch.randn(4), torch.randn(6)
    return f(x, x), x, f(base[:4], base[2:]), base, f(torch.ones(4), torch.ones(4))


@program
def buffers_and_dynamic_batches(compile: Compile) -> Any:
    model = nn.BatchNorm1d(4)
    f, results = compile(model), []
    for size in (3, 5, 6):
        results.append(f(torch.randn(size, 4)))
        results[-1].square().sum().backward()
    return results, model.state_dict(), [parameter.grad for parameter in model.parameters()]


@program
def tensors_that_the_graph_holds(compile: Compile) -> Any:
    held = torch.arange(4.0)
    f = compile(lambda x: x * held + torch.tensor([1.0, 2, 3, 4]))
    return f(torch.randn(4)), f(torch.randn(4)), held


# -- modes and random numbers ------------------------------------------------------------------------------------------


@program
def autocast(compile: Compile) -> Any:
    model = nn.Linear(4, 4)

    def body(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inner = model(x)
        return inner.float() + model(x)

    f, x = compile(body), leaf(3, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        around = f(x)
    result = f(x)
    result.sum().backward()
    return around, result, x.grad.clone(), torch.is_autocast_enabled("cpu")


@program
def random_numbers(compile: Compile) -> Any:
    drop = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))
    f = compile(drop)
    g = compile(lambda x: x + torch.rand(3) + torch.randn_like(x) + torch.bernoulli(torch.full((3,), 0.5)))
    results = [f(torch.randn(4, 8)) for _ in range(3)]
    results[2].sum().backward()
    return results, g(torch.randn(3)), torch.rand(2), [parameter.grad for parameter in drop.parameters()]


@program
def grad_modes(compile: Compile) -> Any:
    w = leaf(3)

    def body(x):
        with torch.no_grad():
            inner = x * w
        return inner * w

    f = compile(body)
    with torch.no_grad():
        plain = f(torch.randn(3))
    with torch.inference_mode():
        inference = f(torch.randn(3))
    result = f(torch.randn(3))
    result.sum().backward()
    return plain, inference, inference.is_inference(), result, w.grad


# -- sizes and numbers -------------------------------------------------------------------------------------------------


@program
def sizes_that_vary(compile: Compile) -> Any:
    f = compile(lambda x: (x.view(-1, x.shape[1] * 2).sum(0), x.shape[0] + 1))
    return [f(torch.randn(size, 3)) for size in (2, 4, 6, 8, 10)]


@program
def dynamic_training(compile: Compile) -> Any:
    model = nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU())
    f, results = compile(model, dynamic=True), []
    for shape in ((2, 3), (4, 5), (3, 7), (1, 4), (2, 1)):
        results.append(f(torch.randint(0, 11, shape)))
        results[-1].square().mean().backward()
    return results, [parameter.grad.clone() for parameter in model.parameters()]


@program
def sizes_that_decide(compile: Compile) -> Any:
    f = compile(lambda x: x * 2 if x.shape[0] > 4 else x.sin(), dynamic=True)
    return [f(torch.randn(size)) for size in (2, 3, 5, 6, 9, 4)]


@program
def numbers_that_vary(compile: Compile) -> Any:
    f, g = compile(lambda x, scale: x * scale + scale), compile(lambda x, count: x[:count] * count)
    x = leaf(9)
    results = [f(x, scale) for scale in (1.5, 2.5, 3.5, 4.5)]
    sum(results).sum().backward()
    return results, x.grad, [g(x, count) for count in (2, 3, 4, 5, 8)]


@program
def gradients_of_parts(compile: Compile) -> Any:
    """Backwards for other patterns of gradients are traced when torch's guards are compiled already."""
    f = compile(lambda x, y: (x.sin() * y, y.cos()), dynamic=True)
    results = []
    for size in (5, 7):
        x, y = leaf(size), leaf(size)
        f(x, y)[1].sum().backward()
        results += [x.grad, y.grad, torch.autograd.grad(f(x, y)[0].sum(), x)[0]]
    return results


# -- autograd ----------------------------------------------------------------------------------------------------------


@program
def second_derivatives(compile: Compile) -> Any:
    f, x = compile(lambda x: (x.sin() * x).sum()), leaf(5)
    (gradient,) = torch.autograd.grad(f(x), x, create_graph=True)
    gradient.square().sum().backward()
    return gradient, x.grad


@program
def backward_twice(compile: Compile) -> Any:
    f, x = compile(lambda x: (x.sin() * 2).sum()), leaf(3)
    loss = f(x)
    loss.backward(retain_graph=True)
    loss.backward()
    return x.grad


@program
def hooks(compile: Compile) -> Any:
    model, seen = nn.Sequential(nn.Linear(3, 3), nn.Tanh()), []
    model[0].register_forward_hook(lambda module, args, result: result * 2)
    model.register_full_backward_hook(lambda module, inner, outer: seen.append(outer[0].clone()))
    model[0].weight.register_hook(lambda gradient: gradient * 3)
    f, x = compile(model), leaf(2, 3)
    f(x).sum().backward()
    return x.grad, model[0].weight.grad, seen


@program
def checkpoint(compile: Compile) -> Any:
    layer = nn.Linear(4, 4)

    def body(x):
        return torch.utils.checkpoint.checkpoint(lambda y: F.dropout(layer(y).sin(), 0.5), x, use_reentrant=False)

    f, x = compile(body), leaf(3, 4)
    result = f(x)
    result.sum().backward()
    return result, x.grad, layer.weight.grad


@program
def selective_checkpoint(compile: Compile) -> Any:
    layer, kept = nn.Linear(4, 4), [torch.ops.aten.mm.default, torch.ops.aten.addmm.default]
    contexts = functools.partial(torch.utils.checkpoint.create_selective_checkpoint_contexts, kept)
    checkpoint = functools.partial(torch.utils.checkpoint.checkpoint, use_reentrant=False, context_fn=contexts)
    f, x = compile(lambda x: checkpoint(lambda y: F.dropout(layer(y).sin(), 0.5), x)), leaf(3, 4)
    result = f(x)
    result.sum().backward()
    return result, x.grad, layer.weight.grad


@program
def nested_checkpoints(compile: Compile) -> Any:
    layer, checkpoint = nn.Linear(4, 4), functools.partial(torch.utils.checkpoint.checkpoint, use_reentrant=False)
    inner = lambda y: F.dropout(layer(y), 0.3).cos()  # noqa: E731
    f, x = compile(lambda x: checkpoint(lambda y: checkpoint(inner, y.sin()) * 2, x)), leaf(3, 4)
    result = f(x)
    result.sum().backward()
    return result, x.grad, layer.weight.grad


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x.sin() * factor

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * x.cos() * ctx.factor * 10, None


@program
def autograd_function(compile: Compile) -> Any:
    f, x = compile(lambda x: Scaled.apply(x * 2, 3) + 1), leaf(4)
    result = f(x)
    result.sum().backward()
    return result, x.grad


@program
def transforms(compile: Compile) -> Any:
    f = compile(lambda x: torch.func.vmap(torch.func.grad(lambda y: (y * y).sin().sum()))(x))
    return f(torch.randn(4, 3))


@program
def attention(compile: Compile) -> Any:
    f = compile(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True))
    given = [leaf(2, 2, 5, 4) for _ in range(3)]
    result = f(*given)
    result.square().sum().backward()
    return result, [each.grad for each in given]


@program
def whole_training_step(compile: Compile) -> Any:
    """The backward pass runs while torch's compiler looks at every Python function that is called."""
    model = nn.Linear(4, 2)
    optimizer = torch.optim.Adam(model.parameters(), 0.1)

    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    f = compile(step)
    return [f(torch.randn(5, 4)) for _ in range(4)], model.state_dict()


# -- what is left to eager, and Kiln's own compiler around and inside --------------------------------------------------


@program
def branches_by_data(compile: Compile) -> Any:
    f = compile(lambda x: torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,)))
    return f(torch.ones(3)), f(-torch.ones(3))


@program
def numbers_from_data(compile: Compile) -> Any:
    f = compile(lambda x: x * 2 if x.sum().item() > 0 else x - 1)
    return f(torch.ones(3)), f(-torch.ones(3))


class Tagged(torch.Tensor):
    pass


@program
def tensors_of_other_classes(compile: Compile) -> Any:
    f = compile(lambda x: x.sin() * 2)
    result = f(torch.ones(3).as_subclass(Tagged))
    return type(result) is Tagged, result.as_subclass(torch.Tensor)


@program
def kiln_inside(compile: Compile) -> Any:
    inner = kiln.compile(lambda x: x.sin() * 2, backend="kiln")
    f, x = compile(lambda x: inner(x + 1) * 3), leaf(4)
    result = f(x)
    result.sum().backward()
    return result, x.grad


@program
def kiln_module_inside(compile: Compile) -> Any:
    inner = kiln.compile(nn.Linear(4, 4), backend="kiln")
    f, x = compile(lambda x: inner(x + 1) * 3), leaf(2, 4)
    result = f(x)
    result.sum().backward()
    return result, x.grad, inner.weight.grad


@program
def kiln_around(compile: Compile) -> Any:
    inner = compile(lambda x: x.sin() * 2)
    f, x = kiln.compile(lambda x: inner(x + 1) * 3, backend="kiln"), leaf(4)
    result = f(x)
    result.sum().backward()
    return result, x.grad


@program
def compiled_in_captured_code(compile: Compile) -> Any:
    f, x = kiln.compile(lambda x: compile(lambda y: y.sin() * 2)(x + 1) * 3, backend="kiln"), leaf(4)
    result = f(x)
    result.sum().backward()
    return result, x.grad


if __name__ == "__main__":
    torch.set_num_threads(1)
    asked = sys.argv[1:] or list(PROGRAMS)
    results: dict[str, Any] = {}
    for name in asked:
        try:
            with kiln.config.patch(raise_internal_errors=True):
                results[name] = compare(PROGRAMS[name])
        except Exception:
            results[name] = {"error": traceback.format_exc()}
    print(json.dumps(results))
