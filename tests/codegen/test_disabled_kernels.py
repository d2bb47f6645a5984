"""Kernels that the user has disabled, and what is said of kernels that fail on a GPU."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

import kiln
from kiln.capture.writeback.rewind import is_final
from kiln.codegen.disabled_kernels import is_disabled, operator_names
from kiln.codegen.launch_errors import LaunchErrors, launcher_of
from kiln.exc import DriverError
from kiln.target.cuda.driver import Driver
from kiln.target.native_program import Launcher

X = torch.randn(16, 32)
ILLEGAL_ACCESS, TOO_MANY_RESOURCES = 700, 701


def program(x):
    hidden = F.gelu(x * 2)
    return torch.softmax(hidden, -1).sum(0)


def called(disabled, function=program):
    """The operators that ATen runs."""
    with kiln.config.patch(disable_kernels=disabled):
        found = kiln.explain(function)(X)
    assert torch.allclose(found.result, function(X), atol=1e-5)
    return {text.split(": ")[0] for made in found.programs for text in made.called.values()}


@pytest.mark.parametrize(
    ("disabled", "expected"),
    [
        (set(), set()),
        ({"gelu"}, {"aten.gelu.default"}),
        ({"aten.gelu"}, {"aten.gelu.default"}),
        ({"aten::gelu"}, {"aten.gelu.default"}),
        ({"aten.gelu.default", "no_such_operator"}, {"aten.gelu.default"}),
        ({"gelu", "*softmax"}, {"aten.gelu.default", "aten._softmax.default"}),
        ({"*"}, {"aten.mul.Tensor", "aten.gelu.default", "aten._softmax.default", "aten.sum.dim_IntList"}),
        ({"gel", "elu"}, set()),
    ],
)
def test_operators_are_left_to_aten(disabled, expected):
    assert called(disabled) == expected


def test_a_kernel_by_its_name():
    found = kiln.explain(program)(X)
    first, *others = [kernel.name for kernel in found.programs[0].kernels]
    assert "gelu" in first
    ours = called({first})
    assert "aten.gelu.default" in ours and "aten.mul.Tensor" in ours
    assert called({"kiln_no_such_kernel_7"}) == set()


def test_the_reason_is_told():
    with kiln.config.patch(disable_kernels={"gelu"}):
        text = str(kiln.explain(program)(X))
    assert "aten.gelu.default: kernels for it are disabled (disable_kernels)" in text


def test_as_an_option():
    counted = kiln.report.counters["kernels"]
    compiled = kiln.compile(program, backend="kiln", options={"disable_kernels": ["*"]})
    assert torch.allclose(compiled(X), program(X), atol=1e-5)
    assert kiln.report.counters["kernels"] == counted


def test_gradients_follow_the_option():
    x = X.clone().requires_grad_()
    compiled = kiln.compile(lambda x: F.gelu(x), backend="kiln", options={"disable_kernels": ["gelu_backward"]})
    counted = kiln.report.counters["kernels"]
    compiled(x).sum().backward()
    assert kiln.report.counters["kernels"] == counted + 1  # the forward's
    (expected,) = torch.autograd.grad(F.gelu(x).sum(), x)
    assert torch.allclose(x.grad, expected)


def test_stored_programs_are_told_apart(tmp_path, monkeypatch):
    monkeypatch.setenv("KILN_CACHE_DIR", str(tmp_path))
    for disabled, kernels in ((set(), 1), ({"tanh"}, 0), (set(), 1), ({"tanh"}, 0)):
        kiln.reset()
        counted = kiln.report.counters["kernels"]
        with kiln.config.patch(disable_kernels=disabled):
            kiln.compile(lambda x: x.tanh(), backend="kiln")(X)
        assert kiln.report.counters["kernels"] == counted + kernels


def test_from_the_environment():
    text = "import kiln; print(sorted(kiln.config.disable_kernels))"
    run = subprocess.run(
        [sys.executable, "-c", text], env={"KILN_DISABLE_KERNELS": " gelu, aten.sum ,"}, capture_output=True, text=True
    )
    assert run.stdout.strip() == "['aten.sum', 'gelu']", run.stderr
    assert kiln.config.describe("disable_kernels")
    for wrong in ("gelu", [1], 3):
        with pytest.raises(TypeError, match="set of strings"):
            kiln.config.disable_kernels = wrong


def test_only_operators_are_disabled():
    assert not is_disabled("output", {"*"}) and not is_disabled(torch.sin, {"sin"})
    assert is_disabled(torch.ops.aten.sin.default, {"sin"})


# ---- what is said of errors ------------------------------------------------------------------------------------------


class Library:
    """The driver's library, as far as errors need it."""

    def __getattr__(self, name):
        if not name.startswith("cu"):
            raise AttributeError(name)

        def function(*arguments):
            if name == "cuGetErrorName":
                arguments[1]._obj.value = b"CUDA_ERROR_ILLEGAL_ADDRESS"
            return 0

        return function


