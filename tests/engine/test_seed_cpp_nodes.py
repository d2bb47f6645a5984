"""Autograd functions written in C++ under the engine, as the document test_compiled_autograd has them."""

import pytest
import torch

import kiln
from kiln.testing import same
from tests.engine.engine_counts import CountingCompiler, beside_eager

covers = pytest.mark.covers
DOCUMENT = "test_compiled_autograd"
SIZES = [10, 100, 10, 20, 10]


def square(size):
    return torch.ones(size, size, requires_grad=True)


def through(operator, x, *more):
    operator(x, *more).sum().backward()
    return x.grad


@covers(f"{DOCUMENT}::test_autograd_cpp_node")
@pytest.mark.parametrize(("names", "count"), [(["identity"], 1), (["identity", "other_identity"], 2)])
def test_one_graph_for_each_function(custom_functions, names, count):
    operators = [getattr(custom_functions, name) for name in names]

    def program():
        for _ in range(4 // len(names)):
            for operator in operators:
                yield through(operator, square(10))

    assert beside_eager(program) == (count, count)


@covers(f"{DOCUMENT}::test_autograd_cpp_node_saved")
def test_values_of_every_kind_saved(custom_functions):
    fixed = torch.ones(2, 2)

    def program():
        for size in SIZES:
            more = (torch.randn(size, size), fixed, True, 1, ["string"], {"string": 1.0})
            yield through(custom_functions.saving, square(size), *more)

    assert beside_eager(program) == (2, 2)


@pytest.mark.parametrize("changed", [(False, 1, ["a"], {"b": 1.0}), (True, 2, ["a"], {"b": 1.0})], ids=str)
def test_saved_values_may_change(custom_functions, changed):
    """Nothing tells which functions in C++ may be traced: they run as they are, and what they save is their own."""

    def program():
        for values in ((True, 1, ["a"], {"b": 1.0}), changed) * 2:
            yield through(custom_functions.saving, square(3), torch.randn(3, 3), torch.ones(2), *values)

    assert beside_eager(program) == (1, 1)


@covers(f"{DOCUMENT}::test_autograd_cpp_node_saved_dynamic")
def test_view_of_varying_size_saved(custom_functions):
    """The document asserts five compiles, one a call: the size of a tensor among the data is a constant there."""

    def program():
        for size in SIZES:
            yield through(custom_functions.saving_view, square(size))

    assert beside_eager(program) == (2, 2)


def calls_of_a_function_that_varies(custom_functions, count):
    custom_functions.reset()
    for _ in range(count):
        x, y = square(10), torch.randn(10, 10, requires_grad=True)
        custom_functions.data_dependent(x, y)[0].sum().backward()
        yield x.grad, y.grad


@covers(f"{DOCUMENT}::test_autograd_cpp_node_data_dependent")
def test_what_is_saved_depends_on_the_call(custom_functions):
    """The document asserts three compiles: what is saved is part of its key. The third call here saves more."""
    assert beside_eager(lambda: calls_of_a_function_that_varies(custom_functions, 4)) == (1, 1)


@pytest.mark.parametrize("fullgraph", [False, True])
def test_which_gradients_there_are_depends_on_the_call(custom_functions, fullgraph):
    """The fifth call gives a gradient less: the graph is made anew, or torch's engine does that pass."""
    torch.manual_seed(3)
    expected = list(calls_of_a_function_that_varies(custom_functions, 8))
    torch.manual_seed(3)
    with kiln.compiled_autograd.enable(CountingCompiler(fullgraph=fullgraph)):
        actual = list(calls_of_a_function_that_varies(custom_functions, 8))
    assert same(expected, actual)
    assert [y for _, y in actual].count(None) == 1


@pytest.mark.parametrize("fullgraph", [False, True])
def test_functions_run_once_a_pass(custom_functions, fullgraph):
    custom_functions.reset()
    x = square(3)
    with kiln.compiled_autograd.enable(CountingCompiler(fullgraph=fullgraph)):
        for number in range(3):
            custom_functions.untraceable(x).sum().backward()
            assert custom_functions.calls() == number + 1


@covers(f"{DOCUMENT}::test_cudagraphs_cpu_scalar_used_in_cpp_custom_op")
def test_tensors_inside_saved_containers(custom_functions):
    """The document has this on a GPU, with a number of the processor's among what is saved."""

    def program():
        for _ in range(2):
            yield through(custom_functions.saving_nested, square(2), torch.randn(2, 2), torch.tensor(5.0))

    assert beside_eager(program) == (1, 1)
