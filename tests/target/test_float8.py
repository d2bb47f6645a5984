"""float8 in kernels: casts as ATen's, of all codes and of floats of any size."""

from __future__ import annotations

import pytest
import torch

import kiln
from kiln.loops.ir import Access, op
from kiln.loops.kernel import Kernel, Loop, Output
from kiln.report import counters
from kiln.target.cuda.cuda_module import emit_module
from kiln.target.cuda.ptx import compile_ptx
from kiln.target.llvm.float8 import FORMATS
from tests.support.cuda_programs import cuda_scheduled_of
from tests.target.kernel_runs import Memory

SPECIAL = [float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 448.0, 463.9, 464.0, 480.0, 57344.0, 61440.0, 65536.0]


def floats() -> torch.Tensor:
    bits = torch.arange(0, 2**32, 65537, dtype=torch.int64) - 2**31
    near = torch.arange(256, dtype=torch.uint8).view(torch.float8_e5m2).float()
    halves = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.float16).float()
    return torch.cat([bits.to(torch.int32).view(torch.float32), near, halves, torch.tensor(SPECIAL), torch.randn(1000)])


def cast_kernel(given: torch.Tensor, dtype: torch.dtype) -> tuple[Memory, Kernel]:
    memory = Memory()
    value = op("cast", memory.load(given), dtype=dtype)
    out = memory.add(torch.zeros(len(given), dtype=torch.float32).to(dtype))
    return memory, Kernel("k", (Loop(len(given)),), (), (Output(Access(out, (1,), 0), value, False),), 0)


def same(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    return bool(((found == wanted) | (found.isnan() & wanted.isnan())).all())


@pytest.mark.parametrize("source", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dtype", FORMATS)
def test_casts_to_float8_are_eagers(dtype, source):
    given = floats().to(source)
    memory, kernel = cast_kernel(given, dtype)
    found = memory.run(kernel)[kernel.outputs[0].target.buffer]
    wanted = given.to(dtype)
    is_nan = wanted.float().isnan()  # whose sign eager does not keep
    assert torch.equal(found.float().isnan(), is_nan)
    assert torch.equal(found.view(torch.uint8)[~is_nan], wanted.view(torch.uint8)[~is_nan])


@pytest.mark.parametrize("target", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32])
@pytest.mark.parametrize("dtype", FORMATS)
def test_casts_from_float8_are_eagers(dtype, target):
    given = torch.arange(256, dtype=torch.uint8).view(dtype)
    if not target.is_floating_point:
        given = given[given.float().isfinite()]
    memory, kernel = cast_kernel(given, target)
    found = memory.run(kernel)[kernel.outputs[0].target.buffer]
    assert same(found, given.to(target))


@pytest.mark.parametrize("dtype", FORMATS)
def test_code_for_gpus(dtype):
    for given, target in ((torch.zeros(4096), dtype), (torch.zeros(4096).to(dtype), torch.bfloat16)):
        text = compile_ptx(emit_module({"k": cast_kernel(given, target)[1]}), "sm_90").decode()
        assert ".visible .entry k(" in text


@pytest.mark.parametrize("dtype", FORMATS)
def test_programs_with_float8(dtype):
    def function(x, y):
        narrow = (x * 2).to(dtype)
        return torch.cat([narrow, y], 0).t().clone(), narrow.float() + 1

    x, y = torch.randn(8, 8), torch.randn(3, 8).to(dtype)
    for found, wanted in zip(kiln.compile(function)(x, y), function(x, y), strict=True):
        assert found.dtype is wanted.dtype and found.stride() == wanted.stride()
        assert torch.equal(found.float(), wanted.float())
    assert cuda_scheduled_of(function, [x, y]).called == {}


def test_what_eager_does_not_compute_is_an_error():
    x = torch.randn(8).to(torch.float8_e4m3fn)
    with pytest.raises(NotImplementedError):
        torch.sin(x)
    before = counters["codegen eager"]
    with pytest.raises(NotImplementedError):
        kiln.compile(lambda x: torch.sin(x))(x)
    assert counters["codegen eager"] == before
