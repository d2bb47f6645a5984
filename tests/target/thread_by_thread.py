"""Kernels for GPUs, run on the CPU one thread after another: the same LLVM IR, compiled for this machine.

Kernels whose threads exchange values cannot be run this way.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence

import torch

from kiln.loops.kernel import Kernel
from kiln.target.cpu import jit
from kiln.target.cuda.cuda_module import emit_module
from kiln.target.cuda.kernel_plan import plan_of

SPECIAL = {"tid": "%thread", "ctaid": "%block"}


def for_this_machine(text: str) -> str:
    """The text of a module without what only GPUs have: kinds of memory and special registers."""
    lines = [line for line in text.splitlines() if not line.startswith(("target ", "declare i32 @llvm.nvvm.read"))]
    text = "\n".join(lines).replace(" addrspace(1)", "")
    text = re.sub(r"define ptx_kernel void @(\w+)\(", r"define void @\1(i32 %thread, i32 %block, ", text)
    text = re.sub(r' "nvvm.maxntid"="\d+"', "", text)
    for name, register in SPECIAL.items():
        text = text.replace(f"call i32 @llvm.nvvm.read.ptx.sreg.{name}.x()", f"add i32 {register}, 0")
    text = re.sub(r"addrspacecast ptr (%\w+) to ptr", r"bitcast ptr \1 to ptr", text)
    assert "nvvm" not in text, "a kernel that needs a GPU"
    return text


def run(kernel: Kernel, tensors: Sequence[torch.Tensor], sizes: Sequence[int] = (), blocks: int | None = None) -> None:
    """Run all threads. For a buffer of the kind "drawn", the tensor has the three words that the kernel is given."""
    plan = plan_of(kernel)
    words: list[int] = []
    for buffer, tensor in zip(kernel.buffers, tensors, strict=True):
        words += tensor.tolist() if buffer.kind == "drawn" else [tensor.data_ptr()]
    words += sizes
    module = jit.compile_module(for_this_machine(emit_module({"kernel": kernel})))
    function = ctypes.CFUNCTYPE(None, ctypes.c_int32, ctypes.c_int32, *[ctypes.c_int64] * len(words))
    called = function(module.address("kernel"))
    count = blocks if blocks is not None else plan.blocks
    assert isinstance(count, int)
    for block in range(count):
        for thread in range(plan.threads):
            called(thread, block, *words)
