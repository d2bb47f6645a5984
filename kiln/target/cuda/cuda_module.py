"""From kernels to LLVM IR text for NVIDIA GPUs: one function a kernel.

A function's parameters are a pointer for each of the kernel's buffers, then an i64 for each of its sizes.
"""

from __future__ import annotations

from collections.abc import Mapping

from kiln.loops.kernel import Kernel

from ..llvm.llvm_text import Lines, Names
from .kernel_plan import plan_of
from .nest import ThreadNest

HEAD = """target triple = "nvptx64-nvidia-cuda"
target datalayout = "e-p6:32:32-i64:64-i128:128-i256:256-v16:16-v32:32-n16:32:64"
"""


def emit_module(kernels: Mapping[str, Kernel]) -> str:
    """One LLVM module with a function for each kernel, by name."""
    declarations: dict[str, None] = {}
    functions = [function_of(kernel, name, declarations) for name, kernel in kernels.items()]
    return HEAD + "\n".join([*declarations, *functions]) + "\n"


def function_of(kernel: Kernel, name: str, declarations: dict[str, None]) -> str:
    plan = plan_of(kernel)
    lines = Lines(Names(declarations, is_for_gpu=True))
    shared = f"@{name}_shared"
    for number in range(len(kernel.buffers)):
        lines.add(f"%b{number} = addrspacecast ptr addrspace(1) %p{number} to ptr")
    nest = ThreadNest(plan, lines, shared)
    nest.write()
    if nest.exchange.used:
        lines.declare(f"{shared} = internal addrspace(3) global [{nest.exchange.used} x i8] poison, align 16")
    parameters = [f"ptr addrspace(1) %p{number}" for number in range(len(kernel.buffers))]
    parameters += [f"i64 %s{number}" for number in range(len(kernel.sizes))]
    body = "\n".join([*lines.text, "ret void"])
    bounds = f'"nvvm.maxntid"="{plan.threads}"'
    return f"define ptx_kernel void @{name}({', '.join(parameters)}) nounwind {bounds} {{\nentry:\n{body}\n}}\n"
