"""Kernels run on a GPU, for tests and benchmarks of the emitter: compiled to PTX, loaded and launched by the driver."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch

from kiln.loops.ir import Buffer
from kiln.loops.kernel import Kernel
from kiln.target.cuda.cuda_module import emit_module
from kiln.target.cuda.kernel_plan import plan_of
from kiln.target.cuda.ptx import compile_ptx


@functools.cache
def driver() -> Any:
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    return ctypes.CDLL("libcuda.so.1")


def checked(code: int) -> None:
    assert code == 0, f"the driver gives error {code}"


def architecture() -> str:
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"


def loaded(kernels: dict[str, Kernel]) -> dict[str, ctypes.c_void_p]:
    """The functions of a module with these kernels."""
    module = ctypes.c_void_p()
    checked(driver().cuModuleLoadData(ctypes.byref(module), compile_ptx(emit_module(kernels), architecture()) + b"\0"))
    found = {}
    for name in kernels:
        found[name] = ctypes.c_void_p()
        checked(driver().cuModuleGetFunction(ctypes.byref(found[name]), module, name.encode()))
    return found


def launcher(
    kernel: Kernel, function: ctypes.c_void_p, tensors: Sequence[torch.Tensor], sizes: dict[sympy.Symbol, int]
) -> Callable[[], None]:
    """A function that launches a kernel with tensors for its buffers."""
    plan = plan_of(kernel)
    given = [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]
    numbers = [ctypes.c_int64(int(size.subs(sizes))) for size in kernel.sizes]
    values: list[Any] = [*given, *numbers]
    places = (ctypes.c_void_p * max(1, len(values)))(*[ctypes.addressof(value) for value in values])
    blocks = plan.blocks if isinstance(plan.blocks, int) else int(plan.blocks.subs(sizes))

    def launch() -> None:
        assert values
        if blocks:
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            geometry = (blocks, 1, 1, plan.threads, 1, 1, plan.shared_bytes)
            checked(driver().cuLaunchKernel(function, *geometry, stream, places, None))

    return launch


def run_on_gpu(
    kernel: Kernel, tensors: dict[Buffer, torch.Tensor], sizes: dict[sympy.Symbol, int] | None = None
) -> dict[Buffer, torch.Tensor]:
    """What the kernel leaves in the buffers."""
    moved = {buffer: on_gpu(tensor) for buffer, tensor in tensors.items()}
    function = loaded({"the_kernel": kernel})["the_kernel"]
    launcher(kernel, function, [moved[buffer] for buffer in kernel.buffers], sizes or {})()
    torch.cuda.synchronize()
    return {buffer: tensor.cpu() for buffer, tensor in moved.items()}


def on_gpu(tensor: torch.Tensor) -> torch.Tensor:
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cuda")
    return made.copy_(tensor)
