"""Elements that several threads add to, four or two by one instruction: code, results, other architectures."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
import torch

from kiln.target.cuda import kernel_plan
from kiln.target.cuda.cuda_module import emit_module
from kiln.target.cuda.ptx import compile_ptx
from tests.support.codegen_programs import launches
from tests.support.cuda_programs import cuda_scheduled_of
from tests.target.cuda_on_cpu import run_as_on_gpu

aten = torch.ops.aten


def gradient(x, i):
    """Rows outside of the table, and those of the padding, are left out."""
    return aten.embedding_dense_backward(x, i, 11, 3, False)


def bags(x, i):
    """Each row of the first six is added to four rows."""
    repeated = x.view(4, 6, -1).select(0, 0).unsqueeze(1).expand(6, 4, x.shape[1])
    return aten.index_put(torch.zeros(11, x.shape[1], device=x.device), [i.view(6, 4)], repeated, True)


@pytest.fixture(autouse=True)
def few_threads_are_enough(monkeypatch):
    """Otherwise vectors are short where there is little to do."""
    monkeypatch.setattr(kernel_plan, "ENOUGH_THREADS", 8)


def emitted(function, width, dtype=torch.float32):
    indices = torch.randint(0, 11, (24,), generator=torch.Generator().manual_seed(1))
    given = torch.randn(24, width, generator=torch.Generator().manual_seed(2)).to(dtype), indices
    scheduled = cuda_scheduled_of(function, given)
    return scheduled, given, emit_module({kernel.name: kernel for kernel in scheduled.kernels})


def widths_of(text):
    return set(re.findall(r"add\.v(\d)\.f32", text))


@pytest.mark.parametrize("function", [gradient, bags], ids=lambda one: one.__name__)
@pytest.mark.parametrize("width, wanted", [(64, {"4"}), (66, {"2"}), (65, set()), (1, set())])
def test_how_many_elements_an_instruction_adds_to(function, width, wanted):
    assert widths_of(emitted(function, width)[2]) == wanted


def test_only_sums_of_float32_that_lie_together():
    assert not widths_of(emitted(lambda x, i: gradient(x, i % 11), 64, torch.float64)[2])
    assert not widths_of(emitted(lambda x, i: torch.zeros(64, 11, device=x.device).index_add(1, i, x.t()), 64)[2])
    assert not widths_of(emitted(lambda x, i: (x * 2).sum(0), 64)[2])


def test_threads_take_one_vector_each():
    """Loads of bfloat16 alone would give a thread eight elements, and warps would add to every second vector."""
    scheduled, _, text = emitted(lambda x, i: gradient(x.float(), i), 64, torch.bfloat16)
    assert text.count("add.v4.f32") == 1
    assert launches(scheduled)[-1].kernel.plan.lanes == 4


@pytest.mark.parametrize("function", [gradient, bags], ids=lambda one: one.__name__)
@pytest.mark.parametrize("width", [64, 66, 65])
def test_results(function, width):
    scheduled, given, _ = emitted(function, width)
    memory = dict(zip(scheduled.inputs, given, strict=True))
    for launch in launches(scheduled):
        for buffer in launch.buffers:
            memory.setdefault(buffer, torch.zeros(buffer.span, dtype=buffer.dtype))
        own = {mine: memory[real] for mine, real in zip(launch.kernel.buffers, launch.buffers, strict=True)}
        after = run_as_on_gpu(launch.kernel, own, dict(zip(launch.kernel.sizes, launch.sizes, strict=True)))
        memory |= {real: after[mine] for mine, real in zip(launch.kernel.buffers, launch.buffers, strict=True)}
    (result,) = scheduled.outputs
    found = memory[result.buffer].view(11, width)
    x, i = (one.double() if one.is_floating_point() else one for one in given)
    if function is gradient:
        wanted = torch.zeros(11, width, dtype=torch.float64).index_add(0, i, x * (i != 3).unsqueeze(1))
    else:
        wanted = torch.zeros(11, width, dtype=torch.float64).index_add(0, i, x[:6].repeat_interleave(4, 0))
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)


def test_architectures():
    _, _, text = emitted(gradient, 64)
    new, old = compile_ptx(text, "sm_90").decode(), compile_ptx(text, "sm_80").decode()
    assert ".version 8.1" in new and new.count("add.v4.f32") == 1
    assert ".version 7.8" in old and not widths_of(old)
    added = re.findall(r"red\.relaxed\.gpu\.global\.add\.f32 \[%rd\d+\+(\d+)\], (%\w+);", old)
    assert [int(place) for place, _ in added] == [0, 4, 8, 12] and len({value for _, value in added}) == 4
    assert ".version 7.8" in compile_ptx(emitted(lambda x, i: x * 2, 64)[2], "sm_90").decode()


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="needs NVIDIA's assembler")
@pytest.mark.parametrize("width", [64, 66])
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_the_assembler_takes_them(architecture, width, tmp_path):
    (tmp_path / "k.ptx").write_bytes(compile_ptx(emitted(gradient, width)[2], architecture))
    subprocess.run(["ptxas", f"-arch={architecture}", tmp_path / "k.ptx", "-o", tmp_path / "k.cubin"], check=True)
