"""``kiln.explain(f, profile=True)``: times of kernels and calls beside the bandwidth of a copy."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

import kiln
from kiln.codegen import kernel_times
from kiln.codegen.kernel_times import ProgramTime, StepTime, copy_bandwidth, program_time, text_of
from kiln.target.cuda.cuda_target import CudaTarget
from kiln.target.target import LoadedCode, MachineCode
from tests.support.codegen_programs import scheduled_of

X, W = torch.randn(256, 256), torch.randn(256, 256)


@pytest.fixture(autouse=True)
def small_copy(monkeypatch):
    monkeypatch.setattr(kernel_times, "COPIED_BYTES", {"cpu": 1 << 20, "cuda": 64 << 20})
    copy_bandwidth.cache_clear()


def model(x, w):
    return torch.softmax(F.gelu(x @ w + 1), -1).sum(0)


def test_off_by_default():
    found = kiln.explain(model)(X, W)
    assert found.profile is None and "Profile" not in str(found)


def test_kernels_and_calls_sorted_by_time():
    found = kiln.explain(model, profile=True)(X, W)
    (made,) = found.programs
    (times,) = found.profile
    assert torch.allclose(found.result, model(X, W), atol=1e-4)
    assert times.name == made.name and times.name.startswith("kiln program inference model (test_kernel_times.py:")
    assert [step.seconds for step in times.steps] == sorted((step.seconds for step in times.steps), reverse=True)
    assert 0 < sum(step.seconds for step in times.steps) <= times.seconds
    kernels = {step.name: step for step in times.steps if step.is_kernel}
    assert sum(step.bytes for step in kernels.values()) == sum(k.bytes_read + k.bytes_written for k in made.kernels)
    assert all(step.count == 1 and step.bandwidth == step.bytes / step.seconds for step in kernels.values())
    (product,) = [step for step in times.steps if not step.is_kernel]
    assert product.name == "aten::mm" and product.bytes is product.bandwidth is None
    assert not any(step.resources for step in times.steps)


def test_in_words():
    text = str(kiln.explain(model, profile=True)(X, W))
    assert re.search(r"Profile, of 5 calls:\n  kiln program inference model .*: +[\d.]+ ms a run on cpu, where", text)
    assert re.search(r" ms +[\d.]+ %  [\d.]+ GB/s, \d+ % of a copy +kiln_add_gelu_softmax\w*_0\n", text)
    assert re.search(r" ms +[\d.]+ % +aten::mm\n", text)


def test_backward_programs_are_there():
    def step(x, w):
        model(x, w).square().sum().backward()

    found = kiln.explain(step, profile=True)(X.clone().requires_grad_(), W)
    assert [re.search(r"program (\w+)", times.name).group(1) for times in found.profile] == ["forward", "backward"]
    assert any("gelu_backward" in step.name for step in found.profile[1].steps)


def test_how_often_the_call_runs():
    calls = torch.zeros(())

    def counting(x):
        calls.add_(1)
        return x + 1

    kiln.explain(counting, profile=True)(X)
    assert calls.item() == 1 + kernel_times.WARM_UP + kernel_times.RUNS


def test_launches_that_run_at_once_are_one_step():
    found = kiln.explain(lambda x, y: (x.exp(), y.sum(0)), profile=True)(torch.randn(100), torch.randn(64, 64))
    (times,) = found.profile
    together = [step for step in times.steps if ", " in step.name]
    assert len(times.steps) == 1 and len(together) == 1
    assert together[0].bytes == 2 * 400 + 64 * 64 * 4 + 64 * 4


def test_the_same_kernel_several_times():
    found = kiln.explain(lambda x: (x.exp() @ x).exp() @ x, profile=True)(torch.randn(64, 64))
    (kernel,) = [step for step in found.profile[0].steps if step.is_kernel]
    assert kernel.name == "kiln_exp_0" and kernel.count == 2 and kernel.bytes == 2 * 2 * 64 * 64 * 4
    assert "(2 times)" in str(found)


def test_a_call_without_programs():
    found = kiln.explain(lambda: 3, profile=True)()
    assert found.profile == [] and "no compiled program ran" in str(found)


def test_copies_are_measured_once():
    assert copy_bandwidth(torch.device("cpu")) == copy_bandwidth(torch.device("cpu")) > 1e6


# ---- as on a GPU -----------------------------------------------------------------------------------------------------


def event(name, parent=None, cpu=0.0, device=0.0):
    return SimpleNamespace(name=name, cpu_parent=parent, cpu_time_total=cpu, device_time_total=device)


def test_times_of_the_gpu(monkeypatch):
    monkeypatch.setattr(kernel_times, "copy_bandwidth", lambda device: 4e12)
    needs = {"registers": 32, "bytes of shared memory": 128}
    program = SimpleNamespace(
        name="kiln program forward f",
        target=SimpleNamespace(is_gpu=True, device=torch.device("cuda", 0)),
        bytes_of_steps=lambda: {"kiln_gelu_0": 8_000_000, "kiln_sum_1": 4_000_000},
        resources=lambda: {"kiln_gelu_0": needs},
    )
    runs = [event(program.name, cpu=500, device=11) for _ in range(2)]
    inside = [event("kiln_gelu_0", run, cpu=9, device=4) for run in runs]
    inside += [event("aten::mm", run, cpu=30, device=6) for run in runs]
    inside += [event("aten::view", run, cpu=3) for run in runs]  # runs nothing on the GPU
    inside += [event("aten::mm", inside[2], device=6), event("kiln_gelu_0", event("another program"), device=100)]
    times = program_time(program, runs + inside)
    assert [(step.name, step.count, step.seconds) for step in times.steps] == [
        ("aten::mm", 1, pytest.approx(6e-6)),
        ("kiln_gelu_0", 1, pytest.approx(4e-6)),
    ]
    assert times.seconds == pytest.approx(11e-6) and times.steps[1].resources == needs
    text = "\n".join(text_of([times]))
    assert "2000.0 GB/s, 50 % of a copy" in text and "kiln_gelu_0: 32 registers, 128 bytes of shared memory" in text
    assert "on cuda:0, where a copy moves 4000.0 GB/s" in text


def test_many_steps_are_cut_short():
    steps = [StepTime(f"kiln_{number}", True, 1, 1e-3, 10, {}) for number in range(100)]
    lines = ProgramTime("p", "cpu", 0.1, 1e9, steps).lines()
    assert len(lines) == kernel_times.MOST_SHOWN + 2 and "in 60 more" in lines[-1]


def test_a_program_that_did_not_run():
    program = SimpleNamespace(name="p", target=SimpleNamespace(is_gpu=False))
    assert program_time(program, [event("q")]) is None


class LoadedModule:
    def attributes(self, name):
        return {"threads": 1024, "shared": 64, "constant": 0, "local": 16, "registers": 40}


def test_resources_of_kernels():
    target = CudaTarget(torch.device("cuda", 0))
    kernels = scheduled_of(lambda x: torch.softmax(x, -1), (torch.randn(64, 512),)).kernels
    code = MachineCode((b"",), tuple((0, kernel.name) for kernel in kernels))
    found = target.resources(kernels, code, LoadedCode((1,), [LoadedModule()]))
    (needs,) = found.values()
    assert needs["registers"] == 40 and needs["bytes spilled"] == 16 and needs["bytes of shared memory"] >= 64
    assert 0 < needs["threads"] <= 1024


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu():
    x, w = torch.randn(4096, 4096, device="cuda"), torch.randn(4096, 4096, device="cuda")
    found = kiln.explain(model, profile=True)(x, w)
    (times,) = found.profile
    kernels = [step for step in times.steps if step.is_kernel]
    assert kernels and all(step.resources["registers"] > 0 for step in kernels)
    assert 0.05 < max(step.bandwidth for step in kernels) / times.copy_bandwidth < 3
    assert any(not step.is_kernel for step in times.steps)
    print("\n".join(text_of(found.profile)))
