"""Where torch's own machinery meets captured code: dispatch modes, transforms, hooks, odd tensors, leaf mutation."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import kiln
from kiln.testing import check
from tests.support.program_table import ProgramTable

X = torch.arange(6.0).reshape(2, 3) / 3


def leaf():
    return (torch.arange(6.0).reshape(2, 3) / 3).requires_grad_()


def polynomial(x):
    y = x * x
    return (y + x.sin()).sum(-1)


# -- modes and transforms around compiled code ----------------------------------------------------------------------


class Logging(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


class Widening(TorchDispatchMode):
    """Every product is float64: fakes would not know."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result.double() if func is torch.ops.aten.mul.Tensor else result


def test_dispatch_mode_outside():
    compiled = kiln.compile(polynomial)
    compiled(X)
    with Logging() as expected:
        polynomial(X)
    for _ in range(2):
        with Logging() as seen:
            compiled(X)
        assert seen.names == expected.names
    with Widening():
        assert compiled(X).dtype is polynomial(X).dtype is torch.float64
    assert compiled(X).dtype is torch.float32


def test_dispatch_mode_inside():
    def program(x):
        with Logging() as mode:
            y = x * 2
            y = y + 1
        return y * 3, mode.names

    check(program, X)


@pytest.mark.parametrize("transform", [torch.func.vmap, lambda f: torch.func.grad(lambda x: f(x).sum())])
def test_transform_of_compiled(transform):
    compiled = kiln.compile(polynomial)
    for _ in range(2):
        assert torch.equal(transform(compiled)(X), transform(polynomial)(X))
        assert torch.equal(compiled(X), polynomial(X))


def test_jacobian_and_tangents():
    compiled = kiln.compile(polynomial)
    assert torch.equal(torch.func.jacrev(compiled)(X), torch.func.jacrev(polynomial)(X))
    primal, tangent = torch.func.jvp(compiled, (X,), (X + 1,))
    expected = torch.func.jvp(polynomial, (X,), (X + 1,))
    assert torch.equal(primal, expected[0]) and torch.equal(tangent, expected[1])


def test_hooks_on_saved_tensors_outside():
    def run(function):
        log = []

        def pack(tensor):
            log.append((type(tensor), tensor.shape))
            return tensor

        x = leaf()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            y = function(x)
        y.sum().backward()
        return log, x.grad

    expected, gradient = run(polynomial)
    seen, compiled_gradient = run(kiln.compile(polynomial))
    assert seen == expected
    assert torch.equal(gradient, compiled_gradient)


def test_saved_tensors_hooks_inside():
    def program(x):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t):
            y = x * x
        return y + x * x

    check(program, leaf())


def test_fake_arguments():
    from torch._subclasses.fake_tensor import FakeTensorMode

    compiled = kiln.compile(polynomial)
    with FakeTensorMode() as mode:
        result = compiled(mode.from_tensor(X))
    assert result.shape == (2,) and type(result).__name__ == "FakeTensor"


def test_meta_arguments():
    compiled = kiln.compile(polynomial)
    result = compiled(X.to("meta"))
    assert result.device.type == "meta" and result.shape == (2,)
    assert torch.equal(compiled(X), polynomial(X))


# -- odd tensors ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "argument",
    [
        X.half(),
        X.bfloat16(),
        X.to(torch.complex64),
        X.to(torch.int8),
        X > 1,
        torch.tensor(2.5),
        torch.empty(0, 3),
        X.t(),
        X[:, ::2],
        torch.ones(3).expand(2, 3),
        torch.ones(6).as_strided((2, 3), (1, 1)),
        torch.conj(X + 1j),
        torch.view_as_real(X + 1j)[..., 0],
        nn.Parameter(X.clone()),
        nn.Buffer(X.clone()),
    ],
)
def test_odd_tensors(argument):
    def program(x):
        y = x * 2
        facts = y.shape, y.dtype, y.stride(), y.is_contiguous(), type(x), x.is_conj(), y.requires_grad
        return y.reshape(-1).sum(), y.view_as(y), facts, x.clone().stride(), x.detach()

    def setup():  # a deep copy would make some of these ordinary
        return program, (argument,)

    check(setup=setup, fullgraph=True, grads=False)


