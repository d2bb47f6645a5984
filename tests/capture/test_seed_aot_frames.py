"""Frames, guards and recompiles of the ahead-of-time document, and its programs as capture sees them.

The document runs these programs through a backend that differentiates ahead of time; what it asserts of frames, guards
and recompiles is capture's, and is tested here with the eager backend, and with that backend as soon as there is one.
"""

import pytest
import torch

import kiln
from kiln.testing import CompileCounter, CompileCounterWithBackend, check

BACKENDS = [name for name in ("eager", "aot_eager") if name in kiln.list_backends()]
pytestmark = pytest.mark.parametrize("backend", BACKENDS)


def square(*shape, gradient=True):
    return torch.linspace(-2, 2, 9).reshape(3, 3).requires_grad_(gradient)


def counted(module, backend, *calls):
    """The number of frames compiled for calls of a module, and the reasons of recompiles; results as in eager."""
    counter, reasons = CompileCounterWithBackend(backend), []
    compiled = kiln.compile(module, backend=counter)
    with kiln.on_recompile(lambda function, reason: reasons.append(reason)):
        for args in calls:
            expected, seen = module(*copies(args)), compiled(*args)
            assert kiln.testing.same(expected, seen), "the result"
    return counter.frame_count, reasons


def copies(args):
    """Copies of the arguments, in which what is one tensor stays one."""
    known = {}
    return [known.setdefault(id(a), a.clone()) if isinstance(a, torch.Tensor) else a for a in args]


# -- recompiles --------------------------------------------------------------------------------------------------------


class Sum(torch.nn.Module):
    def forward(self, x, y):
        return (x + y,)


@pytest.mark.covers("test_aot_autograd::test_requires_grad_fake_via_dynamo_recompiles")
def test_requires_grad_is_guarded(backend):
    x, y, z = square(), square(), square(gradient=False)
    frames, (reason,) = counted(Sum(), backend, (x, y), (x, y), (x, z), (x, z))
    assert frames == 2
    assert "L['y']" in reason and "requires_grad" in reason
    frames, reasons = counted(Sum(), backend, (x, z), (x, z))
    assert frames == 1 and not reasons


class Truncates(torch.nn.Module):
    """Changes its arguments in place: whether two are one tensor matters."""

    def __init__(self):
        super().__init__()
        self.mean = torch.nn.Parameter(torch.ones(3, 3))

    def forward(self, a, b):
        a.trunc_()
        b.trunc_()
        return a + b + self.mean


class TruncatesFour(torch.nn.Module):
    def forward(self, a, b, c, d):
        for each in (a, b, c, d):
            each.trunc_()
        return (a + b + c + d,)


class TruncatesWithNumbers(Truncates):
    def forward(self, a, b, e, f):
        return super().forward(a, b) * e * f


class TruncatesWithLists(Truncates):
    def forward(self, e, f, a, b):
        return super().forward(a, b) * e[0] * f[0]


GLOBAL = square()


class TruncatesWithGlobal(TruncatesWithNumbers):
    def forward(self, a, b, e, f):
        return super().forward(a, b, e, f) + GLOBAL


LISTS = ([3, 2, 1], [4, 5, 6])


@pytest.mark.covers(
    "test_aot_autograd::test_arg_dupe_via_dynamo_recompiles",
    "test_aot_autograd::test_arg_dupe_via_dynamo_recompiles_many_args",
    "test_aot_autograd::test_arg_dupe_via_dynamo_recompiles_many_args_param",
    "test_aot_autograd::test_arg_dupe_via_dynamo_recompiles_many_args_param_non_tensor_arg",
    "test_aot_autograd::test_arg_dupe_via_dynamo_recompiles_many_args_param_non_tensor_arg_list",
    "test_aot_autograd::test_arg_dupe_via_dynamo_recompiles_many_with_global",
)
@pytest.mark.parametrize(
    ("kind", "arguments", "names"),
    [
        (Truncates, lambda a, b: (a, b), "ab"),
        (TruncatesWithNumbers, lambda a, b: (a, b, 2, 2), "ab"),
        (TruncatesWithLists, lambda a, b: (*LISTS, a, b), "ab"),
        (TruncatesWithGlobal, lambda a, b: (a, b, 2, 2), "ab"),
        (TruncatesFour, lambda a, b: (square().clone(), b.clone(), a, b), "cd"),
        (TruncatesFour, lambda a, b: (a, b, b, b), "ab"),
    ],
    ids=["two", "numbers", "lists", "global", "last two of four", "first two of four"],
)
def test_one_tensor_given_twice_is_guarded(kind, arguments, names, backend):
    def fresh():
        return square().clone()

    once, twice = fresh(), fresh()
    frames, (reason,) = counted(
        kind(), backend, arguments(once, once), arguments(twice, twice), arguments(fresh(), fresh())
    )
    assert frames == 2
    assert f"L['{names[0]}']" in reason and f"L['{names[1]}']" in reason and " is " in reason
    frames, reasons = counted(kind(), backend, arguments(fresh(), fresh()), arguments(fresh(), fresh()))
    assert frames == 1 and not reasons


