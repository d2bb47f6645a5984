"""Kernels for GPUs run on the CPU, to test without a GPU what threads exchange: a block's threads are threads here.

The LLVM IR is compiled for the CPU. Thread numbers, shuffles and barriers are functions of Python; blocks run one after
another. Mathematical instructions of GPUs are the C library's functions.
"""

from __future__ import annotations

import ctypes
import re
import threading
from typing import Any

import llvmlite.binding as llvm
import sympy
import torch

from kiln.loops.ir import Buffer
from kiln.loops.kernel import Kernel
from kiln.target.cuda.cuda_module import emit_module
from kiln.target.cuda.kernel_plan import WARP, plan_of
from tests.target.kernel_runs import copied

PATIENCE = 30  # seconds
HEAD = re.compile(r"^target .*\n", re.MULTILINE)
DECLARED = re.compile(r"^declare \w+ @llvm\.nvvm\.([a-z0-9.]+)\(.*\)$", re.MULTILINE)
MOVED = re.compile(r'^(%\w+) = call i32 asm sideeffect "mov.b32 .*"\(i32 (%\w+)\)$', re.MULTILINE)
ADDED = re.compile(
    r'^call void asm sideeffect "red\.\S+\.v[24]\.f32 .*"\(ptr addrspace\(1\) (%\w+), (.*)\)$', re.MULTILINE
)
KINDS = {"i32": ctypes.c_int32, "float": ctypes.c_float, "void": None}
FORMULAS = {
    "ex2.approx.f": "call float @exp2f(float %x)",
    "ex2.approx.ftz.f": "call float @exp2f(float %x)",
    "rcp.approx.ftz.f": "fdiv float 1.0, %x",
    "rsqrt.approx.f": "fdiv float 1.0, %x ; of the root",
}
# LLVM calls this function on CPUs that have no instruction for it; C libraries have it only lately.
ROUNDED_TO_BFLOAT16 = """
define bfloat @__truncsfbf2(float %x) {
  %bits = bitcast float %x to i32
  %high = lshr i32 %bits, 16
  %odd = and i32 %high, 1
  %more = add i32 %odd, 32767
  %sum = add i32 %bits, %more
  %rounded = lshr i32 %sum, 16
  %is_nan = fcmp uno float %x, %x
  %quiet = or i32 %high, 64
  %chosen = select i1 %is_nan, i32 %quiet, i32 %rounded
  %short = trunc i32 %chosen to i16
  %r = bitcast i16 %short to bfloat
  ret bfloat %r
}
"""


