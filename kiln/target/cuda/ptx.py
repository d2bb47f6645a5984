"""Compiles LLVM IR text to PTX, the assembly of NVIDIA GPUs. It needs no GPU."""

from __future__ import annotations

import functools
from typing import Any

from kiln.exc import KilnError

TRIPLE = "nvptx64-nvidia-cuda"
PTX_FEATURES = "+ptx80"  # drivers from CUDA 12.0 on take it
OPTIMIZATION_LEVEL = 3  # of code generation


class PtxError(KilnError):
    """LLVM IR that LLVM refuses: a bug of the code generator."""


@functools.cache
def llvm() -> Any:
    from llvmlite import binding

    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    return binding


def compile_ptx(text: str, architecture: str) -> bytes:
    """The PTX of an LLVM module, for "sm_90" or another architecture."""
    binding = llvm()
    machine = binding.Target.from_triple(TRIPLE).create_target_machine(
        cpu=architecture, features=PTX_FEATURES, opt=OPTIMIZATION_LEVEL
    )
    with binding.create_context() as context:
        try:
            with binding.parse_assembly(text, context) as module:
                module.verify()
                return str(machine.emit_assembly(module)).encode()
        except RuntimeError as error:
            raise PtxError(f"LLVM refuses a kernel: {error}") from error