@pytest.mark.covers("test_aot_autograd::test_call_fn_with_non_const_inputs_aot_unsafe_control_flow")
@pytest.mark.parametrize("small", [True, False])
def test_branch_on_a_value_in_a_callee(backend, small):
    class Branches(torch.nn.Module):
        def choose(self, parameter, y):
            if y[0][0] < 3:
                return y + parameter
            return parameter * y

        def forward(self, x, y):
            a = self.choose(x * y, x * y)
            return a * (x + y)

    x = torch.nn.Parameter(torch.ones(2, 2))
    y = torch.full((2, 2), 1.0 if small else 5.0)
    report = check(Branches(), x, y, backend=backend, calls=2, recompiles=0)
    # One graph up to the condition, one for each branch, one for the rest; the product is made twice as written.
    assert len(report.graphs) == 4
    assert report.ops == 8
    counter = CompileCounter()
    again = kiln.compile(kiln.compile(Branches(), backend=counter), backend=backend)
    assert kiln.testing.same(again(x, y), Branches()(x, y)), "compiled twice over"


def check_exported(module, arguments, inputs, backend):
    """The graph of a whole call is a program like any other."""
    graph, _ = kiln.export(module)(*arguments)
    expected, seen = copies(inputs), copies(inputs)
    compiled = kiln.compile(graph, backend=backend, fullgraph=True)
    assert kiln.testing.same((graph(*expected), expected), (compiled(*seen), seen))


# -- programs ----------------------------------------------------------------------------------------------------------


@pytest.mark.covers(
    "test_aot_autograd::test_mutation", "test_aot_autograd::test_call_fn_with_non_const_inputs_aot_unsafe"
)
def test_leaf_changed_without_gradients(backend):
    class Adds(torch.nn.Module):
        def forward(self, parameter, y):
            before = torch.is_grad_enabled()
            try:
                torch.set_grad_enabled(False)
                parameter.add_(y)
            finally:
                torch.set_grad_enabled(before)
            return y

    arguments = (torch.nn.Parameter(torch.ones(4)), torch.arange(4.0))
    check(Adds(), *arguments, backend=backend, graphs=1, fullgraph=True)
    check_exported(Adds(), arguments, arguments, backend)


@pytest.mark.covers("test_aot_autograd::test_mutation1", "test_aot_autograd::test_negative_testing_mutation")
@pytest.mark.parametrize("own", [False, True], ids=["argument", "copy"])
def test_slices_written(backend, own):
    def function(stack, scores):
        part = scores[(slice(None), slice(None), slice(None, 4), slice(None, 5))]
        if own:
            stack = torch.sin(stack)
        stack[(slice(None), slice(None, -1), slice(None), slice(4, None))] = part
        return (stack.view(1, 3, 16, 9),)

    check(function, torch.ones(3, 4, 4, 9), torch.zeros(3, 3, 8, 9), backend=backend, graphs=1, fullgraph=True)


@pytest.mark.covers("test_aot_autograd::test_negative_testing")
def test_intermediate_changed(backend):
    check(lambda x, y: torch.sin(x).add_(y), torch.ones(4), torch.ones(4), backend=backend, graphs=1, fullgraph=True)


