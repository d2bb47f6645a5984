"""What test-suites take from torch's compiler: counters, comparisons, base classes, errors."""

import unittest

import pytest
import torch

import kiln

pytestmark = pytest.mark.usefixtures("installed")


class Probe(unittest.TestCase):
    """A test case to hand to helpers that assert."""


def test_counting_backends():
    counter = torch._dynamo.testing.CompileCounterWithBackend("eager")
    torch.compile(lambda x: x.sin() + 1, backend=counter)(torch.ones(1))
    assert (counter.frame_count, counter.op_count, len(counter.graphs)) == (1, 2, 1)
    recorder = torch._dynamo.testing.EagerAndRecordGraphs()
    torch.compile(lambda x: x.sin() + 1, backend=recorder)(torch.ones(1))
    assert len(recorder.graphs) == 1


def test_standard_test():
    standard_test = torch._dynamo.testing.standard_test
    standard_test(Probe(), lambda x: x.sin() + 1, 1, expected_ops=2)
    standard_test(Probe(), torch.nn.Linear(10, 10), 1, expected_ops=1)
    with pytest.raises(AssertionError):
        standard_test(Probe(), lambda x: x.sin() + 1, 1, expected_ops=3)
    with pytest.raises(AssertionError):
        standard_test(Probe(), lambda x: x.sin() + 1, 1, expected_frame_count=2)
    with pytest.raises(AssertionError):
        standard_test(Probe(), lambda x: x * (2 if torch.compiler.is_compiling() else 1), 1)
    with pytest.raises(torch._dynamo.exc.Unsupported):
        standard_test(Probe(), lambda x: x + x.sum().item(), 1)


def test_comparisons():
    same = torch._dynamo.testing.same
    x = torch.ones(2)
    assert same([x, {"a": x}], [x + 1e-6, {"a": x.clone().requires_grad_()}]) and torch._dynamo.utils.same(x, x)
    assert not same(x, x + 1) and not same([x], [x, x]) and not same(x, x.double())
    models = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    same_two = torch._dynamo.debug_utils.same_two_models
    assert same_two(models[0], torch.compile(models[0]), [x]) and not same_two(*models, [x])


def test_tensors_for_tests():
    made = torch._dynamo.testing.rand_strided((2, 3), (1, 4), dtype=torch.float64)
    assert made.shape == (2, 3) and made.stride() == (1, 4) and made.dtype is torch.float64
    assert torch._dynamo.testing.rand_strided((2, 0), (1, 1), dtype=torch.int64).numel() == 0
    source = made.clone().requires_grad_()
    source.sum().backward()
    copied = torch._dynamo.utils.clone_input(source)
    assert copied.requires_grad and torch.equal(copied.grad, source.grad) and copied.data_ptr() != source.data_ptr()
    loss = torch._dynamo.testing.reduce_to_scalar_loss({"a": torch.full((2,), 4.0), "b": [torch.ones(1)]})
    assert loss.item() == 2.5
    with pytest.raises(NotImplementedError):
        torch._dynamo.testing.reduce_to_scalar_loss("text")


def test_texts_of_graphs():
    text = "def f(x):\n    # a comment  \n    y = x  \n    return y\n"
    assert torch._dynamo.testing.normalize_gm(text) == "def f(x):\n    y = x\n    return y\n"


def test_a_function_that_ends_the_graph():
    from torch._dynamo.eval_frame import unsupported

    counter = torch._dynamo.testing.CompileCounter()
    program = torch.compile(lambda x: unsupported(x, x + 1) * 2, backend=counter)
    assert program(torch.ones(1)).item() == 4 and counter.frame_count == 2


def test_variants_of_test_classes():
    class Variant(unittest.TestCase):
        def test_one(self):
            assert torch._dynamo.config.assume_static_by_default is False

    testing = torch._dynamo.testing
    testing.expectedFailureDynamic(Variant.test_one)
    made = testing.make_test_cls_with_patches(
        Variant, "Dynamic", "_dynamic", (torch._dynamo.config, "assume_static_by_default", False)
    )
    assert made.__name__ == "DynamicVariant" and unittest.TestLoader().getTestCaseNames(made) == ["test_one_dynamic"]
    result = unittest.TestResult()
    made("test_one_dynamic").run(result)
    assert len(result.unexpectedSuccesses) == 1  # it was marked as one that fails, and does not


def test_test_cases_start_afresh():
    from torch._dynamo.utils import counters

    seen = []

    class Tests(torch._dynamo.test_case.TestCase):
        def test_it(self):
            seen.append((sum(counters["stats"].values()), kiln.config.raise_internal_errors))
            compiled(torch.ones(2))
            seen.append(counters["stats"]["unique_graphs"])
            torch.set_grad_enabled(False)
            self.assertEqual(torch.ones(2), torch.ones(2))

    compiled = torch.compile(lambda x: x + 1)
    compiled(torch.ones(2))
    result = unittest.TestResult()
    unittest.TestSuite([Tests("test_it"), Tests("test_it")]).run(result)
    assert result.wasSuccessful(), result.errors + result.failures
    assert seen == [(0, True), 1, (0, True), 1] and torch.is_grad_enabled()
    assert torch._inductor.test_case.TestCase is torch._dynamo.test_case.TestCase


def bad_backend(graph_module, example_inputs):
    raise ValueError("no")


