"""The behaviours that the seed documents have on GPUs alone. CUDA graphs are named where the document has them on."""

from __future__ import annotations

import gc
import logging

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing._internal.logging_tensor import LoggingTensor
from torch.utils.checkpoint import checkpoint

import kiln
from kiln import compiled_autograd
from kiln.program.consumed_lists import set_locals_to_steal
from kiln.testing import CompileCounter, same
from tests.engine.engine_counts import CountingCompiler, beside_eager, captures
from tests.support.gpu import DEVICE, ON_GPU, needs_gpu

pytestmark = needs_gpu
covers = pytest.mark.covers
DOCUMENT = "test_compiled_autograd"
LOOSE = {"rtol": 2e-3, "atol": 2e-3}


def compiled_by_kiln(function, **options):
    """With machine code: the tests' default is the backend eager."""
    return kiln.compile(function, backend="kiln", **options)


def leaf(*shape, dtype=torch.float32):
    return torch.randn(*shape, device=DEVICE, dtype=dtype, requires_grad=True)


def allocated():
    gc.collect()
    return torch.cuda.memory_allocated() if ON_GPU else 0


def module_of(forward, consumed):
    module = torch.fx.symbolic_trace(forward)
    set_locals_to_steal(module, [consumed])
    return module


# -- checkpoints ----------------------------------------------------------------------------------------------------


class Gate(nn.Module):
    """Two products, joined by a function that is compiled on its own."""

    def __init__(self, features, gated):
        super().__init__()
        self.value, self.gate = nn.Linear(features, features), nn.Linear(features, features, bias=False)
        self.bias, self.gated = nn.Parameter(torch.zeros(features)), gated

    def forward(self, x):
        return self.gated(self.value(x), self.gate(x), self.bias)


class Gates(nn.Module):
    def __init__(self, features, gated):
        super().__init__()
        self.rows, self.columns = Gate(features, gated), Gate(features, gated)

    def forward(self, x):
        x = x + self.rows(x)
        return x + self.columns(x.transpose(-2, -3)).transpose(-2, -3)


def gated(value, gate, bias):
    return value * torch.sigmoid(gate + bias)


def trained(model, given, target):
    losses = []
    for _ in range(4):
        model.zero_grad()
        loss = (target - checkpoint(model, given.clone(), use_reentrant=True)).abs().mean()
        loss.backward()
        losses.append(loss.detach())
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
    return losses, [parameter.grad for parameter in model.parameters()]


@covers(f"{DOCUMENT}::test_issue106555")
@pytest.mark.parametrize("engine", [False, True])
def test_compiled_function_in_a_checkpoint(engine):
    results = []
    for function in (gated, compiled_by_kiln(gated)):
        torch.manual_seed(3)
        model = Gates(64, function).to(DEVICE)
        given, target = leaf(1, 24, 16, 64), torch.randn(1, 24, 16, 64, device=DEVICE)
        if engine and function is not gated:
            with compiled_autograd.enable(lambda module: compiled_by_kiln(module)):
                results.append(trained(model, given, target))
        else:
            results.append(trained(model, given, target))
    assert same(*results, rtol=1e-4, atol=1e-5)


# -- functions of the user's ----------------------------------------------------------------------------------------


