"""The state of torch in captured code: grad mode, autocast, inference mode, RNG, dtype, determinism; functions of torch
that are Python; what makes tensors out of Python numbers."""

from __future__ import annotations

import random

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch.profiler import record_function
from torch.utils.checkpoint import checkpoint

import kiln
from kiln.testing import check
from tests.support.program_table import ProgramTable

X = torch.arange(6.0).reshape(2, 3) / 3


def leaf():
    return (torch.arange(6.0).reshape(2, 3) / 3).requires_grad_()


# -- grad mode ------------------------------------------------------------------------------------------------------

modes = ProgramTable(calls=2)


@modes(leaf())
def no_grad(x):
    with torch.no_grad():
        y = x * 2
    z = x * 3
    return y, z, y.requires_grad, z.requires_grad, torch.is_grad_enabled()


@modes(leaf())
def nested_grad_modes(x):
    with torch.no_grad():
        a = x * 2
        with torch.enable_grad():
            b = x * 3
            with torch.set_grad_enabled(False):
                c = x * 4
        d = x * 5
    return a, b, c, d


@modes(leaf())
def grad_mode_left_changed(x):
    y = x * 2
    torch.set_grad_enabled(False)
    z = x * 2
    return y, z


@modes(leaf())
def grad_mode_from_flag(x):
    results = []
    for flag in (True, False):
        with torch.set_grad_enabled(flag):
            results.append(x.exp())
    return results


@modes(leaf())
def grad_mode_object(x):
    context = torch.no_grad()
    with context:
        y = x * 2
    with context:
        z = x * 3
    return y, z


@torch.no_grad()
def undifferentiated(x):
    return x * 2


@torch.enable_grad()
def differentiated(x):
    return x * 2


@modes(leaf())
def decorated(x):
    with torch.no_grad():
        y = differentiated(x)
    return undifferentiated(x), y, x + 1


@modes(leaf())
def exception_in_no_grad(x):
    try:
        with torch.no_grad():
            y = x * 2
            raise ValueError("stop")
    except ValueError:
        pass
    return x * 2, y


@modes(leaf())
def returning_from_no_grad(x):
    with torch.no_grad():
        return x * 2


@modes(leaf())
def detaching(x):
    y = x * 2
    z = y.detach()
    z2 = y.detach().requires_grad_()
    return y, z, z2, x.requires_grad_(True)


@modes(X)
def inference(x):
    with torch.inference_mode():
        y = x * 2
        flag = torch.is_inference_mode_enabled(), x.is_inference()
    return y.is_inference(), flag, torch.is_inference_mode_enabled()


@torch.inference_mode()
def inferred(x):
    with torch.inference_mode(False):
        y = x.clone() * 2
    return y, (x * 3).is_inference()


@modes(leaf())
def inference_decorated(x):
    y, flag = inferred(x)
    return y * 2, flag


@modes.breaking(leaf())
def break_in_inference(x):
    with torch.inference_mode():
        y = x * 2
        n = y.sum().item()
        z = x * n
    return y.is_inference(), z.is_inference(), (x * n).requires_grad, torch.is_inference_mode_enabled()


@modes.breaking(X, torch.tensor([7]))
def error_in_inference(x, index):
    try:
        with torch.inference_mode():
            y = x[index] * 2
    except IndexError:
        return torch.is_inference_mode_enabled()
    return y


@modes.breaking(X, torch.tensor([7]))
def unhandled_error_in_inference(x, index):
    with torch.inference_mode():
        return x[index] * 2


@modes.rows
def test_grad_modes(program, args, expect):
    modes.run(program, args, expect)


def test_break_under_no_grad():
    def program(x):
        with torch.no_grad():
            y = x * 2
            n = y.sum().item()
            z = x * n
        return y, z, x * 3

    check(program, leaf(), breaks=1)


def test_called_under_each_grad_mode():
    def program(x):
        return x * 2

    compiled = kiln.compile(program)
    x = leaf()
    assert compiled(x).requires_grad
    with torch.no_grad():
        assert not compiled(x).requires_grad
    with torch.inference_mode():
        assert compiled(x).is_inference()
    assert compiled(x).requires_grad


# -- autocast and other switches ------------------------------------------------------------------------------------

switches = ProgramTable(calls=2)


