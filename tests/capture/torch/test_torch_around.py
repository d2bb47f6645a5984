"""Compiled functions under what torch does around them: tracers, functorch, fake tensors, dispatch modes, copies."""

import copy
import functools
import inspect
import pickle

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

import kiln

BACKENDS = ["eager", "aot_eager", "kiln"]
X = torch.arange(6.0).reshape(2, 3)


def program(t):
    return torch.sin(t) * 2 + 1


def scale(t):
    return program(t) * 3


class Counting(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.operations = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.operations.append(func)
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def bugs_are_raised():
    with kiln.config.patch(raise_internal_errors=True):
        yield


@pytest.fixture(params=[(backend, called) for backend in BACKENDS for called in (False, True)], ids=str)
def compiled(request):
    """A compiled function, not called yet or called before."""
    backend, called = request.param
    made = kiln.compile(lambda t: program(t), backend=backend)
    if called:
        made(X)
    return made


def test_jit_trace(compiled):
    traced = torch.jit.trace(compiled, (X,))
    assert torch.allclose(traced(X + 1), program(X + 1))
    assert torch.allclose(compiled(X + 1), program(X + 1))


@pytest.mark.parametrize("backend", BACKENDS)
def test_jit_trace_of_modules(backend):
    class Outer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = kiln.compile(torch.nn.Linear(3, 3), backend=backend)

        def forward(self, t):
            return self.inner(t) * 2

    for module in (kiln.compile(torch.nn.Linear(3, 3), backend=backend), Outer()):
        for _ in range(2):
            traced = torch.jit.trace(module, (X,))
            assert torch.allclose(traced(X + 1), module(X + 1))


@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_code_that_calls_torchscript(backend):
    traced = torch.jit.trace(lambda t: t * 2, (X,))
    assert torch.equal(kiln.compile(lambda t: traced(t) + 1, backend=backend)(X), X * 2 + 1)


def test_symbolic_trace(compiled):
    graph = torch.fx.symbolic_trace(lambda t: compiled(t) + 1)
    assert torch.allclose(graph(X + 1), program(X + 1) + 1)
    assert any(node.target is torch.sin for node in graph.graph.nodes)


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_make_fx(compiled, mode):
    graph = make_fx(lambda t: compiled(t), tracing_mode=mode)(X)
    assert torch.allclose(graph(X + 1), program(X + 1))


def test_fake_tensors(compiled):
    mode = FakeTensorMode()
    fake = mode.from_tensor(X)
    with mode:
        results = [compiled(fake)]
    results.append(compiled(fake))
    assert all(isinstance(result, FakeTensor) and result.shape == X.shape for result in results)


def test_functorch(compiled):
    derivative = torch.cos(X) * 2
    assert torch.allclose(torch.vmap(compiled)(X), program(X))
    assert torch.allclose(torch.func.grad(lambda t: compiled(t).sum())(X), derivative)
    assert torch.allclose(torch.func.jvp(compiled, (X,), (X,))[1], derivative * X)
    assert torch.allclose(torch.func.jacrev(compiled)(X), torch.func.jacrev(program)(X))
    assert torch.allclose(torch.vmap(torch.func.grad(lambda t: compiled(t).sum()))(X), derivative)
    assert torch.allclose(torch.func.functionalize(compiled)(X), program(X))


def test_forward_mode(compiled):
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(X, X)
        assert torch.allclose(forward_ad.unpack_dual(compiled(dual)).tangent, torch.cos(X) * 2 * X)


def test_dispatch_mode(compiled):
    with Counting() as mode:
        result = compiled(X)
    assert torch.allclose(result, program(X))
    assert [str(function) for function in mode.operations] == ["aten.sin.default", "aten.mul.Tensor", "aten.add.Tensor"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_functional_call(backend):
    linear = torch.nn.Linear(3, 3)
    values = {name: value * 2 for name, value in linear.named_parameters()}
    expected = torch.func.functional_call(linear, values, (X,))
    inside = kiln.compile(lambda t: torch.func.functional_call(linear, values, (t,)), backend=backend)
    assert torch.allclose(inside(X), expected)
    around = {f"_orig_mod.{name}": value for name, value in values.items()}
    assert torch.allclose(torch.func.functional_call(kiln.compile(linear, backend=backend), around, (X,)), expected)


named = kiln.compile(scale, backend="eager")
scale_by_name, scale = scale, named  # pickled by name, as functions are


def test_copies_and_signatures():
    assert torch.equal(copy.deepcopy(named)(X), scale_by_name(X))
    assert torch.equal(copy.copy(named)(X), scale_by_name(X))
    assert pickle.loads(pickle.dumps(named)) is named
    assert str(inspect.signature(named)) == "(t)"
    assert "program(t) * 3" in inspect.getsource(named)
    linear = torch.nn.Linear(3, 3)
    compiled = kiln.compile(linear, backend="eager")
    assert torch.allclose(copy.deepcopy(compiled)(X), linear(X))
    assert torch.allclose(pickle.loads(pickle.dumps(compiled))(X), linear(X))


GIVEN = {
    "random_": torch.Tensor.random_,
    "random_ in a range": lambda t: torch.Tensor.random_(t, 2, 9),
    "uniform_": torch.Tensor.uniform_,
    "uniform_ by keyword": functools.partial(torch.Tensor.uniform_, to=3.0),
    "normal_": torch.Tensor.normal_,
    "bernoulli_": torch.Tensor.bernoulli_,
    "exponential_": torch.Tensor.exponential_,
    "cauchy_": torch.Tensor.cauchy_,
    "log_normal_": torch.Tensor.log_normal_,
    "geometric_": functools.partial(torch.Tensor.geometric_, p=0.5),
    "zero_": torch.Tensor.zero_,
    "bernoulli": torch.Tensor.bernoulli,
    "dropout": torch.nn.functional.dropout,
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", GIVEN)
def test_given_functions(name, backend):
    """Functions that draw numbers or change tensors, called as values: global, argument, bound, through ``map``."""
    function = GIVEN[name]

    def call(t):
        return function(t) + 1

    def call_argument(t, given):
        return given(t) + 1

    def call_each(t):
        return list(map(function, [t, t * 2]))[1] + 1

    for body, args in ((call, ()), (call_argument, (function,)), (call_each, ())):
        compiled = kiln.compile(body, backend=backend)
        for seed in range(2):
            changed, expected = torch.full((4,), 0.5), torch.full((4,), 0.5)
            torch.manual_seed(seed)
            wanted = body(expected, *args)
            torch.manual_seed(seed)
            assert torch.equal(compiled(changed, *args), wanted)
            assert torch.equal(changed, expected)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["random_", "uniform_", "normal_", "zero_"])
def test_bound_methods_of_tensors(name, backend):
    changed, expected = torch.ones(4), torch.ones(4)
    torch.manual_seed(0)
    getattr(expected, name)()
    torch.manual_seed(0)
    kiln.compile(lambda method: method(), backend=backend)(getattr(changed, name))
    assert torch.equal(changed, expected)