class Identity(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


@covers(f"{DOCUMENT}::test_custom_fn_output_metadata")
def test_gradients_of_half_precision_are_not_converted():
    def program():
        x = torch.arange(1.0, 10.0, dtype=torch.float16, device=DEVICE).requires_grad_()
        Identity.apply(x.view(3, 3)).sum().backward()
        yield x.grad
        assert x.grad.dtype is torch.float16 and x.grad.device.type == DEVICE

    assert beside_eager(program, inner="kiln") == (1, 1)
    compiler = CountingCompiler()
    x = torch.arange(1.0, 10.0, dtype=torch.float16, device=DEVICE).requires_grad_()
    with compiled_autograd.enable(compiler):
        Identity.apply(x.view(3, 3)).sum().backward()
    targets = [node.target for graph in compiler.graphs for node in graph.graph.nodes]
    assert torch.ops.aten._to_copy.default not in targets


class SavesNumber(torch.autograd.Function):
    """Saves a tensor of the CPU and a number beside one of the GPU."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x, torch.tensor(5))
        ctx.number = 5
        return x.sum()

    @staticmethod
    def backward(ctx, gradient):
        x, tensor = ctx.saved_tensors
        return gradient * torch.ones_like(x) * tensor * ctx.number


@covers(f"{DOCUMENT}::test_cudagraphs_cpu_scalar_used_in_python_custom_op")
@pytest.mark.parametrize("options", [None, {"cuda_graphs": True}])
def test_number_of_the_cpu_saved_by_a_function(options):
    x, before = leaf(10), captures()
    total = SavesNumber.apply(x)
    with kiln.config.patch(compiled_autograd=True):
        compiled_with(lambda: total.backward(), options)()
    assert torch.equal(x.grad, torch.full((10,), 25.0, device=DEVICE))
    assert captures() == before + 1


@covers(f"{DOCUMENT}::test_cudagraphs_cpu_scalar_used_in_cpp_custom_op")
def test_number_of_the_cpu_saved_by_a_function_in_cpp(custom_functions):
    def program():
        for _ in range(2):
            x = leaf(2, 2)
            custom_functions.saving_nested(x, torch.randn(2, 2, device=DEVICE), torch.tensor(5.0)).sum().backward()
            yield x.grad

    assert beside_eager(program, inner="kiln") == (1, 1)


# -- CUDA graphs ----------------------------------------------------------------------------------------------------


def compiled_with(function, options):
    """Compiled with options that this Kiln may not have yet."""
    try:
        return compiled_by_kiln(function, options=options)
    except kiln.exc.KilnError:
        pytest.skip(f"no options {options}")


def reduced(out):
    return out.sum() / out.numel()


@covers(f"{DOCUMENT}::test_cudagraphs_cpu_division")
def test_a_division_by_a_number_of_the_cpu(capfd):
    def program():
        model = nn.Linear(10, 10, dtype=torch.float16, device=DEVICE)
        reduced(model(torch.randn(10, 10, dtype=torch.float16, device=DEVICE))).backward()
        yield [parameter.grad for parameter in model.parameters()]

    kiln.reset()
    torch.manual_seed(7)
    expected = list(program())
    torch.manual_seed(7)
    with compiled_autograd.enable(lambda module: compiled_by_kiln(module)):
        assert same(list(program()), expected, **LOOSE)
    assert "skipping" not in capfd.readouterr().err


@covers(f"{DOCUMENT}::test_cudagraphs_sdpa")
@pytest.mark.parametrize("options", [None, {"cuda_graphs": True}])
def test_attention(options):
    torch.manual_seed(2)
    query, key, value = (torch.rand(8, 4, 64, 64, dtype=torch.float16, device=DEVICE) for _ in range(3))
    (expected,) = torch.autograd.grad(attended(query.requires_grad_(), key, value), query)
    total, before = attended(query, key, value), captures()
    with kiln.config.patch(compiled_autograd=True):
        compiled_with(lambda: total.backward(), options)()
    assert captures() == before + 1
    assert torch.allclose(query.grad, expected, **LOOSE)


def attended(query, key, value):
    return F.scaled_dot_product_attention(query, key, value).sum()


# -- memory ---------------------------------------------------------------------------------------------------------


@covers(f"{DOCUMENT}::test_free_activation_memory")
def test_activations_are_freed_when_they_are_used():
    if not ON_GPU:
        pytest.skip("counts the memory of a GPU")
    before, during = allocated(), []

    def forward(activations):
        on_cpu = (activations[0] + 1).cpu()
        return (torch.ops.kiln_seed_test.look(on_cpu),)

    with torch.library._scoped_library("kiln_seed_test", "FRAGMENT") as library:
        library.define("look(Tensor x) -> Tensor")
        library.impl("look", lambda x: (during.append(allocated() - before), x.clone())[1], "CPU")
        library.impl("look", lambda x: x.clone(), "Meta")
        compiled = compiled_by_kiln(module_of(forward, "activations"))
        for _ in range(2):
            activations = [torch.ones(1_000_000, device=DEVICE)]
            assert allocated() - before >= 4_000_000
            (found,) = compiled(activations)
            assert activations == [] and torch.equal(found, torch.full((1_000_000,), 2.0))
    assert len(during) == 2 and all(count < 4_000_000 for count in during)


@covers(f"{DOCUMENT}::test_free_activation_memory_subclass")
def test_activations_beside_a_nested_tensor_are_freed():
    """The document holds the nested tensor's memory while the operator runs; Kiln frees what it can."""
    if not ON_GPU:
        pytest.skip("counts the memory of a GPU")
    before, during = allocated(), []

    def forward(inputs):
        _, plain = inputs
        return torch.ops.kiln_seed_test.look(plain.cpu())

    with torch.library._scoped_library("kiln_seed_test", "FRAGMENT") as library:
        library.define("look(Tensor x) -> Tensor")
        library.impl("look", lambda x: (during.append(allocated() - before), x.clone())[1], "CPU")
        for key in ("Meta", "NestedTensor"):
            library.impl("look", lambda x: x.clone(), key)
        compiled = compiled_by_kiln(module_of(forward, "inputs"))
        parts = [torch.ones(1, 100_000, device=DEVICE) for _ in range(2)]
        activations = [torch.nested.nested_tensor(parts, layout=torch.jagged), torch.ones(1, 100_000, device=DEVICE)]
        del parts
        assert allocated() - before >= 1_200_000
        found = compiled(activations)
        assert activations == [] and torch.equal(found, torch.ones(1, 100_000))
    assert len(during) == 1 and during[0] < 1_200_000


@covers(f"{DOCUMENT}::test_logging_tensor_flaky")
def test_a_subclass_after_a_backward_pass_on_the_gpu(caplog):
    x = torch.arange(1.0, 10.0, dtype=torch.float16, device=DEVICE).requires_grad_()
    with compiled_autograd.enable(lambda module: compiled_by_kiln(module)):
        x.sum().backward()
    assert torch.equal(x.grad, torch.ones_like(x))
    caplog.set_level(logging.WARNING, logger="LoggingTensor")

    def forward(inputs):
        return ((inputs[0] + 1 + inputs[1]).cpu(),)

    inputs = [torch.ones(1000, device=DEVICE), LoggingTensor(torch.ones(1, device=DEVICE))]
    (found,) = compiled_by_kiln(module_of(forward, "inputs"))(inputs)
    assert not inputs and type(found) is LoggingTensor and found.elem.tolist() == [3.0] * 1000


# -- modules --------------------------------------------------------------------------------------------------------


@covers("test_modules::test_lazy_module3")
def test_lazy_module_moved_to_the_gpu():
    module, counter = nn.Sequential(nn.LazyLinear(32), nn.ReLU(), nn.LazyLinear(10)), CompileCounter()
    compiled, x = kiln.compile(module, backend=counter, fullgraph=True), torch.rand(10, 10)
    assert torch.equal(compiled(x), module(x))
    module, x = module.to(DEVICE), x.to(DEVICE)
    for _ in range(2):
        assert torch.allclose(compiled(x), module(x))
    assert counter.frame_count == (2 if ON_GPU else 1)


# -- torch's own tests, which the document runs under the engine ----------------------------------------------------


def test_conversions_between_devices_and_types():
    def program():
        x = torch.randn(5, 5, requires_grad=True)
        for convert in (
            lambda x: x.to(DEVICE),
            lambda x: x.to(DEVICE, torch.float16).float(),
            lambda x: x.double().to(DEVICE).cpu(),
            lambda x: x.to(DEVICE).to(torch.bfloat16).cpu(),
        ):
            x.grad = None
            (convert(x) * 2).sum().backward()
            assert x.grad.device.type == "cpu" and x.grad.dtype is torch.float32
            yield x.grad.clone()

    beside_eager(program, inner="kiln")


def test_saved_tensors_on_the_cpu():
    def program():
        x = leaf(16, 16)
        with torch.autograd.graph.save_on_cpu(pin_memory=ON_GPU):
            y = (x.exp() * x.sin()).pow(2).sum()
        y.backward()
        yield x.grad

    beside_eager(program, inner="kiln", fullgraph=False)


def test_a_number_of_another_device():
    def program():
        x, number = leaf(4), torch.tensor(3.0, requires_grad=True)  # on the CPU
        (x * number).sum().backward()
        assert number.grad.device.type == "cpu" and x.grad.device.type == DEVICE
        yield x.grad
        yield number.grad

    beside_eager(program, inner="kiln")