@switches(leaf())
def autocast(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ x.t()
        z = y + 1
    return y, z, x @ x.t(), y.dtype


@switches(leaf())
def nested_autocast(x):
    with torch.autocast("cpu"):
        a = F.linear(x, x)
        with torch.autocast("cpu", enabled=False):
            b = F.linear(x, x)
        c = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
        d = torch.mm(a.t(), a)
    return a.dtype, b.dtype, c, d


@switches(X)
def default_dtype(x):
    torch.set_default_dtype(torch.float64)
    y = torch.ones(2) * 2
    torch.set_default_dtype(torch.float32)
    return y, torch.get_default_dtype(), torch.ones(1).dtype


@switches(X)
def default_dtype_left_changed(x):
    torch.set_default_dtype(torch.float64)
    return torch.tensor(1.5)


@switches(X)
def profiled(x):
    with record_function("block"):
        y = x * 2
    return y


@switches.breaking(X)
def deterministic(x):
    torch.use_deterministic_algorithms(True)
    y = x * 2
    flag = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(False)
    return y, flag


@switches.breaking(X)
def anomaly(x):
    with torch.autograd.set_detect_anomaly(True):
        y = x * 2
    return y


@switches.breaking(leaf())
def checkpointed(x):
    return checkpoint(lambda t: (t * 2).sin(), x, use_reentrant=False)


@switches.breaking(X)
def backends(x):
    return x * 2 if torch.backends.mkldnn.is_available() else x, torch.cuda.is_available(), torch.get_num_threads()


@switches.rows
def test_switches(program, args, expect):
    switches.run(program, args, expect)


def test_profiler_sees_the_block():
    compiled = kiln.compile(profiled, fullgraph=True)
    compiled(X)
    with torch.autograd.profiler.profile() as profile:
        compiled(X)
    assert "block" in {event.name for event in profile.function_events}


def test_autocast_outside():
    def program(x):
        return x @ x.t()

    compiled = kiln.compile(program)
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype=dtype):
            assert compiled(X).dtype is program(X).dtype is dtype
    assert compiled(X).dtype is torch.float32


# -- random numbers -------------------------------------------------------------------------------------------------

randoms = ProgramTable(calls=2)


@randoms(X)
def drawn(x):
    return torch.rand(2, 3) + x, torch.randn_like(x), torch.randint(10, (3,)), torch.randperm(4), torch.rand(())


@randoms(X)
def drawn_in_place(x):
    y = torch.empty(3).uniform_()
    return y.normal_(), torch.empty(2).bernoulli_(0.5), y.exponential_(), torch.normal(0.0, 1.0, (2,)), y.random_(5)


@randoms(leaf())
def dropped(x):
    return (
        F.dropout(x, 0.5),
        F.dropout(x, training=False),
        F.alpha_dropout(x, 0.3, training=True),
        F.rrelu(x, training=True),
    )


@randoms(X.clamp(0.1, 0.9))
def sampled(x):
    return torch.bernoulli(x), torch.multinomial(x, 2), torch.poisson(x), F.gumbel_softmax(x)


@randoms.breaking(X)
def seeded(x):
    torch.manual_seed(7)
    y = torch.rand(2)
    torch.manual_seed(7)
    return y, torch.rand(2) + x.sum(), torch.initial_seed()


@randoms.breaking(X)
def forked(x):
    with torch.random.fork_rng():
        y = torch.rand(2)
    return y, torch.rand(2)


@randoms.breaking(X)
def states(x):
    state = torch.get_rng_state()
    y = torch.rand(2)
    torch.set_rng_state(state)
    return y, torch.rand(2)


@randoms.breaking(X)
def generator_inside(x):
    generator = torch.Generator().manual_seed(3)
    return torch.rand(2, generator=generator), torch.randn(2, generator=generator) + x.sum(), torch.rand(1)


@randoms.breaking(X)
def python_random(x):
    return x * random.random(), numpy.random.rand(), random.choice([1, 2, 3])


@randoms.rows
def test_randoms(program, args, expect):
    randoms.run(program, args, expect)


def test_generator_argument():
    def program(x, generator):
        return torch.rand(3, generator=generator) + x.sum(), torch.randperm(4, generator=generator)

    def setup():
        return program, [(X, torch.Generator().manual_seed(5))] * 2

    report = check(setup=setup, fullgraph=True)
    assert report.recompiles == 0

    def drawn_in_place(x, generator):
        y = x.clone().uniform_(generator=generator)
        return torch.randn(2, generator=generator), y.bernoulli_(0.3, generator=generator)

    check(setup=lambda: (drawn_in_place, (X, torch.Generator().manual_seed(5))), breaks_every=(None, "line"))


# -- numbers and factories ------------------------------------------------------------------------------------------

factories = ProgramTable()


@factories(X)
def numbers(x):
    five = torch.tensor(5)
    return five, x * five, torch.tensor(2.5), torch.tensor([1, 2]), torch.tensor([[1.0], [2.0]]), torch.tensor(True)


@factories(X)
def number_options(x):
    kind = dict(dtype=torch.float64, device=x.device)
    return (
        torch.tensor([1, 2], **kind),
        torch.as_tensor(3.0),
        torch.scalar_tensor(2),
        torch.tensor([], dtype=torch.int64),
    )


@factories(X)
def parameter_of_number(x):
    y = torch.tensor([1.0, 2.0], requires_grad=True)
    return (y * 2).sum(), y


