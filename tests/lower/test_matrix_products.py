"""Products with one row or column on a GPU: which become kernels, what they mean, what is fused."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from kiln.loops import reference
from kiln.loops.steps import Launch
from tests.support.codegen_programs import calls, graph_of, launches, scheduled_of
from tests.support.cuda_programs import cuda_graph_of, cuda_scheduled_of
from tests.target.cuda_on_cpu import run_as_on_gpu

aten = torch.ops.aten
TYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64]
TOLERANCE = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 1e-5, torch.float64: 1e-12}


def made(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(dtype)


def linear(x, weight):
    return F.linear(x, weight)


def one_row(dtype=torch.float32):
    return made(1, 96, dtype=dtype), made(40, 96, dtype=dtype)


def one_column(dtype=torch.float32):
    return made(40, 96, dtype=dtype), made(1, 96, dtype=dtype)


def outer(dtype=torch.float32):
    return made(40, 1, dtype=dtype), made(24, 1, dtype=dtype)


def one_element(dtype=torch.float32):
    return made(1, 1, dtype=dtype), made(1, 1, dtype=dtype)


FORMS = [one_row, one_column, outer, one_element]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("form", FORMS, ids=lambda one: one.__name__)
def test_products_that_are_kernels(form, dtype):
    inputs = form(dtype)
    scheduled = cuda_scheduled_of(linear, inputs)
    assert not calls(scheduled) and len(launches(scheduled)) == 1
    (found,) = reference.run(scheduled, inputs)
    wanted = linear(*(one.double() for one in inputs)).to(dtype)
    torch.testing.assert_close(found, wanted, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("alpha, beta", [(1, 1), (2, 1), (0.5, 3), (1, 0), (0, 1)])
@pytest.mark.parametrize("form", FORMS, ids=lambda one: one.__name__)
def test_products_with_something_added(form, alpha, beta):
    def program(x, weight, bias):
        return torch.addmm(bias, x, weight.t(), alpha=alpha, beta=beta)

    x, weight = form()
    bias = made(weight.shape[0])
    if beta == 0:
        bias = bias * float("nan")  # which counts for nothing
    scheduled = cuda_scheduled_of(program, [x, weight, bias])
    assert not calls(scheduled)
    (found,) = reference.run(scheduled, [x, weight, bias])
    torch.testing.assert_close(found, program(x, weight, bias), rtol=1e-5, atol=1e-5)


def products_for_a_library():
    x, weight = one_row()
    yield "two rows", linear, (made(2, 96), weight)
    yield "a matrix contiguous along its columns", lambda x, w: x @ w, (x, made(96, 40))
    yield "a column of rows that are not contiguous", lambda x, w: x.t() @ w, (made(96, 40), made(96, 1))
    yield "integers", lambda x, w: x @ w.t(), (torch.ones(1, 8, dtype=torch.int64), torch.ones(4, 8, dtype=torch.int64))
    yield "a type of its own", lambda x, w: aten.mm.dtype(x, w.t(), torch.float32), one_row(torch.bfloat16)
    yield "no elements", linear, (made(1, 0), made(40, 0))
    yield "complex numbers", linear, one_row(torch.complex64)


@pytest.mark.parametrize(
    "name, program, inputs", list(products_for_a_library()), ids=lambda one: one if isinstance(one, str) else ""
)
def test_products_that_stay_calls(name, program, inputs):
    graph = cuda_graph_of(program, inputs)
    products = [node for node in graph.graph.nodes if "mm" in str(node.target)]
    scheduled = cuda_scheduled_of(program, inputs)
    assert products and {str(node.target) for node in products} <= set(calls(scheduled))


def test_products_stay_calls_for_sizes_that_vary_and_on_the_cpu():
    assert calls(cuda_scheduled_of(linear, one_row(), dynamic=True)) == ["aten.mm.default"]
    assert calls(scheduled_of(linear, one_row())) == ["aten.mm.default"]
    assert graph_of(linear, one_row())


def test_a_layer_of_a_token_is_three_kernels():
    """The norm; the first product with bias and activation; the second with bias and the residual."""

    def layer(x, norm, up, more, down, less):
        y = F.gelu(F.linear(F.layer_norm(x, (64,), norm, norm), up, more), approximate="tanh")
        return x + F.linear(y, down, less)

    bf16 = torch.bfloat16
    shapes = [(1, 1, 64), (64,), (256, 64), (256,), (64, 256), (64,)]
    inputs = [made(*shape, dtype=bf16) for shape in shapes]
    scheduled = cuda_scheduled_of(layer, inputs)
    assert len(scheduled.steps) == 3 and all(isinstance(step, Launch) for step in scheduled.steps)
    (found,) = reference.run(scheduled, inputs)
    torch.testing.assert_close(found, layer(*inputs), rtol=5e-2, atol=5e-2)


@pytest.mark.parametrize("form", FORMS, ids=lambda one: one.__name__)
def test_code(form):
    """The kernel's code, its threads run on the CPU."""
    inputs = form(torch.bfloat16)
    scheduled = cuda_scheduled_of(linear, inputs)
    (launch,) = launches(scheduled)
    places = dict(zip(scheduled.inputs, inputs, strict=True))
    result = next(buffer for buffer in launch.buffers if buffer not in places)
    given = {
        own: places.get(buffer, torch.zeros(1, dtype=result.dtype).expand(1).repeat(result.span))
        for own, buffer in zip(launch.kernel.buffers, launch.buffers, strict=True)
    }
    numbers = dict(zip(launch.kernel.sizes, launch.sizes, strict=True))
    after = run_as_on_gpu(launch.kernel, given, numbers)
    found = after[launch.kernel.buffers[launch.buffers.index(result)]]
    wanted = linear(*inputs)
    torch.testing.assert_close(found.view(wanted.shape), wanted, rtol=1e-2, atol=1e-2)


def test_no_result_is_negative_zero():
    inputs = torch.tensor([[-1.0], [1.0]]), torch.tensor([[0.0], [-0.0]])
    (found,) = reference.run(cuda_scheduled_of(linear, inputs), inputs)
    assert not found.signbit().any()


def test_values_that_a_library_reads_are_prepared_for_it():
    """A value that a product of many rows has in memory is read from there, not computed again."""

    def program(x, z, w):
        y = x + z
        return y * (y @ w)

    scheduled = cuda_scheduled_of(program, [made(32, 64), made(32, 64), made(64, 64)])
    assert calls(scheduled) == ["aten.mm.default"]
    added, multiplied = (step.kernel.text for step in launches(scheduled))
    assert "arg0_1[" in added and "arg0_1[" not in multiplied