class Block:
    """The threads of one block, and what they exchange."""

    def __init__(self, number: int, threads: int) -> None:
        self.number, self.threads = number, threads
        self.barrier = threading.Barrier(threads)
        self.warps = [threading.Barrier(min(WARP, threads)) for _ in range(-(-threads // WARP))]
        self.values = [0] * threads


here = threading.local()


def shuffled(how: str, value: int, distance: int, bound: int) -> int:
    """`shfl.sync` of PTX, for all lanes of a warp."""
    block, thread = here.block, here.thread
    block.values[thread] = value
    block.warps[thread // WARP].wait(PATIENCE)
    lane, first = thread % WARP, thread - thread % WARP
    segment, limit = (bound >> 8) & 31, bound & 31
    low, high = lane & segment, (lane & segment) | (limit & ~segment & 31)
    source = {"bfly": lane ^ distance, "up": lane - distance, "idx": low | (distance & ~segment & 31)}[how]
    inside = source >= high if how == "up" else source <= high
    found = block.values[first + (source if inside else lane)]
    block.warps[thread // WARP].wait(PATIENCE)
    return found


def shuffle(how: str) -> Any:
    kind = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_int32] * 4)
    return kind(lambda mask, value, distance, bound: shuffled(how, value, distance, bound))


def wait(number: int) -> None:
    here.block.barrier.wait(PATIENCE)


NUMBER = ctypes.CFUNCTYPE(ctypes.c_int32)
FUNCTIONS: dict[str, Any] = {
    "read.ptx.sreg.tid.x": NUMBER(lambda: here.thread),
    "read.ptx.sreg.ctaid.x": NUMBER(lambda: here.block.number),
    "shfl.sync.bfly.i32": shuffle("bfly"),
    "shfl.sync.up.i32": shuffle("up"),
    "shfl.sync.idx.i32": shuffle("idx"),
    "barrier.cta.sync.aligned.all": ctypes.CFUNCTYPE(None, ctypes.c_int32)(wait),
}


def for_the_cpu(text: str) -> str:
    """The module with calls of functions in place of a GPU's instructions."""
    text = HEAD.sub("", text).replace("ptx_kernel ", "")
    for name in set(DECLARED.findall(text)) & FORMULAS.keys():
        body = f"%r = {FORMULAS[name]}\n  ret float %r"
        if name.startswith("rsqrt"):
            body = "%s = call float @sqrtf(float %x)\n  %r = fdiv float 1.0, %s\n  ret float %r"
        text = re.sub(rf"^declare float @llvm\.nvvm\.{re.escape(name)}\(.*\)$", "", text, flags=re.MULTILINE)
        text += f"define float @llvm.nvvm.{name}(float %x) {{\n  {body}\n}}\n"
    if "@llvm.nvvm.div.full(" in text:
        text = text.replace("declare float @llvm.nvvm.div.full(float, float)", "")
        text += "define float @llvm.nvvm.div.full(float %x, float %y) {\n  %r = fdiv float %x, %y\n  ret float %r\n}\n"
    text = ADDED.sub(added_one_by_one, MOVED.sub(r"\1 = add i32 0, \2", text))
    if " to bfloat" in text or " x bfloat>" in text:
        text += ROUNDED_TO_BFLOAT16
    if "@exp2f(" in text:
        text += "declare float @exp2f(float)\n"
    if "@sqrtf(" in text:
        text += "declare float @sqrtf(float)\n"
    return text.replace("@llvm.nvvm.", "@kiln.gpu.")


def added_one_by_one(found: re.Match[str]) -> str:
    """Additions to neighbouring elements, one instruction for each."""
    place, lines = found[1], []
    for number, value in enumerate(found[2].split(", ")):
        name = f"%next{number}.{found.start()}"
        lines.append(f"{name} = getelementptr float, ptr addrspace(1) {place}, i64 {number}")
        lines.append(f"atomicrmw fadd ptr addrspace(1) {name}, {value} monotonic, align 4")
    return "\n".join(lines)


FAILS = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int32, ctypes.c_char_p, ctypes.c_int64)


def run_as_on_gpu(
    kernel: Kernel,
    tensors: dict[Buffer, torch.Tensor],
    sizes: dict[sympy.Symbol, int] | None = None,
    stopped: list[str] | None = None,
) -> dict[Buffer, torch.Tensor]:
    """What the kernel leaves in the buffers. ``stopped`` gets the texts of assertions that failed, after which threads
    go on here."""
    failed: list[str] = [] if stopped is None else stopped
    fails = FAILS(lambda text, *place: failed.append(text.decode()))
    moved = {buffer: copied(tensor) for buffer, tensor in tensors.items()}
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = llvm.parse_assembly(for_the_cpu(emit_module({"the_kernel": kernel})))
    module.verify()
    machine = llvm.Target.from_default_triple().create_target_machine(cpu=llvm.get_host_cpu_name(), opt=1, jit=True)
    for name, function in FUNCTIONS.items():
        llvm.add_symbol(f"kiln.gpu.{name}", ctypes.cast(function, ctypes.c_void_p).value)
    llvm.add_symbol("__assertfail", ctypes.cast(fails, ctypes.c_void_p).value)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    words = [word for buffer in kernel.buffers for word in words_of(buffer, moved[buffer])]
    words += [int(size.subs(sizes or {})) for size in kernel.sizes]
    kind = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * len(words))
    code = kind(engine.get_function_address("the_kernel"))
    plan = plan_of(kernel)
    blocks = plan.blocks if isinstance(plan.blocks, int) else int(plan.blocks.subs(sizes or {}))
    for number in range(blocks):
        run_block(Block(number, plan.threads), code, words)
    assert stopped is not None or not failed, failed
    return moved


def words_of(buffer: Buffer, tensor: torch.Tensor) -> list[int]:
    """The parameters for a buffer: its address, or what was drawn for random numbers."""
    return tensor.tolist() if buffer.kind == "drawn" else [tensor.data_ptr()]


def run_block(block: Block, code: Any, arguments: list[int]) -> None:
    def run(thread: int) -> None:
        here.block, here.thread = block, thread
        code(*arguments)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(block.threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
