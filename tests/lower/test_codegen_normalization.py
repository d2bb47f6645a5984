"""Softmax, normalizations and losses as machine code: results, saved statistics and gradients as in eager."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import kiln
from kiln.aot import aot_function
from kiln.codegen import graph_compiler
from kiln.lower.lowering import Lowering
from kiln.lower.schedule.scheduling import schedule
from tests.support.codegen_programs import calls, launches
from tests.support.compiled_programs import check, check_accuracy, check_distance, compiled, wide

inf = float("inf")
TYPES = (torch.float32, torch.float64, torch.bfloat16)
MEMORY = {"contiguous": torch.contiguous_format, "channels last": torch.channels_last}


def made(*shape, dtype=torch.float32, memory=torch.contiguous_format):
    generator = torch.Generator().manual_seed(sum(shape))
    tensor = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    return tensor.to(memory_format=memory).requires_grad_()


def steps_of(function, *inputs):
    """The scheduled forward and backward of a function."""
    found = []

    def note(module, examples):
        found.append(schedule(Lowering(module).run()))
        return module.forward

    result = aot_function(function, fw_compiler=note, bw_compiler=note)(*inputs)
    result.backward(torch.ones_like(result))
    return found


# ---- softmax ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (7, 130), (3, 5, 40), (2, 0)], ids=str)
def test_softmax(shape, dtype):
    x = made(*shape, dtype=dtype)
    for dim in {0, max(x.dim() - 1, 0)}:
        check(lambda x, dim=dim: (F.softmax(x, dim), F.log_softmax(x, dim), F.softmin(x, dim)), x)


def test_softmax_of_other_layouts():
    def function(x):
        return F.softmax(x, 1), F.log_softmax(x, -1), F.softmax(x, 0, dtype=torch.float64)

    check(function, made(40, 7, 9).transpose(0, 2))
    check(function, made(4, 30, 9)[:, ::2])
    check(function, made(1, 7, 9).expand(4, 7, 9))
    check(function, made(2, 20, 5, 5, memory=torch.channels_last))


def test_softmax_of_infinities():
    x = torch.tensor(
        [[0.0, -inf, 1.0], [-inf, -inf, -inf], [inf, 0.0, 1.0], [1e4, -1e4, 0.0], [float("nan"), 0.0, 1.0]]
    )
    check(lambda x: (F.softmax(x, -1), F.log_softmax(x, -1), torch._safe_softmax(x, -1)), x)


def test_softmax_is_one_kernel():
    forward, backward = steps_of(lambda x: F.softmax(x, -1), made(64, 100))
    assert len(forward.steps) == len(backward.steps) == 1
    forward, backward = steps_of(lambda x: F.log_softmax(x * 2, -1) + 1, made(64, 100))
    assert len(forward.steps) == len(backward.steps) == 1


# ---- layer norm, group norm, root mean square ------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("affine", [True, False])
def test_layer_norm(dtype, affine):
    weight, bias = (made(5, 33, dtype=dtype), made(5, 33, dtype=dtype)) if affine else (None, None)
    given = [weight, bias] if affine else []

    def function(x, *given):
        return F.layer_norm(x, (5, 33), *given)

    check(function, made(4, 6, 5, 33, dtype=dtype), *given)
    check(function, made(4, 33, 5, 6, dtype=dtype).permute(0, 3, 2, 1), *given)
    check(function, made(5, 33, dtype=dtype), *given)


def test_layer_norm_of_low_precision_with_weights_of_float32():
    x = made(6, 40, dtype=torch.bfloat16)
    check(lambda x, w, b: F.layer_norm(x, (40,), w, b), x, made(40), made(40))


def test_layer_norm_far_from_zero():
    check_accuracy(lambda x, w, b: F.layer_norm(x, (768,), w, b), made(30, 768) * 3 + 100, made(768), made(768))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("memory", MEMORY)
def test_group_norm(dtype, memory):
    x = made(3, 12, 5, 7, dtype=dtype, memory=MEMORY[memory])
    weight, bias = made(12, dtype=dtype), made(12, dtype=dtype)
    check(lambda x, w, b: F.group_norm(x, 4, w, b), x, weight, bias)
    check(lambda x: F.group_norm(x, 3), x)
    check(lambda x, w: F.group_norm(x, 12, w), x, weight)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_rms_norm(dtype):
    check(lambda x, w: F.rms_norm(x, (33,), w), made(4, 6, 33, dtype=dtype), made(33, dtype=dtype))
    check(lambda x: F.rms_norm(x, (6, 33), eps=1e-3), made(4, 6, 33, dtype=dtype))


def test_kernels_of_normalizations():
    x, weight, bias = made(8, 16, 64), made(64), made(64)
    forward, backward = steps_of(lambda x, w, b: F.layer_norm(x, (64,), w, b), x, weight, bias)
    assert (len(forward.steps), len(backward.steps)) == (1, 2)
    x = made(8, 64, 6, 6)
    forward, backward = steps_of(lambda x, w, b: F.batch_norm(x, None, None, w, b, True), x, weight, bias)
    assert (len(forward.steps), len(backward.steps)) == (1, 1)
    assert not calls(forward) and not calls(backward)


# ---- batch norm ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("memory", MEMORY)
def test_batch_norm(dtype, is_training, memory):
    x = made(6, 10, 5, 7, dtype=dtype, memory=MEMORY[memory])
    mean, variance = torch.randn(10, dtype=dtype), torch.rand(10, dtype=dtype) + 0.5

    def function(x, weight, bias, mean, variance):
        mean, variance = mean.clone(), variance.clone()
        found = F.batch_norm(x, mean, variance, weight, bias, is_training, 0.3, 1e-4)
        return found, mean, variance

    check(function, x, made(10, dtype=dtype), made(10, dtype=dtype), mean, variance)


def test_batch_norm_changes_running_statistics():
    modules = [torch.nn.BatchNorm1d(9) for _ in range(2)]
    run = compiled(lambda x, w, b, m, v: F.batch_norm(x, m, v, w, b, True, 0.1))
    for _ in range(3):
        x = torch.randn(20, 9) * 2 + 1
        expected = modules[0](x)
        one = modules[1]
        found = run(x, one.weight, one.bias, one.running_mean, one.running_var)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(one.running_mean, modules[0].running_mean)
        torch.testing.assert_close(one.running_var, modules[0].running_var)


def test_batch_norm_of_two_axes_without_weights():
    check(lambda x: F.batch_norm(x, None, None, training=True), made(50, 7))
    check(lambda x: F.instance_norm(x, eps=1e-3), made(4, 6, 30))


def test_accuracy_of_batch_norm():
    x, weight, bias = made(16, 70, 20, 20), made(70), made(70)
    check_accuracy(lambda x, w, b: F.batch_norm(x * 2 + 50, None, None, w, b, True), x, weight, bias)


# ---- losses ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("shape", [(9, 30), (3, 11, 4, 5), (3, 11, 6)], ids=str)
def test_cross_entropy(shape, reduction):
    classes = shape[1]
    generator = torch.Generator().manual_seed(0)
    target = torch.randint(0, classes, (shape[0], *shape[2:]), generator=generator)
    target[0] = 5
    weight = torch.rand(classes, generator=generator)
    check(lambda x, t: F.cross_entropy(x, t, reduction=reduction), made(*shape), target)
    check(lambda x, t, w: F.cross_entropy(x, t, w, reduction=reduction, ignore_index=5), made(*shape), target, weight)
    check(lambda x, t: F.nll_loss(x * 2, t, reduction=reduction, ignore_index=5), made(*shape), target)
    check(lambda x, t: F.cross_entropy(x, t, reduction=reduction, label_smoothing=0.1), made(*shape), target)


def test_cross_entropy_of_one_sample_and_of_none():
    check(lambda x, t: F.cross_entropy(x, t), made(6), torch.tensor(2))
    check(lambda x, t: F.cross_entropy(x, t), made(0, 6), torch.zeros(0, dtype=torch.int64))
    check(lambda x, t: F.cross_entropy(x, t), made(3, 6), torch.full((3,), -100))


@pytest.mark.parametrize("target", [7, -1])
def test_classes_out_of_bounds(target):
    run = compiled(lambda x, t: F.cross_entropy(x, t))
    with pytest.raises(IndexError, match=f"Target {target} is out of bounds"):
        run(torch.randn(4, 7), torch.tensor([1, 2, target, 3]))


def test_cross_entropy_without_a_probability_in_memory():
    """In inference nothing as large as the input is written."""
    x, target = torch.randn(64, 500), torch.randint(0, 500, (64,))
    found = []

    def note(module, examples):
        found.append(schedule(Lowering(module).run()))
        return module.forward

    aot_function(lambda x, t: F.cross_entropy(x, t), fw_compiler=note, bw_compiler=note)(x, target)
    written = [output.target.buffer for step in launches(found[0]) for output in step.kernel.outputs]
    assert all(math.prod(buffer.shape) <= 64 for buffer in written)


def test_sizes_that_vary():
    def function(x, w, b, t):
        return F.cross_entropy(F.layer_norm(x, (24,), w, b), t) + F.softmax(x, 0).sum()

    check(function, made(7, 24), made(24), made(24), torch.randint(0, 24, (7,)), dynamic=True)


NORMALIZATIONS = {
    "layer": lambda x, w: F.layer_norm(x, x.shape[1:], w),
    "batch": lambda x, w: F.batch_norm(x, None, None, w[:3, 0, 0], w[:3, 0, 1], training=True),
    "batch, running": lambda x, w: F.batch_norm(x, w[:3, 0, 0].detach() + 1, w[:3, 0, 1].detach() + 1, training=True),
}


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", NORMALIZATIONS)
def test_statistics_are_not_computed_again(name, dynamic, dtype, monkeypatch):
    """That would be a pass over all that was normalized; saved, they are next to nothing."""

    def program(x, w):
        return NORMALIZATIONS[name](x.sin(), w).relu().cos()

    names, real = [], graph_compiler.compile_graph
    monkeypatch.setattr(
        graph_compiler,
        "compile_graph",
        lambda module, *rest, **more: note(names, module) or real(module, *rest, **more),
    )
    torch.manual_seed(0)
    x, w = torch.randn(4, 3, 8, 8, dtype=dtype, requires_grad=True), torch.rand(3, 8, 8, dtype=dtype) + 0.5
    compiled = kiln.compile(program, backend="kiln", dynamic=dynamic, fullgraph=True)

    def gradient(call, x, w):
        return torch.autograd.grad(call(x, w).sum(), x)[0]

    found, expected = gradient(compiled, x, w), gradient(program, x, w)
    if dtype is torch.bfloat16:
        check_distance(0, found, expected, gradient(program, wide(x), wide(w)))
    else:
        torch.testing.assert_close(found, expected)
    forward, backward = names
    assert [name for name in forward if "norm" in name]
    assert not [name for name in backward if "norm" in name and "backward" not in name]


def note(names, module):
    names.append([node.target._opname for node in module.graph.nodes if hasattr(node.target, "_opname")])
