"""The engine under torch's names: blocks, counters, logs, graphs written by hand, and suites run under it."""

import functools
import logging
import unittest

import pytest
import torch

import kiln

pytestmark = pytest.mark.usefixtures("installed")
covers = pytest.mark.covers
DOCUMENT = "test_compiled_autograd"


def make_compiler(fullgraph=True, dynamic=True):
    """As suites for torch's compiler make one."""
    from torch._dynamo.utils import counters

    def compiler(module):
        def inner(graph, inputs):
            counters["compiled_autograd"]["compiles"] += 1
            return torch._inductor.compile(graph, inputs)

        return torch.compile(module, backend=inner, fullgraph=fullgraph, dynamic=dynamic)

    return compiler


def backward(size=3):
    x = torch.ones(size, requires_grad=True)
    (x * x).sum().backward()
    return x.grad


@pytest.mark.parametrize("name", ["enable", "_enable"])
def test_blocks_and_counters(name):
    from torch._dynamo import compiled_autograd
    from torch._dynamo.utils import counters

    counters.clear()
    with getattr(compiled_autograd, name)(make_compiler(), dynamic=True):
        assert compiled_autograd.compiled_autograd_enabled
        for _ in range(2):
            assert backward().tolist() == [2, 2, 2]
        with compiled_autograd._disable():
            assert not compiled_autograd.compiled_autograd_enabled
            backward(4)
        assert not compiled_autograd.in_compiled_autograd_region
    assert not compiled_autograd.compiled_autograd_enabled
    assert counters["compiled_autograd"] == {"captures": 1, "compiles": 1}
    torch._dynamo.reset()
    with compiled_autograd.enable(make_compiler()):
        backward()
        compiled_autograd.reset()
    assert counters["compiled_autograd"] == {"captures": 2, "compiles": 2}


def test_setting():
    from torch._dynamo.utils import counters

    config = torch._dynamo.config
    assert config.compiled_autograd is False
    counters.clear()
    with config.patch(compiled_autograd=True):
        compiled = torch.compile(backward, backend="aot_eager")
    assert kiln.config.compiled_autograd is False
    assert compiled().tolist() == [2, 2, 2]
    assert counters["compiled_autograd"]["captures"] == 1
    assert torch._dynamo.eval_frame.innermost_fn(compiled) is backward
    config.compiled_autograd = True
    assert kiln.config.compiled_autograd is True
    config.compiled_autograd = False


@covers(f"{DOCUMENT}::test_verbose_logs_graph")
@covers(f"{DOCUMENT}::test_verbose_logs_cpp")
def test_logs():
    from torch._dynamo import compiled_autograd
    from torch.testing._internal.logging_utils import logs_to_string

    logs, context = logs_to_string(compiled_autograd.__name__, "compiled_autograd_verbose")
    with context(), compiled_autograd.enable(make_compiler()):
        for size in (3, 4, 5):
            backward(size)
    text = logs.getvalue()
    assert text.count("new autograd node: torch::autograd::GraphRoot (NodeCall 0) with key size") == 1
    assert "of SumBackward0 (NodeCall 1) as dynamic\n" in text
    assert "# MulBackward0 (NodeCall 2)\n" in text


@covers(f"{DOCUMENT}::test_snapshot_verbose_logs_flag")
def test_logs_are_asked_for_before_the_block():
    from torch._dynamo import compiled_autograd

    told = []
    logger = torch._logging.getArtifactLogger(compiled_autograd.__name__, "compiled_autograd_verbose")
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())
    logger.addHandler(handler)
    try:
        with compiled_autograd.enable(make_compiler()):
            torch._logging.set_logs(compiled_autograd_verbose=True)
            backward()
        assert told == []
        torch._dynamo.reset()
        with compiled_autograd.enable(make_compiler()):
            backward()
        assert any("MulBackward0 (NodeCall 2)" in text for text in told)
    finally:
        logger.removeHandler(handler)
        torch._logging.set_logs()