class Wrapping(torch.Tensor):
    """A wrapper with ``__torch_dispatch__``: not for graphs."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        plain = [arg.inner if isinstance(arg, cls) else arg for arg in args]
        return cls(func(*plain, **(kwargs or {})))


def test_wrapper_subclass():
    def program(x, y):
        a = y + 1
        b = x * 2 + 1
        return b, a * 2

    compiled = kiln.compile(program)
    for _ in range(2):
        seen, other = compiled(Wrapping(X), X)
        assert type(seen) is Wrapping and torch.equal(seen.inner, X * 2 + 1)
        assert torch.equal(other, (X + 1) * 2)


def test_lazy_module():
    def program(module, x):
        return module(x)

    def setup():
        torch.manual_seed(0)
        return program, [(nn.LazyLinear(4), X)] * 2

    check(setup=setup)


def test_parameter_subclass():
    class Weight(nn.Parameter):
        def doubled(self):
            return self * 2

    def program(w, x):
        return w.doubled() + x, isinstance(w, nn.Parameter), type(w) is Weight

    def setup():
        return program, (Weight(X.clone()), X)

    check(setup=setup, fullgraph=True)


# -- mutation of arguments ------------------------------------------------------------------------------------------

mutations = ProgramTable(calls=2)


@mutations(leaf())
def step_by_hand(p):
    with torch.no_grad():
        p -= 0.1 * p
        p.mul_(2).add_(1)
    return p * 2


@mutations(leaf())
def through_data(p):
    p.data.add_(1)
    p.data[0] = 3.0
    return p.sum()


@mutations(leaf())
def through_detach(p):
    d = p.detach()
    d.mul_(2)
    return p * d


@mutations(X.clone())
def form_of_argument(x):
    x.unsqueeze_(0)
    x.squeeze_(0)
    x.transpose_(0, 1)
    y = x.shape
    x.t_()
    return y, x.shape, x + 1


@mutations.breaking(X.clone())
def size_of_argument(x):
    x.resize_(3, 2)
    return x.shape, x * 2


@mutations(X.clone())
def requires_grad_of_argument(x):
    x.requires_grad_()
    y = x * 2
    return y, x.requires_grad


@mutations.breaking(leaf())
def in_place_on_leaf(x):
    try:
        x.add_(1)
    except RuntimeError as error:
        return str(error)[:20]


@mutations.breaking(leaf())
def in_place_on_leaf_unhandled(x):
    y = x * 2
    x.add_(1)
    return y


@mutations.breaking(leaf())
def in_place_on_saved(x):
    y = x.exp()
    y.add_(1)
    return y


@mutations(X.clone(), X.clone())
def swapped(x, y):
    x[:], y[:] = y.clone(), x.clone()
    return x - y


@mutations(leaf())
def gradient_accumulated(p):
    p.grad = torch.ones_like(p) if p.grad is None else p.grad + 1
    q = p.grad * 2
    p.grad.mul_(3)
    return q


@mutations(leaf())
def gradient_dropped(p):
    had = p.grad is not None
    p.grad = None
    return had, p.grad


@mutations.rows
def test_mutations(program, args, expect):
    mutations.run(program, args, expect)


def test_each_look_at_the_gradient_of_a_result_warns():
    """Also once the program has set it to None."""
    seen = []
    for function in (gradient_dropped, kiln.compile(gradient_dropped)):
        result = leaf() * 2
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            assert function(result) == (False, None)
        seen.append([str(warning.message) for warning in heard])
    assert seen[1] == seen[0] and len(seen[0]) == 2


# -- classes and copies ---------------------------------------------------------------------------------------------

classes = ProgramTable(fullgraph=False)


@classes(X)
def constructors(x):
    return torch.Tensor([1, 2]), torch.FloatTensor([3.0]), torch.LongTensor([4, 5]), torch.Tensor(2, 0), x.new([1.0])


@classes(X, versions=False)  # those of copies
def copies(x):
    y = x * 2
    return copy.copy(y), copy.deepcopy(y), y.clone()


@classes(X)
def copies_of_modules(x):
    layer = nn.Linear(3, 2)
    twin = copy.deepcopy(layer)
    return torch.equal(layer(x), twin(x)), layer.weight is twin.weight


@classes(X)
def storages(x):
    y = x * 2
    return y.untyped_storage().nbytes(), y.data_ptr() == y.data_ptr(), x.is_shared(), y.is_pinned()


@classes(X)
def scripted(x):
    return SCRIPTED(x * 2) + 1


SCRIPTED = torch.jit.script(polynomial)


@classes(X)
def containers_of_tensors(x):
    table = {x: 1}
    seen = {x, x}
    return x in table, len(seen), table[x], [x].index(x), [x, x].count(x)


@classes(X)
def sorted_by_value(x):
    rows = sorted(x.unbind(), key=lambda row: -row.sum().item())
    return rows, max(x[0]), min(x.flatten()), any(x[1] > 1), all(x[0] > -1)


@classes(X)
def formatted(x):
    return f"{x.shape} {x.dtype} {x.device}", str(x.size()), repr(x.dtype), f"{tuple(x.shape)!r:>10}"


@classes.rows
def test_classes(program, args, expect):
    classes.run(program, args, expect)