@pytest.mark.covers("test_aot_autograd::test_call_fn_with_non_const_inputs_aot_safe")
def test_method_that_takes_parameters(backend):
    class Convolves(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.convolution = torch.nn.Conv2d(3, 4, (5, 5))

        def forward(self, x):
            inner = self.convolution
            return inner._conv_forward(x, inner.weight, inner.bias)

    module, x = Convolves(), torch.ones(3, 10, 10)
    check(module, x, backend=backend, graphs=1, fullgraph=True)
    check_exported(module, (x,), (x, module.convolution.weight, module.convolution.bias), backend)


@pytest.mark.covers("test_aot_autograd::test_LSTM")
def test_recurrent_network(backend):
    class Wrapped(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.LSTM(8, 8, num_layers=2, bidirectional=True)

        def forward(self, x):
            return (self.inner(x),)

    strided = torch.linspace(0, 1, 6 * 4 * 8).as_strided((6, 4, 8), (1, 48, 6))
    check(Wrapped(), strided, backend=backend, graphs=1, fullgraph=True, calls=2, recompiles=0)


@pytest.mark.covers("test_aot_autograd::test_alias_inputs")
def test_view_across_a_break(backend):
    def function():
        a = torch.tensor([1])
        a = a[0:1]
        b = a.squeeze()
        a[0] = 0
        if a[0] < 1e5:
            pass
        a[0] = 2
        return b

    check(function, backend=backend, calls=2)


@pytest.mark.covers("test_aot_autograd::test_grad_inputs_alias_inputs")
def test_gradient_that_is_an_input(backend):
    class Gives(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x)
            return y

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            return x, gradient

    one, other = torch.ones(1, requires_grad=True), torch.full((1,), 2.0, requires_grad=True)
    check(lambda x, y: Gives.apply(x, y), one, other, backend=backend, graphs=1, fullgraph=True)


@pytest.mark.covers("test_aot_autograd::test_nn_parameter_construction")
def test_parameter_made_inside(backend):
    def function(x):
        return x.sin() + torch.nn.Parameter(torch.ones(1))

    check(function, torch.ones(4, 4), backend=backend, calls=2, recompiles=0)


@pytest.mark.covers("test_aot_autograd::test_aot_grad_mode_mutation")
def test_gradients_switched_off_for_good(backend):
    def function(x):
        y = x * x
        torch.set_grad_enabled(False)
        return y.clone(), y

    with torch.enable_grad():
        report = check(function, make_args=lambda: (torch.ones(3, requires_grad=True) * 3,), backend=backend, graphs=1)
    copied, kept = report.returned
    assert copied.grad_fn is None and kept.grad_fn is not None


@pytest.mark.covers("test_aot_autograd::test_aot_autograd_raises_invalid_leaf_set")
def test_leaf_given_other_contents(backend):
    def function(x):
        x.set_(torch.ones(2))

    report = check(function, torch.ones(2, requires_grad=True), backend=backend)
    assert "is being used in an in-place operation" in str(report.compiled.calls[0].raised)


@pytest.mark.covers(
    "test_aot_autograd::test_aot_autograd_expand_mutation_functionalizes",
    "test_aot_autograd::test_aot_autograd_expand_mutation_backwards",
    "test_aot_autograd::test_aot_autograd_expand_mutation_error",
)
def test_expanded_tensor_changed(backend):
    def one_element(x):
        y = x.expand(3, *x.shape)
        y[0, 0].add_(5)
        return y

    def backwards(x, z):
        y = x.expand(3, *x.shape)
        y[1, 1].mul_(5)
        return y * z

    def several_in_one_place(x):
        y = x.expand(3, *x.shape)
        y[0:3, 0].add_(5)
        return y

    check(one_element, torch.arange(6), backend=backend, graphs=1, fullgraph=True)
    check(backwards, torch.arange(6.0), torch.arange(6.0, requires_grad=True), backend=backend, graphs=1)
    report = check(several_in_one_place, torch.arange(6), backend=backend)
    assert isinstance(report.compiled.calls[0].raised, RuntimeError)


@pytest.mark.covers("test_aot_autograd::test_data_ptr_access_fails_in_forward")
def test_operator_that_asks_for_a_pointer(backend):
    """The document has an error in any case; without fullgraph, Kiln leaves the call to eager, where it works."""
    with torch.library._scoped_library("kilntest", "FRAGMENT") as library:
        torch.library.define("kilntest::pointed", "(Tensor x) -> Tensor", lib=library)

        @torch.library.impl("kilntest::pointed", "CompositeImplicitAutograd", lib=library)
        def pointed(x):
            assert x.data_ptr()
            return x.clone()

        def of_input(x):
            return torch.ops.kilntest.pointed(x)

        def of_intermediate(x):
            return torch.ops.kilntest.pointed(x.clone())

        for function in (of_input, of_intermediate):
            check(function, torch.ones(3), backend=backend)
            with pytest.raises(RuntimeError, match="Cannot access data pointer"):
                kiln.compile(function, backend=backend, fullgraph=True)(torch.ones(3))