ERRORS = {
    "Unsupported": lambda: torch.compile(lambda x: x + x.sum().item(), fullgraph=True)(torch.ones(1)),
    "BackendCompilerFailed": lambda: torch.compile(lambda x: x + 1, backend=bad_backend)(torch.ones(1)),
    "InvalidBackend": lambda: torch.compile(lambda x: x, backend="nonsense"),
    "UserError": lambda: torch._dynamo.mark_dynamic(torch.ones(1), 5),
    "TorchRuntimeError": lambda: torch.compile(lambda x: x @ x, fullgraph=True)(torch.ones(2, 3)),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_caught_by_torchs_names(name):
    try:
        ERRORS[name]()
    except getattr(torch._dynamo.exc, name) as error:
        assert str(error)
    else:
        raise AssertionError("no error")
    if name != "TorchRuntimeError":  # which is eager's own error
        with pytest.raises(torch._dynamo.exc.TorchDynamoException):
            ERRORS[name]()


def test_error_names():
    exc = torch._dynamo.exc
    assert exc.InternalTorchDynamoError is kiln.exc.InternalError and exc.RecompileError is kiln.exc.RecompileError
    assert exc.UserErrorType.DYNAMIC_CONTROL_FLOW.name == "DYNAMIC_CONTROL_FLOW"
    with pytest.raises(exc.Unsupported, match="a thing"):
        exc.unimplemented(gb_type="x", context="a thing", explanation="", hints=[])


def test_machine_and_metrics():
    from torch.testing._internal.inductor_utils import HAS_CPU, HAS_CUDA, HAS_GPU

    assert HAS_CPU and not HAS_CUDA and not HAS_GPU
    from functorch.compile import nop

    assert nop(len, []) is len
    with torch._dynamo.compiled_autograd._disable():
        torch.ones(1, requires_grad=True).sum().backward()
    torch._dynamo.compiled_autograd.reset()


def test_kernels_are_counted():
    metrics = torch._inductor.metrics
    metrics.reset()
    with kiln.config.patch(backend="kiln"):
        for times in (1, 2):  # the second comes from the cache, where there is one
            torch._dynamo.reset()
            torch.compile(lambda x: (x.sin().sum(0), x.t().contiguous()))(torch.ones(3, 4))
            assert metrics.generated_kernel_count == metrics.generated_cpp_vec_kernel_count == 2 * times
        metrics.reset()
        graph = torch.fx.symbolic_trace(lambda x: x.sin() + 1)
        compiled = torch._inductor.compile(graph, [torch.ones(3)], options={"max_autotune": True})
        torch.testing.assert_close(compiled(torch.ones(3)), torch.ones(3).sin() + 1)
        graph = torch.fx.symbolic_trace(lambda x: {"a": [x + 1]})
        assert torch._inductor.compile(graph, [torch.ones(3)])(torch.ones(3))["a"][0].tolist() == [2, 2, 2]
    assert metrics.generated_kernel_count == 2
    metrics.generated_kernel_count = 3
    metrics.reset()
    assert metrics.generated_kernel_count == 0


def test_options_that_torch_does_not_know():
    torch.compile(len, options={"epilogue_fusion": True, "triton.cudagraphs": False})
    with pytest.raises(RuntimeError, match="Unexpected optimization option epilogue_fusio: did you mean"):
        torch.compile(len, options={"epilogue_fusio": True})
    with pytest.raises(RuntimeError, match="Unexpected optimization option shape"):
        torch._inductor.compile(None, [], options={"shape": True})
    with pytest.raises(RuntimeError, match="Unrecognized mode=fast"):
        torch.compile(len, mode="fast")


@pytest.mark.parametrize(
    "how",
    [
        {"mode": "reduce-overhead"},
        {"mode": "max-autotune"},
        {"options": {"triton.cudagraphs": True}},
        {"backend": "cudagraphs"},
    ],
    ids=str,
)
def test_cuda_graphs_are_asked_for(how):
    """On the CPU nothing is recorded; the reason is counted."""
    from kiln.report import events

    with kiln.config.patch(backend="kiln"):
        before = events.counters["cuda graphs refused"]
        compiled, x = torch.compile(lambda x: torch.sin(x) + 1, **how), torch.randn(4)
        torch.compiler.cudagraph_mark_step_begin()
        torch.testing.assert_close(compiled(x), torch.sin(x) + 1)
        assert events.counters["cuda graphs refused"] == before + 1


@pytest.mark.parametrize("how", [{}, {"mode": "default"}, {"mode": "max-autotune-no-cudagraphs"}], ids=str)
def test_cuda_graphs_are_not_asked_for(how):
    from kiln.report import events

    with kiln.config.patch(backend="kiln"):
        before = events.counters["cuda graphs refused"]
        torch.compile(lambda x: torch.sin(x) + 1, **how)(torch.randn(4))
        assert events.counters["cuda graphs refused"] == before


def test_a_mark_of_a_step_in_compiled_code():
    def f(x):
        torch.compiler.cudagraph_mark_step_begin()
        return x * 2

    assert torch.compile(f, backend="eager", fullgraph=True)(torch.ones(2)).tolist() == [2, 2]


def test_indexing_under_vmap():
    """What libraries build attention masks with."""
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

    table, places = torch.randn(5, requires_grad=True), torch.tensor([3, 1])
    with TransformGetItemToIndex():
        found = torch.vmap(lambda place: table[place] * 2)(places)
        assert table[1:3].shape == (2,) and table[0] == table.tolist()[0]
    found.sum().backward()
    assert torch.equal(found, table[places] * 2) and table.grad.tolist() == [0, 2, 0, 2, 0]
