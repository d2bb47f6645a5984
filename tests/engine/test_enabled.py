"""``kiln.compiled_autograd`` and the engine together: compilers of every kind, threads, the setting, fresh caches."""

import threading

import pytest
import torch

import kiln
from kiln import compiled_autograd
from kiln.engine.run import scopes
from kiln.testing import same
from tests.engine.engine_counts import CountingCompiler, captures


@pytest.fixture(autouse=True)
def fresh():
    kiln.reset()
    yield
    assert type(torch.autograd.Variable._execution_engine) is not scopes.EngineStandIn


def gradients(size=3, power=2):
    x = torch.arange(1.0, size + 1, requires_grad=True)
    (x**power).sum().backward()
    return x.grad


def test_compiler_that_gives_the_graph_back():
    modules = []
    with compiled_autograd.enable(lambda module: (modules.append(module), module)[1]):
        assert same([gradients(), gradients()], [torch.tensor([2.0, 4.0, 6.0])] * 2)
    (module,) = modules
    assert isinstance(module, torch.fx.GraphModule)
    assert "# PowBackward0 (NodeCall 2)" in module.code


def test_compiler_that_runs_backward_passes_itself():
    def compiler(module):
        assert not compiled_autograd.enabled()
        gradients(len(sizes), len(sizes) + 3)
        sizes.append(True)
        return kiln.compile(module)

    sizes = [True]
    with compiled_autograd.enable(compiler):
        assert gradients().tolist() == [2, 4, 6]
        assert compiled_autograd.enabled()
    assert len(sizes) == 2


def test_compiler_that_fails():
    def failing(module):
        raise ValueError("no compiler today")

    x = torch.ones(2, requires_grad=True)
    total = (x * 3).sum()
    with pytest.raises(ValueError, match="no compiler today"), compiled_autograd.enable(failing):
        total.backward()
    assert x.grad is None
    total.backward()  # nothing was done, and nothing let go of
    assert x.grad.tolist() == [3, 3]


def test_each_compiler_has_its_own_graphs():
    first, second = CountingCompiler(), CountingCompiler()
    for compiler in (first, second, first):
        with compiled_autograd.enable(compiler):
            gradients()
    assert (len(first.modules), len(second.modules)) == (1, 1)
    kiln.reset()
    with compiled_autograd.enable(first):
        gradients()
        compiled_autograd.disable()(gradients)(4)
    assert (len(first.modules), len(second.modules)) == (2, 1)


def test_threads_at_once():
    compiler = CountingCompiler(fullgraph=False)
    barrier, found = threading.Barrier(4), {}

    def work(number):
        with compiled_autograd.enable(compiler):
            barrier.wait(60)
            found[number] = [gradients(3 + number % 2, 2 + number // 2) for _ in range(5)]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, results in found.items():
        assert same(results, [gradients(3 + number % 2, 2 + number // 2)] * 5)
    assert len(found) == 4


def test_setting_with_sizes_that_vary():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))

    def step(x):
        model(x).sum().backward()
        found = [parameter.grad for parameter in model.parameters()]
        model.zero_grad()
        return found

    inputs = [torch.randn(size, 4) for size in (3, 5, 7, 9, 11)]
    expected, before = [step(x) for x in inputs], captures()
    with kiln.config.patch(compiled_autograd=True):
        compiled = kiln.compile(step)
    assert same(expected, [compiled(x) for x in inputs])
    assert captures() - before == 2


def test_modules_compiled_with_the_setting():
    """The backward pass starts outside: it is torch's."""
    with kiln.config.patch(compiled_autograd=True):
        model = kiln.compile(torch.nn.Linear(3, 3), backend="aot_eager")
    before = captures()
    model(torch.ones(3)).sum().backward()
    assert model.weight.grad.tolist() == [[1] * 3] * 3
    assert captures() == before


def test_nested_backward_in_a_hook():
    @torch.enable_grad()
    def hook(gradient):
        return gradient * gradients(gradient.numel(), 3)

    def program():
        x = torch.ones(3, requires_grad=True)
        product = x * 2
        product.register_hook(hook)
        product.sum().backward()
        return x.grad

    expected = program()
    with compiled_autograd.enable(CountingCompiler(fullgraph=False)):
        assert same([expected, expected], [program(), program()])


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 2 * x * gradient


@pytest.mark.parametrize("every", ["line", "instruction"])
def test_breaks_everywhere(every):
    def program(size):
        x = torch.arange(float(size), requires_grad=True)
        product = Square.apply(x) * 3
        product.register_hook(lambda gradient: gradient + 1)
        product.sum().backward()
        return x.grad

    expected = [program(size) for size in (3, 4, 5)]
    with kiln.config.patch(break_every=every), compiled_autograd.enable(CountingCompiler(fullgraph=False)):
        assert same(expected, [program(size) for size in (3, 4, 5)])
