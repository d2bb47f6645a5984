"""From kernels to LLVM IR text for NVIDIA GPUs: one function a kernel.

A function's parameters are a pointer for each of the kernel's buffers, then an i64 for each of its sizes; or a table of
several launches' (`launch_table.py`). In place of a buffer that was drawn (seed and offset of random numbers) there are
the three words of the native program's draw step.
"""

from __future__ import annotations

from collections.abc import Mapping

from kiln.loops.ir import Buffer
from kiln.loops.kernel import Kernel

from ..llvm.llvm_text import Lines, Names
from .kernel_plan import plan_of
from .launch_table import parameter_of, read_row
from .nest import ThreadNest
from .values import drawn_register

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
    block = lines.call("llvm.nvvm.read.ptx.sreg.ctaid.x", "i32", [])
    parameters = [parameter(buffer, number) for number, buffer in enumerate(kernel.buffers)]
    parameters += [f"i64 %s{number}" for number in range(len(kernel.sizes))]
    if kernel.table_rows:
        parameters, block = [parameter_of(kernel)], read_row(kernel, lines, block)
    for number, buffer in enumerate(kernel.buffers):
        if buffer.kind == "drawn":
            find_drawn(lines, number)
        else:
            lines.add(f"%b{number} = addrspacecast ptr addrspace(1) %p{number} to ptr")
    nest = ThreadNest(plan, lines, shared, block)
    nest.write()
    if nest.exchange.peak:
        lines.declare(f"{shared} = internal addrspace(3) global [{nest.exchange.peak} x i8] poison, align 16")
    body = "\n".join([*lines.text, "ret void"])
    bounds = f'"nvvm.maxntid"="{plan.threads}"'
    return f"define ptx_kernel void @{name}({', '.join(parameters)}) nounwind {bounds} {{\nentry:\n{body}\n}}\n"


def parameter(buffer: Buffer, number: int) -> str:
    if buffer.kind != "drawn":
        return f"ptr addrspace(1) %p{number}"
    return ", ".join(f"i64 %p{number}_{part}" for part in ("seed", "offset", "place"))


def find_drawn(lines: Lines, number: int) -> None:
    """Seed and offset. In a CUDA graph, the parameters say where these are (native/platform/random.h)."""
    before, there, after = lines.block, lines.fresh("captured"), lines.fresh("drawn")
    given = {part: f"%p{number}_{part}" for part in ("seed", "offset", "place")}
    is_captured = lines.new(f"icmp ne i64 {given['place']}, 0")
    lines.branch_if(is_captured, there, after)
    lines.label(there)
    found = {}
    for part, place in (("seed", given["seed"]), ("offset", given["place"])):
        pointer = lines.new(f"inttoptr i64 {place} to ptr addrspace(1)")
        found[part] = lines.new(f"load i64, ptr addrspace(1) {pointer}, align 8")
    found["offset"] = lines.new(f"add i64 {found['offset']}, {given['offset']}")
    lines.branch(after)
    lines.label(after)
    for part, value in found.items():
        name = drawn_register(number, part)
        lines.add(f"{name} = phi i64 [ {given[part]}, %{before} ], [ {value}, %{there} ]")