@factories.breaking(X)
def of_tensors(x):
    a = torch.tensor([x[0, 0], x[1, 1]])
    return a, torch.tensor([[x.sum(), 1.0]]), torch.as_tensor([x[0, 0], 2.0]), torch.tensor(x[0, 1])


@factories(X)
def shapes(x):
    n = x.shape[1]
    made = [
        torch.zeros(n),
        torch.ones(2, n),
        torch.full((n,), 7.0),
        torch.eye(n),
        torch.arange(n),
        torch.linspace(0, 1, n),
    ]
    likes = [
        torch.zeros_like(x),
        torch.ones_like(x, dtype=torch.int32),
        torch.full_like(x, 3),
        x.new_ones(2),
        x.new_tensor([1]),
    ]
    return made, likes, torch.empty(0), x.new_full((2,), 1.5), torch.tril_indices(2, 2), torch.hann_window(4)


@factories(X)
def grids(x):
    a, b = torch.meshgrid(torch.arange(2), torch.arange(3), indexing="ij")
    return a + b, torch.cartesian_prod(torch.arange(2), torch.arange(2)), torch.block_diag(x, x)


@factories(X)
def einsums(x):
    return torch.einsum("ij,kj->ik", x, x), torch.tensordot(x, x, dims=([1], [1])), torch.einsum("ij->", x)


@factories(torch.eye(3) * 2)
def linear_algebra(x):
    q, r = torch.linalg.qr(x)
    values, vectors = torch.linalg.eigh(x)
    sign, log = torch.linalg.slogdet(x)
    solved = torch.linalg.solve(x, torch.ones(3))
    return (
        q @ r,
        values,
        torch.linalg.norm(x),
        torch.linalg.inv(x),
        torch.linalg.det(x),
        log,
        solved,
        torch.linalg.svd(x).S,
    )


@factories(X)
def fourier(x):
    spectrum = torch.fft.rfft(x)
    return spectrum, torch.fft.irfft(spectrum, n=3), torch.fft.fft2(x), torch.fft.fftshift(x), torch.fft.fftfreq(4)


@factories(X)
def special(x):
    return torch.special.erf(x), torch.special.logit(x / 4), torch.special.xlogy(x, x), torch.special.logsumexp(x, 0)


@factories(X)
def named_results(x):
    result = x.max(dim=1)
    top = torch.topk(x, 2)
    return result, result.values, result[1], top.indices, torch.sort(x, descending=True), x.mode().values, tuple(top)


@factories(X)
def closed_over(x):
    return x * CONSTANT, CONSTANT.sum(), x + NUMBER


CONSTANT = torch.tensor([1.0, 2.0, 3.0])
NUMBER = 4.5


@factories(X)
def complex_numbers(x):
    z = torch.complex(x, x + 1)
    return z.abs(), z * 1j, z.conj() @ z.t(), torch.view_as_real(z), torch.polar(x, x), z.real, (z == z).all()


@factories.breaking(torch.eye(3))
def sparse(x):
    s = x.to_sparse()
    return torch.sparse.mm(s, x), s.to_dense(), s.is_sparse


@factories.breaking(X)
def quantized(x):
    q = torch.quantize_per_tensor(x, 0.1, 0, torch.quint8)
    return q.dequantize(), q.int_repr()


@factories.breaking(leaf())
def transforms(x):
    gradient = torch.func.grad(lambda t: (t**2).sum())(x.detach())
    mapped = torch.func.vmap(lambda row: row.sum() * 2)(x)
    return gradient, mapped


@factories.breaking(leaf())
def gradients(x):
    y = (x**3).sum()
    (first,) = torch.autograd.grad(y, x, create_graph=True)
    return first, torch.autograd.grad(first.sum(), x)[0]


@factories.breaking(leaf())
def backward_inside(x):
    y = x * 2
    y.sum().backward()
    return x.grad * 2


@factories.breaking(leaf())
def hooks(x):
    y = x * 2
    y.register_hook(lambda grad: grad * 10)
    return y * 3


@factories.rows
def test_factories(program, args, expect):
    factories.run(program, args, expect)


@pytest.mark.parametrize("layout", ["sparse", "csr", "quantized", "nested", "mkldnn"])
def test_unusual_arguments(layout):
    def program(x):
        y = torch.ones(2) + 1
        return x.is_sparse, y, x.dim()

    def setup():
        made = {
            "sparse": lambda: torch.eye(3).to_sparse(),
            "csr": lambda: torch.eye(3).to_sparse_csr(),
            "quantized": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8),
            "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
            "mkldnn": lambda: torch.ones(2, 2).to_mkldnn(),
        }
        return program, (made[layout](),)

    program_, args = setup()
    expected, compiled = program_(*args), kiln.compile(program_)
    for _ in range(2):
        seen = compiled(*args)
        assert (seen[0], seen[2]) == (expected[0], expected[2])
        assert torch.equal(seen[1], expected[1])