@pytest.fixture
def generated():
    return kiln.explain(program)(X).programs[0]


def launch_errors(generated):
    driver = Driver(Library(), start=lambda: None, is_capturing=lambda: False)
    kernel = generated.kernels[0]
    data = {"names": [kernel.name], "origins": [[node.name for node in kernel.launches[0].origins]]}
    return LaunchErrors(Launcher(1, lambda device: 0, driver.launch_failed), data, generated.module), kernel.name


def test_an_error_names_operators_lines_and_the_remedy(generated, monkeypatch):
    monkeypatch.delenv("CUDA_LAUNCH_BLOCKING", raising=False)
    failed, name = launch_errors(generated)
    with pytest.raises(DriverError) as raised:
        failed(name, ILLEGAL_ACCESS, 0)
    text = str(raised.value)
    first = program.__code__.co_firstlineno
    assert f"The kernel {name} could not be launched: cuLaunchKernel says CUDA_ERROR_ILLEGAL_ADDRESS (700)" in text
    assert "CUDA_LAUNCH_BLOCKING=1" in text
    assert f"The kernel {name} computes:" in text
    assert f"aten.gelu.default   tests/codegen/test_disabled_kernels.py:{first + 1}, in program:" in text
    assert "hidden = F.gelu(x * 2)" in text
    assert "options={'disable_kernels': ['aten.mul', 'aten.gelu'" in text
    assert "KILN_DISABLE_KERNELS=aten.mul,aten.gelu" in text
    assert raised.value.number == ILLEGAL_ACCESS and raised.value.is_final and is_final(raised.value)


def test_the_remedy_is_one(generated):
    """What the message says to disable leaves nothing of that kernel."""
    names = operator_names(generated.kernels[0].launches[0].origins)
    with kiln.config.patch(disable_kernels=set(names)):
        again = kiln.explain(program)(X).programs[0]
    assert not {"gelu", "mul"} & {word for kernel in again.kernels for word in kernel.name.split("_")}


def test_a_launch_that_waits_is_blamed_on_its_kernel(generated, monkeypatch):
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    failed, name = launch_errors(generated)
    with pytest.raises(DriverError, match=f"The kernel {name} failed on the GPU") as raised:
        failed(name, ILLEGAL_ACCESS, 0)
    assert "launched before" not in str(raised.value)


def test_errors_that_eager_may_do_without_are_not_final(generated):
    failed, name = launch_errors(generated)
    with pytest.raises(DriverError) as raised:
        failed(name, TOO_MANY_RESOURCES, 0)
    assert not raised.value.is_final and not is_final(raised.value)


def test_explaining_never_raises(generated):
    failed, name = launch_errors(generated)
    with pytest.raises(DriverError, match="disable_kernels") as raised:
        failed("another_kernel", ILLEGAL_ACCESS, 0)
    assert "another_kernel" in str(raised.value)
    failed.module = None
    with pytest.raises(DriverError, match="could not be launched"):
        failed(name, ILLEGAL_ACCESS, 0)


def test_a_thread_without_a_context_tries_again(generated):
    failed, name = launch_errors(generated)
    failed.failed = lambda *given: None
    failed(name, 201, 0)


def test_the_description_has_what_errors_need(generated):
    from kiln.codegen.program_description import Describer
    from kiln.lower.lowering import Lowering
    from kiln.lower.schedule.memory_plan import plan_memory
    from kiln.lower.schedule.scheduling import schedule
    from kiln.target.cpu.cpu_target import CPU

    scheduled = schedule(Lowering(generated.module).run())
    data = json.loads(json.dumps(Describer(scheduled, plan_memory(scheduled), CPU).run()))
    names = {node.name for node in generated.module.graph.nodes}
    assert len(data["names"]) == len(data["origins"]) == len(scheduled.kernels)
    assert all(origins and set(origins) <= names for origins in data["origins"])
    assert launcher_of(CPU, data, generated.module) is None