@covers(f"{DOCUMENT}::test_inputs_aliasing_bytecode_attr_mutations")
def test_graph_written_by_hand():
    """The graph consumes its inputs; one of them is still needed after it, for its gradient."""
    from torch._dynamo import compiled_autograd

    instance = compiled_autograd.AutogradCompilerInstance(make_compiler())
    parameter, activation = torch.ones(100), torch.ones(100) * 2
    (first, second), _ = instance.begin_capture(inputs=[parameter, activation], sizes=[])
    doubled = second * 2
    torch.ops.inductor.accumulate_grad_.default(first, doubled)
    call, compiled = instance.end_capture(doubled)
    codes = []
    handle = torch._dynamo.convert_frame.register_bytecode_hook(lambda code, made: codes.append(made))
    inputs = [parameter, activation]
    try:
        (result,) = call(compiled_fn=compiled, inputs=inputs, sizes=(), hooks=())
    finally:
        handle.remove()
    assert inputs == []
    assert result.tolist() == parameter.grad.tolist() == [4] * 100
    assert any("inputs_ref_0" in code.co_varnames for code in codes)


# -- suites under the engine ----------------------------------------------------------------------------------------


class Tests(unittest.TestCase):
    """Stands for a suite of torch's about autograd."""

    __test__ = False  # it is run below

    def test_gradient(self):
        self.assertEqual(backward().tolist(), [2, 2, 2])

    def test_second_gradient(self):
        x = torch.tensor([2.0], requires_grad=True)
        (first,) = torch.autograd.grad(x**3, x, create_graph=True)
        first.backward()
        self.assertEqual(x.grad.item(), 12)

    def test_kept_gradient(self):
        x = torch.ones(2, requires_grad=True)
        doubled = x * 2
        doubled.retain_grad()
        (doubled * 3).sum().backward()
        self.assertEqual(doubled.grad.tolist(), [3, 3])

    def test_anomalies(self):
        with torch.autograd.detect_anomaly(check_nan=False):
            self.assertEqual(backward().tolist(), [2, 2, 2])

    def test_hook_that_asserts(self):
        x = torch.ones(2, requires_grad=True)
        x.register_hook(lambda gradient: self.assertEqual(gradient.tolist(), [1, 1]))
        x.sum().backward()

    def test_check(self):
        x = torch.randn(2, 3, dtype=torch.double, requires_grad=True)
        self.assertTrue(torch.autograd.gradcheck(torch.sin, [x], check_batched_grad=True))
        self.assertTrue(torch.autograd.gradgradcheck(torch.sin, [x]))

    def test_error(self):
        with self.assertRaisesRegex(RuntimeError, "does not require grad"):
            torch.ones(1).backward()

    @unittest.expectedFailure
    def test_failure(self):
        self.assertEqual(backward().tolist(), [])


GRAPH_BREAKS = {"test_hook_that_asserts"}


def wrapped_class(original):
    """A suite in which every test runs with the engine on."""

    def wrapped(function, fullgraph):
        @functools.wraps(function)
        def run(self):
            torch._dynamo.reset()
            with torch._dynamo.compiled_autograd.enable(make_compiler(fullgraph=fullgraph)):
                return function(self)

        return run

    names = dict(original.__dict__)
    for name, value in original.__dict__.items():
        if name.startswith("test_"):
            names[name] = wrapped(value, name not in GRAPH_BREAKS)
    return type(f"{original.__name__}WithCompiledAutograd", original.__bases__, names)


def test_suite_under_the_engine():
    from torch._dynamo.utils import counters

    counters.clear()
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(wrapped_class(Tests))
    result = unittest.TestResult()
    suite.run(result)
    assert [text for _, text in result.failures + result.errors] == []
    assert result.testsRun == 8 and len(result.expectedFailures) == 1
    assert counters["compiled_autograd"]["captures"] >= 4
    assert not kiln.compiled_autograd.enabled()
