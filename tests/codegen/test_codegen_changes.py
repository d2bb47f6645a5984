"""Inputs that a program changes: written in place where that is right, copied where it is not, as eager either way."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import kiln
from kiln._native import OperatorProgram
from kiln.codegen import graph_compiler
from kiln.testing import check as check_against_eager


@pytest.fixture
def written(monkeypatch):
    """The results that the programs made since then write into inputs themselves, for each."""
    found = []

    def compile_graph(module, examples=(), **options):
        program = compiled(module, examples, **options)
        assert isinstance(program, OperatorProgram)
        found.append((len(module.meta.get("changed_inputs", ())), len(program.written_inputs)))
        return program

    compiled = graph_compiler.compile_graph
    monkeypatch.setattr(graph_compiler, "compile_graph", compile_graph)
    with kiln.config.patch(raise_internal_errors=True):
        yield found


def compile_anew(module, inputs):
    """The backend by its name in the module, which a fixture replaces."""
    return graph_compiler.compile_captured_graph(module, inputs)


def check(function, make, times=3):
    """The same contents, versions and results as eager, and nobody else is changed."""
    compiled = kiln.compile(function, backend=compile_anew)
    mine, eagers = make(), make()
    for _ in range(times):
        one, other = compiled(*mine), function(*eagers)
        torch.testing.assert_close(one, other)
    for one, other in zip(flat(mine), flat(eagers), strict=True):
        torch.testing.assert_close(one, other)
        assert one._version == other._version


def flat(values):
    return [tensor for value in values for tensor in (value if isinstance(value, list) else [value])]


def seeded(*shapes, **options):
    def make():
        torch.manual_seed(0)
        return [torch.randn(shape, **options) for shape in shapes]

    return make


def adam(weights, gradients, first, second, count):
    count += 1
    torch._foreach_mul_(weights, 0.99)
    torch._foreach_lerp_(first, gradients, 0.1)
    torch._foreach_mul_(second, 0.999)
    torch._foreach_addcmul_(second, gradients, gradients, 0.001)
    for weight, one, two in zip(weights, first, second, strict=True):
        weight.addcdiv_(one, two.sqrt().add_(1e-8), value=-0.01)


def test_an_optimizers_state_is_written_in_place(written):
    def make():
        torch.manual_seed(0)
        shapes = [(20, 30), (7,), (4, 5), (3, 2, 3, 3)]
        weights = [torch.randn(shape) for shape in shapes]
        weights[2] = weights[2].t().contiguous().t()
        weights[3] = weights[3].to(memory_format=torch.channels_last)
        rest = [[torch.rand_like(weight) for weight in weights] for _ in range(3)]
        return weights, *rest, torch.zeros(())

    check(adam, make)
    assert written == [(13, 13)]


def test_under_autograd_parameters_too(written):
    weight = nn.Parameter(torch.randn(5, 6))
    mine = copy.deepcopy(weight)

    def update(weight, gradient):
        with torch.no_grad():
            weight.sub_(gradient * 0.1)

    compiled = kiln.compile(update, backend=compile_anew)
    gradient = torch.randn(5, 6)
    compiled(mine, gradient)
    update(weight, gradient)
    torch.testing.assert_close(mine, weight)
    assert mine._version == weight._version and mine.requires_grad and written == [(1, 1)]


def test_what_is_read_after_the_change_or_elsewhere_is_copied(written):
    def moved(x):
        x.copy_(x.flip(0) + 1)

    def kept(x, y):
        before = x * 1
        x.add_(y)
        return before + x

    def turned(x):
        x.copy_(x.t() * 2)

    def softened(x):
        x.copy_(torch.softmax(x, 0) @ torch.softmax(x, 1))

    def exchanged(x, y):
        z = x + 1
        x.copy_(y * 2)
        y.copy_(z)

    check(moved, seeded((4, 5)))
    check(kept, seeded((4, 5), (4, 5)))
    check(turned, seeded((4, 4)))
    check(softened, seeded((4, 4)))
    check(exchanged, seeded((4, 5), (4, 5)))
    assert written[0] == (1, 0) and written[2] == (1, 0)


def test_one_value_for_two_inputs(written):
    def function(x, y):
        z = x + y
        x.copy_(z)
        y.copy_(z)
        return z

    check(function, seeded((4, 5), (4, 5)))


def test_inputs_with_holes_or_overlap(written):
    def function(x):
        x.mul_(2)

    def holes():
        return [torch.arange(24.0).view(4, 6)[:, ::2]]

    check(function, holes)
    assert written == [(1, 0)]


def test_inputs_that_share_memory(written):
    def function(x, y):
        x.add_(1)
        y.mul_(2)
        return x + y

    def overlapping():
        base = torch.arange(10.0)
        return [base[:6], base[4:]]

    check(function, seeded((4, 5), (4, 5)))
    check(function, overlapping)


def test_running_statistics_of_training(written):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.BatchNorm2d(4))
    mine = copy.deepcopy(model)
    compiled = kiln.compile(mine, backend=compile_anew)
    x = torch.randn(2, 3, 8, 8)
    for _ in range(3):
        compiled(x).sum().backward()
        model(x).sum().backward()
    for one, other in zip(mine.state_dict().values(), model.state_dict().values(), strict=True):
        torch.testing.assert_close(one, other)
    for one, other in zip(mine.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-4)
    assert [buffer._version for buffer in mine.buffers()] == [buffer._version for buffer in model.buffers()]
    assert written[0][0] == 6 and written[0][1] == 6


def test_saved_for_backward_before_a_change(written):
    def function(x, state):
        y = (x * state).sin()
        with torch.no_grad():
            state.mul_(0.5)
        return y.sum()

    def gradients(run):
        torch.manual_seed(0)
        x, state = torch.randn(6, requires_grad=True), torch.randn(6)
        found = []
        for _ in range(2):
            run(x, state).backward()
            found.append(x.grad.clone())
        return [*found, state]

    compiled = kiln.compile(function, backend=compile_anew)
    try:
        expected = gradients(function)
    except RuntimeError:
        with pytest.raises(RuntimeError):
            gradients(compiled)
    else:
        torch.testing.assert_close(gradients(compiled), expected)


class Passing(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def test_what_goes_otherwise_changes_inputs_too(written):
    def function(x):
        x.mul_(2)

    compiled = kiln.compile(function, backend=compile_anew)
    x = torch.ones(4)
    compiled(x)
    with Passing():
        compiled(x)
    assert x.tolist() == [4.0] * 4 and x._version == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bool, torch.half], ids=str)
@pytest.mark.parametrize("number", [3, 2.7, True])
def test_copying_a_number(number, dtype):
    def program(x):
        return x.to(dtype).clone().copy_(number), torch.zeros(3, dtype=dtype).copy_(number), x + 1

    check_against_eager(program, torch.arange(6.0).reshape(2, 3), backend="kiln", fullgraph=True)


def test_copying_a_number_that_varies():
    def program(x, number):
        return x.clone().copy_(number), torch.zeros(2).copy_(x.shape[0])

    x = torch.arange(6.0).reshape(3, 2)
    check_against_eager(program, calls=[(x, 3), (x[:2], 4), (x[:1], 5), (x, 6)], backend="kiln")
